"""Compare the code of two trees definition by definition, whatever modules the definitions are in.

`python -m scripts.same_code REVISION [--map scripts/moves.json]` compares the working tree with a revision. Names are
resolved to the module that defines them, and old modules and names are translated by the map. Docstrings, comments,
imports and the order of definitions do not count. Prints each definition that differs; exits with 1 if any does.

Local names and parameters may differ if each is renamed consistently in its function. Attributes, keyword arguments
and members of classes may differ where the map's `members` has the pair of names.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).resolve().parents[1]
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Translation:
    """Old modules and names, and what they are called now.

    Args:
        modules: new name of each module that moved.
        names: new name of each definition that was renamed, by its old module.
        exports: the definition behind each name that a package exports.
        all_modules: every module of the tree.
    """

    def __init__(
        self,
        modules: Mapping[str, str],
        names: Mapping[str, Mapping[str, str]],
        exports: Mapping[str, str],
        all_modules: Collection[str],
    ) -> None:
        self.all_modules = all_modules
        self._modules = modules
        self._names = names
        self._exports = exports

    def module(self, module: str) -> str:
        """Return the present name of a module."""
        return self._modules.get(module, module)

    def text(self, text: str) -> str:
        """Return a text with the present name of a module, if it begins with one."""
        parts = text.split(".")
        for end in range(len(parts), 1, -1):
            if (module := ".".join(parts[:end])) in self._modules:
                return ".".join([self._modules[module], *parts[end:]])
        return text

    def name(self, module: str, name: str) -> str:
        """Return the present full name of a definition, or of a module in a package."""
        return self.full(f"{module}.{name}")

    def full(self, full: str) -> str:
        """Return the present full name of a definition or module, given its full name in this tree."""
        full = self._exports.get(full, full)
        if full in self._modules:
            return self._modules[full]
        module, _, name = full.rpartition(".")
        return f"{self.module(module)}.{self._names.get(module, {}).get(name, name)}"


class _Canonical(ast.NodeTransformer):
    """Write each reference to an import or to a definition of the module by its full name, without docstrings."""

    def __init__(self, bindings: Mapping[str, str], translation: Translation) -> None:
        self._bindings = bindings
        self._translation = translation
        self._locals: list[set[str]] = []

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Resolve a name that no enclosing function binds."""
        if full := self._binding(node):
            return ast.Name(self._translation.full(full), ast.Load())
        return node

    def _binding(self, node: ast.expr) -> str | None:
        """Return the full name that a global name is bound to in its module."""
        if not isinstance(node, ast.Name) or any(node.id in names for names in self._locals):
            return None
        return self._bindings.get(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Resolve `module.name` to the same full name as an import of the name itself."""
        full = self._binding(node.value)
        if full is not None and full in self._translation.all_modules:
            return ast.Name(self._translation.name(full, node.attr), ast.Load())
        value = self.visit(node.value)
        return ast.Attribute(value, node.attr, ast.Load())

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Translate the names of modules in strings."""
        if isinstance(node.value, str) and node.value.startswith("tracelake."):
            return ast.Constant(self._translation.text(node.value))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Resolve names in a function, except those that it binds."""
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """Resolve names in a function, except those that it binds."""
        return self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Resolve names in a function, except those that it binds."""
        return self._function(node)

    def _function(self, node: _Function) -> ast.AST:
        self._locals.append(set(_bound(node)))
        result = self.generic_visit(node)
        self._locals.pop()
        return result

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Resolve names in a class, except its fields."""
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                field.target.id = f".{field.target.id}"
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """Leave imports out; what they bind is resolved where it is used."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Leave imports out; what they bind is resolved where it is used."""

    def visit_Pass(self, node: ast.Pass) -> None:
        """Leave out a body that only imports emptied."""


def _bound(function: _Function) -> Iterator[str]:
    """Yield the names that a function binds, except by imports and in functions inside it."""
    arguments = function.args
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    yield from (argument.arg for argument in every if argument)
    nodes: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, (ast.MatchAs, ast.MatchStar, ast.ExceptHandler)) and node.name:
                yield node.name
            nodes.extend(ast.iter_child_nodes(node))


