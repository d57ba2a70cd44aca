"""Mutations: break one rule in the code of a function temporarily, and check that a test notices.

A mutation edits the syntax tree of a function. Its pattern is code without names, so that renames, formatting and
changed texts do not affect it:

- `_` is any expression, `_1`, `_2` … are expressions that the replacement uses again;
- letters (`a`, `b`) are any names, and `_` after a dot is any attribute: equal letters are equal names;
- `...` is any number of statements, arguments or elements;
- `self`, builtins, numbers, operators and control flow are themselves.
"""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Final
from unittest import mock

import pytest

_WILD: Final = re.compile(r"_\d*")
_LETTER: Final = re.compile(r"[a-z]\d?")
_BUILTIN: Final = {"self", "cls", *dir(builtins)} - {"_"}
_METHODS: Final = {name for each in (str, bytes, int, float, tuple, list, set, dict) for name in dir(each)}
_OPTIONS: Final = {"key", "reverse", "strict", "default"}
"""Options of builtins."""
_REST: Final = "..."
_INJECTED: Final = "_mutation_"
"""Prefix of the names under which a function finds the objects of its edit."""

Bindings = Mapping[str, Any]


@dataclass(frozen=True)
class Edit:
    """A pattern that fits one place of a function, and its replacement."""

    old: str
    new: str
    nth: int | None = None
    """Which of several fitting places is meant, from 1; None if there is only one."""
    objects: Mapping[str, object] = field(default_factory=dict)
    """Objects that the replacement uses, by their names in it."""

    def apply(self, function: ast.AST) -> ast.Module:
        """Return a module with the edited function. Raises AssertionError unless the pattern fits one place."""
        function = copy.deepcopy(function)
        old, new = _parse(self.old), _parse(self.new)
        _check_names(old, new, self.objects)
        found = list(_places(old, function, is_expression=_is_expression(old) and _is_expression(new)))
        number = self.nth or 1
        if len(found) < number or (self.nth is None and len(found) > 1):
            places = "".join(f"\n{each.text()}" for each in found)
            raise AssertionError(f"{self.old!r} fits {len(found)} places:{places}")
        for node in _all(new):
            if isinstance(node, ast.Name) and node.id in self.objects:
                node.id = f"{_INJECTED}{node.id}"
        found[number - 1].put(new)
        # Parsed again, because a moved expression may be read in one place and assigned in the other.
        return ast.parse(ast.unparse(ast.fix_missing_locations(function)))


def rewrite(old: str, new: str, nth: int | None = None, **objects: object) -> Edit:
    """Replace an expression or statements."""
    return Edit(old, new, nth, objects)


def drop(old: str, nth: int | None = None) -> Edit:
    """Remove statements."""
    return Edit(old, "pass", nth)


@dataclass(frozen=True)
class Mutation:
    """A rule, the function that keeps it, and an edit of the function that breaks it."""

    rule: str
    function: Callable[..., Any]
    edit: Edit

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the rule temporarily."""
        function = inspect.unwrap(self.function)
        assert isinstance(function, FunctionType)
        code = function.__code__
        function.__code__ = self.compiled(function)
        objects = {f"{_INJECTED}{name}": value for name, value in self.edit.objects.items()}
        try:
            with mock.patch.dict(function.__globals__, objects):
                yield
        finally:
            function.__code__ = code

    def compiled(self, function: FunctionType) -> CodeType:
        """Return the code of the edited function."""
        module = self.edit.apply(tree_of(function))
        made: dict[str, Any] = {}
        future = compile("from __future__ import annotations", "", "exec").co_flags
        code = compile(module, inspect.getfile(function), "exec", future, dont_inherit=True)
        exec(code, function.__globals__, made)  # of our code
        code = made[function.__name__].__code__
        assert isinstance(code, CodeType)
        return code


def tree_of(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """Return the syntax tree of a function, without decorators."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    tree.decorator_list = []
    return tree


def rule_of(value: object) -> str:
    """Return the rule of a mutation, the name of a parametrized test."""
    return value.rule if isinstance(value, Mutation) else ""


