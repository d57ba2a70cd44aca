"""Edits of syntax trees: what a pattern fits, what is refused, and that renames affect no mutation."""

from __future__ import annotations

import ast
import gc
import importlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.mutants.mutation import _BUILTIN, Edit, Mutation, assert_caught, drop, rewrite, tree_of

HERE = Path(__file__).parent
TESTS = HERE.parent


def add_new(known: dict[str, int], names: Iterable[str], limit: int) -> int:
    """Count names; the function whose rules the tests break."""
    added = 0
    for name in names:
        if name not in known and added < limit:
            known[name] = 0
            added += 1
    if added > 0:
        known.setdefault("last", added)
    return added


def edited(edit: Edit) -> str:
    """Return the code of the edited function."""
    return ast.unparse(edit.apply(tree_of(add_new)))


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (rewrite("_ not in _", "True"), "if True and added < limit:"),
        (rewrite("_1 < _2", "_1 <= _2"), "added <= limit"),
        (rewrite("_1 and _2", "_2 and _1"), "if added < limit and name not in known:"),
        (rewrite("_ > 0", "False"), "if False:"),
        (rewrite("if _1 > 0: ...", "if _1 > 1: ..."), "if added > 1:"),
        (rewrite("for _1 in _2: ...", "for _1 in reversed(_2): ..."), "for name in reversed(names):"),
        (rewrite("_1.a(_, _2)", "_1.a(limit, _2)", limit=5), "known.setdefault(_mutation_limit, added)"),
        (rewrite("a.b(...)", "a.get(...)"), "known.get('last', added)"),
        (drop("_1 += _2"), "known[name] = 0\n            pass"),
        (rewrite("_1 = 0", "_1 = 1", nth=1), "added = 1"),
        (rewrite("_1[_2] = 0\n_3 += 1", "_3 += 1\n_1[_2] = 0"), "added += 1\n            known[name] = 0"),
    ],
    ids=lambda value: value.old if isinstance(value, Edit) else "",
)
def test_edits(edit: Edit, code: str) -> None:
    """An edit replaces one place and carries over what its pattern bound."""
    assert code in edited(edit)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (rewrite("_ == _", "True"), "fits 0 places"),
        (rewrite("_ + _", "True", nth=1), "fits 0 places"),
        (rewrite("_ = 0", "pass"), "fits 2 places:\nadded = 0\nknown.name. = 0$"),
        (rewrite("_ = 0", "pass", nth=3), "fits 2 places"),
        (rewrite("added < limit", "True"), "a pattern names 'added'"),
        (rewrite("_.setdefault(...)", "None"), "a pattern names 'setdefault'"),
        (rewrite("_('last', _)", "None"), "a pattern has texts"),
        (rewrite("_ > 0", "limit > 0"), r"a replacement names \['limit'\]"),
        (rewrite("_1._(...)", "_1.total"), r"a replacement names \['total'\]"),
    ],
    ids=lambda value: value.old if isinstance(value, Edit) else "",
)
def test_refused_edits(edit: Edit, message: str) -> None:
    """A pattern fits exactly one place, and neither it nor its replacement quotes the function."""
    with pytest.raises(AssertionError, match=message):
        edited(edit)


def test_equal_letters_are_equal_names() -> None:
    """`a + a` fits `x + x`, not `x + y`."""
    function = ast.parse("def f(x, y):\n    return [x + y, x + x]").body[0]
    assert "[x + y, x]" in ast.unparse(rewrite("a + a", "a").apply(function))
    assert "[x + y, x]" in ast.unparse(rewrite("_1 + _1", "_1").apply(function))


def check_add_new() -> None:
    """Check the example."""
    known = {"a": 1}
    assert add_new(known, "abc", 1) == 1
    assert known == {"a": 1, "b": 0, "last": 1}


def test_a_mutation_lasts_as_long_as_its_block() -> None:
    """A function is broken within the block alone, also if its check raises; objects leave no global."""
    check_add_new()
    before = set(globals())
    for edit in (
        rewrite("_ < _", "True"),
        drop("_1 += _2"),
        rewrite("_ not in _", "number", number=0),
    ):
        assert_caught(Mutation("names are counted", add_new, edit), check_add_new)
        check_add_new()
    assert set(globals()) == before
    with pytest.raises(AssertionError, match="no test noticed that this rule was broken: none"):
        assert_caught(Mutation("none", add_new, rewrite("_ > 0", "True")), lambda: None)


FREE = (ast.Attribute, ast.Constant, ast.keyword)
"""Nodes whose names and texts may be those of builtins."""


class Renamed(ast.NodeTransformer):
    """Rename all names but builtins, and change all texts; or make them all alike."""

    def __init__(self, suffix: str | None) -> None:
        self._suffix = suffix

    def visit(self, node: ast.AST) -> ast.AST:
        """Rename a node and all below it."""
        for name, value in ast.iter_fields(node):
            if isinstance(value, str) and (isinstance(node, FREE) or value not in _BUILTIN):
                setattr(node, name, "" if self._suffix is None else f"{value}{self._suffix}")
        return super().generic_visit(node)


def shape(tree: ast.AST) -> str:
    """Return a tree without names and texts."""
    return ast.dump(Renamed(None).visit(tree))


def all_mutations() -> list[Mutation]:
    """Return the mutations of all modules in this directory."""
    for path in HERE.rglob("*.py"):
        importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
    return [each for each in gc.get_objects() if isinstance(each, Mutation)]


def test_renames_break_no_mutation() -> None:
    """If all names and texts of a function change, its mutations change the same places as before."""
    mutations = all_mutations()
    assert len(mutations) > 700
    for mutation in mutations:
        before = mutation.edit.apply(tree_of(mutation.function))
        after = mutation.edit.apply(Renamed("_renamed").visit(tree_of(mutation.function)))
        assert shape(after) == shape(before), mutation.rule