class _Comparison:
    """Compares a definition with one whose local names and members may be renamed.

    Args:
        members: pairs of old and new names of attributes, keyword arguments and members of classes.
    """

    def __init__(self, members: Collection[tuple[str, str]]) -> None:
        self._members = members
        self._scopes: list[tuple[dict[str, str], dict[str, str]]] = []

    def same(self, before: object, after: object) -> bool:
        """Return whether two nodes are the same code."""
        if isinstance(before, list) and isinstance(after, list):
            return len(before) == len(after) and all(map(self.same, before, after))
        if type(before) is not type(after):
            return False
        if not isinstance(before, ast.AST):
            return before == after
        assert isinstance(after, ast.AST)
        if isinstance(before, (*_FUNCTIONS, ast.Lambda)) and isinstance(after, (*_FUNCTIONS, ast.Lambda)):
            return self._same_function(before, after)
        return all(
            self._same_field(before, name, getattr(before, name, None), getattr(after, name, None))
            for name in before._fields
        )

    def _same_function(self, before: _Function, after: _Function) -> bool:
        """Compare functions. Each name that one binds must stand for exactly one name that the other binds."""
        outside = [
            self._same_field(before, name, getattr(before, name, None), getattr(after, name, None))
            for name in before._fields
            if name not in {"args", "body"}
        ]
        self._scopes.append((dict.fromkeys(_bound(before), ""), dict.fromkeys(_bound(after), "")))
        is_same = self.same(before.args, after.args) and self.same(before.body, after.body)
        self._scopes.pop()
        return is_same and all(outside)

    def _same_field(self, node: ast.AST, field: str, before: object, after: object) -> bool:
        if isinstance(before, str) and isinstance(after, str) and not isinstance(node, ast.Constant):
            is_member = isinstance(node, (ast.Attribute, ast.keyword))
            return self._same_member(before, after) if is_member else self._same_name(before, after)
        if isinstance(node, (ast.Global, ast.Nonlocal)) and field == "names":
            return all(map(self._same_name, node.names, after if isinstance(after, list) else []))
        return self.same(before, after)

    def _same_name(self, before: str, after: str) -> bool:
        """Compare names: local ones by what their scope pairs, the others as members."""
        for olds, news in reversed(self._scopes):
            if before in olds or after in news:
                if before not in olds or after not in news:
                    return False
                olds[before], news[after] = olds[before] or after, news[after] or before
                return olds[before] == after and news[after] == before
        return self._same_member(before, after)

    def _same_member(self, before: str, after: str) -> bool:
        return before == after or (before.lstrip("."), after.lstrip(".")) in self._members


def definitions(module: str, text: str, translation: Translation) -> Iterator[tuple[str, ast.AST]]:
    """Yield the definitions of a module with their names, in canonical form."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Module)):
            node.body = [each for each in node.body if not _is_text(each)]
    bindings = dict(_imported(tree)) | {name: f"{module}.{name}" for name in _defined(tree.body)}
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") and not node.orelse:
            continue
        names = list(_defined([node]))
        canonical = _Canonical(bindings, translation).visit(node)
        if canonical is not None:
            head = translation.name(module, names[0]) if names else translation.module(module)
            if isinstance(canonical, (*_FUNCTIONS, ast.ClassDef)):
                canonical.name = head
            yield head, canonical


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _defined(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (
                    each.id
                    for each in ast.walk(target)
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                )
        elif isinstance(node, ast.If):
            yield from _defined([*node.body, *node.orelse])


def all_definitions(
    files: Mapping[str, str], modules: Mapping[str, str], names: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, ast.AST]]:
    """Return the definitions of files, given as module names with their texts: text, then name and node."""
    exports = {
        f"{module}.{alias.asname or alias.name}": f"{node.module}.{alias.name}"
        for module, text in files.items()
        if any(other.startswith(f"{module}.") for other in files)
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    translation = Translation(modules, names, exports, set(files))
    return {
        f"{head}: {ast.dump(node)}": (head, node)
        for module, text in files.items()
        for head, node in definitions(module, text, translation)
    }


def differing(
    before: Mapping[str, tuple[str, ast.AST]],
    after: Mapping[str, tuple[str, ast.AST]],
    members: Collection[tuple[str, str]],
) -> tuple[list[str], list[str]]:
    """Return the definitions that only one of two trees has, even if local names and members are renamed."""
    left, right = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    for old in list(left):
        head, node = before[old]
        same = (
            new for new in right if after[new][0] == head and _Comparison(members).same(node, after[new][1])
        )
        if (new := next(same, None)) is not None:
            left.remove(old)
            right.remove(new)
    return left, right


def _module_of(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def files_at(revision: str) -> dict[str, str]:
    """Return the modules below `src` of a revision, with their texts."""
    paths = _git("ls-tree", "-r", "--name-only", revision, "src").split("\n")
    return {_module_of(path): _git("show", f"{revision}:{path}") for path in paths if path.endswith(".py")}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def files_here() -> dict[str, str]:
    """Return the modules below `src` of the working tree, with their texts."""
    return {
        _module_of(path.relative_to(ROOT).as_posix()): path.read_text("utf-8")
        for path in sorted((ROOT / "src").rglob("*.py"))
    }


def main(arguments: Sequence[str]) -> int:
    """Print the definitions that only one of the two trees has; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("revision", help="compare the working tree with this revision")
    parser.add_argument("--map", type=Path, help="JSON: modules and names that changed")
    options = parser.parse_args(arguments)
    table = json.loads(options.map.read_text("utf-8")) if options.map else {"modules": {}, "names": {}}
    before = all_definitions(files_at(options.revision), table["modules"], table["names"])
    after = all_definitions(files_here(), {}, {})
    members = {(old, new) for old, news in table.get("members", {}).items() for new in news}
    only_before, only_after = differing(before, after, members)
    for sign, difference in (("-", only_before), ("+", only_after)):
        for definition in difference:
            print(sign, definition)
    print(
        f"{len(before) - len(only_before):,} definitions are the same; {len(only_before) + len(only_after)} differ"
    )
    return int(bool(only_before or only_after))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