def assert_caught(mutation: Mutation, check: Callable[[], object]) -> None:
    """Check that a test fails while the rule is broken; the test itself must show that it passes otherwise."""
    with mutation.applied():
        try:
            check()
        except NameError:
            raise
        except (Exception, pytest.fail.Exception):  # noqa: BLE001  any way in which a test fails
            return
    raise AssertionError(f"no test noticed that this rule was broken: {mutation.rule}")


def _parse(code: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(code)).body


def _is_expression(statements: Sequence[ast.stmt]) -> bool:
    return len(statements) == 1 and isinstance(statements[0], ast.Expr)


def _check_names(old: Sequence[ast.stmt], new: Sequence[ast.stmt], objects: Mapping[str, object]) -> None:
    """Check that neither a pattern nor its replacement names anything of the function."""
    texts = [
        node.value for node in _all(old) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert not texts, f"a pattern has texts: {texts}"
    named = _names(old)
    for kind, name in sorted(named):
        is_free = _LETTER.fullmatch(name) or _WILD.fullmatch(name) or (kind == "name" and name in _BUILTIN)
        assert is_free, f"a pattern names {name!r}"
    bound = {("name", node.id) for node in _all(new) if isinstance(node, ast.Name) and not _is_read(node)}
    bound |= {("name", node.arg) for node in _all(new) if isinstance(node, ast.arg)}
    bound |= {("name", name) for name in {*_BUILTIN, *objects}} | {("Attribute", name) for name in _METHODS}
    unknown = _names(new) - named - bound - {("keyword", name) for name in _OPTIONS}
    assert not unknown, f"a replacement names {sorted(name for _, name in unknown)}, which its pattern lacks"


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _all(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    return (node for each in statements for node in ast.walk(each))


def _names(statements: Sequence[ast.stmt]) -> set[tuple[str, str]]:
    """Return the names in code, each with its kind."""
    return {
        (_kind(node), value)
        for node in _all(statements)
        for value in (getattr(node, name) for name in node._fields)
        if isinstance(value, str) and _kind(node)
    }


@dataclass(frozen=True)
class _Place:
    """A place that a pattern fits: an expression, or statements of a block."""

    owner: ast.AST
    field: str
    start: int
    """Index in the field, -1 if the field is no list."""
    length: int
    bound: Bindings

    def text(self) -> str:
        """Return the code of this place."""
        value = getattr(self.owner, self.field)
        nodes = [value] if self.start < 0 else value[self.start : self.start + self.length]
        return "\n".join(ast.unparse(each) for each in nodes)

    def put(self, new: Sequence[ast.stmt]) -> None:
        """Put a replacement here."""
        filler = _Filler(self.bound)
        if self.start < 0:
            assert isinstance(new[0], ast.Expr)
            setattr(self.owner, self.field, filler.fill(new[0].value))
            return
        values = getattr(self.owner, self.field)
        is_statement = isinstance(values[self.start], ast.stmt)
        nodes = new if is_statement else [each.value for each in new if isinstance(each, ast.Expr)]
        values[self.start : self.start + self.length] = filler.fill_all(nodes)


def _places(old: Sequence[ast.stmt], function: ast.AST, is_expression: bool) -> Iterator[_Place]:
    """Find the places that a pattern fits, in the order of the code."""
    for owner in _walk(function):
        for name, value in ast.iter_fields(owner):
            values = value if isinstance(value, list) else [value]
            for index, node in enumerate(values):
                start = index if isinstance(value, list) else -1
                if is_expression and isinstance(node, ast.expr):
                    assert isinstance(old[0], ast.Expr)
                    if (bound := _fit(old[0].value, node, {})) is not None:
                        yield _Place(owner, name, start, 1, bound)
                elif not is_expression and isinstance(node, ast.stmt):
                    for length in range(1, len(values) - index + 1):
                        if (bound := _fit_all(old, values[index : index + length], {})) is not None:
                            yield _Place(owner, name, start, length, bound)
                            break


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree in the order of the code."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _fit(pattern: object, node: object, bound: Bindings, kind: str = "") -> Bindings | None:
    """Return the bindings with which a pattern fits a node, None if it does not."""
    if isinstance(pattern, ast.Name) and _WILD.fullmatch(pattern.id):
        return _bind(bound, pattern.id, node) if isinstance(node, ast.expr) else None
    if isinstance(pattern, list) and isinstance(node, list):
        return _fit_all(pattern, node, bound)
    if isinstance(pattern, str) and isinstance(node, str) and kind:
        return _fit_name(pattern, node, bound, kind)
    if type(pattern) is not type(node):
        return None
    if not isinstance(pattern, ast.AST) or not isinstance(node, ast.AST):
        return bound if pattern == node else None
    result: Bindings | None = bound
    for inner, found in zip(_parts(pattern), _parts(node), strict=True):
        result = None if result is None else _fit(inner, found, result, _kind(pattern))
    return result


def _fit_name(pattern: str, node: str, bound: Bindings, kind: str) -> Bindings | None:
    if kind == "name" and pattern != "_" and {pattern, node} & _BUILTIN:
        return bound if pattern == node else None
    return _bind(bound, pattern if pattern == "_" else f"{kind} {pattern}", node)


def _parts(node: ast.AST) -> list[object]:
    """Return the values of a node's fields that count; the arguments of a call are one list."""
    if isinstance(node, ast.Call):
        return [node.func, [*node.args, *node.keywords]]
    return [getattr(node, name) for name in node._fields if name not in {"ctx", "kind", "type_comment"}]


def _fit_all(patterns: Sequence[ast.AST], nodes: Sequence[ast.AST], bound: Bindings) -> Bindings | None:
    """Return the bindings with which patterns fit all nodes; `...` fits any number of nodes."""
    if not patterns:
        return None if nodes else bound
    if _is_rest(patterns[0]):
        for number in range(len(nodes) + 1):
            rests = (*bound.get(_REST, ()), nodes[:number])
            if (after := _fit_all(patterns[1:], nodes[number:], {**bound, _REST: rests})) is not None:
                return after
        return None
    after = _fit(patterns[0], nodes[0], bound) if nodes else None
    return None if after is None else _fit_all(patterns[1:], nodes[1:], after)


def _is_rest(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and value.value is ...


def _bind(bound: Bindings, name: str, value: object) -> Bindings | None:
    """Bind a name to a part of the function, None if it is bound to a different one."""
    if name == "_" or (name in bound and _dump(bound[name]) == _dump(value)):
        return bound
    return None if name in bound else {**bound, name: value}


def _dump(value: object) -> object:
    return ast.dump(value).replace("Store()", "Load()") if isinstance(value, ast.AST) else value


def _kind(node: ast.AST) -> str:
    """Return the kind of the names in a node, empty if it has none."""
    if isinstance(node, ast.Constant):
        return ""
    return type(node).__name__ if isinstance(node, ast.Attribute | ast.keyword) else "name"


class _Filler:
    """Fill a replacement with the parts of the function that its pattern bound."""

    def __init__(self, bound: Bindings) -> None:
        self._bound = bound
        self._rests = list(bound.get(_REST, ()))

    def fill(self, node: Any, kind: str = "") -> Any:
        if isinstance(node, list):
            return self.fill_all(node)
        if isinstance(node, str) and kind:
            return self._bound.get(f"{kind} {node}", node)
        if not isinstance(node, ast.AST):
            return node
        if isinstance(node, ast.Name) and node.id in self._bound:
            return copy.deepcopy(self._bound[node.id])
        fields = {name: self.fill(getattr(node, name), _kind(node)) for name in node._fields}
        if isinstance(node, ast.Call):  # `...` stands for arguments of both kinds
            arguments = [*fields["args"], *fields["keywords"]]
            fields["args"] = [each for each in arguments if not isinstance(each, ast.keyword)]
            fields["keywords"] = [each for each in arguments if isinstance(each, ast.keyword)]
        return type(node)(**fields)

    def fill_all(self, nodes: Sequence[ast.AST]) -> list[ast.AST]:
        filled: list[ast.AST] = []
        for node in nodes:
            filled += copy.deepcopy(self._rests.pop(0)) if _is_rest(node) else [self.fill(node)]
        return filled
