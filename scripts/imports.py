"""Every import that the code makes, and the graph of them: `python -m scripts.imports` prints its figures.

Imports inside functions count, and so do modules that are named in strings, as those of `import_module` or of
`python -m` are. Imports for types alone are told apart: they tie no module to another when the code runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).resolve().parents[1] / "src"
PACKAGE: Final = "tracelake"


@dataclass(frozen=True, slots=True)
class Import:
    """One import: the file that makes it, and the module that it names."""

    file: str
    """Below `src`, such as `tracelake/lake/lake.py`."""
    module: str
    typing_only: bool


@cache
def files() -> tuple[str, ...]:
    """Return the files of all packages, as paths below `src`."""
    return tuple(sorted(file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py")))


@cache
def modules() -> Mapping[str, str]:
    """Return the file of each module, by the module's name."""
    return {module_of(file): file for file in files()}


@cache
def tree(file: str) -> ast.Module:
    """Parse one file."""
    return ast.parse(text(file))


def module_of(file: str) -> str:
    """Return the name of the module in a file."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def room_of(module: str) -> str:
    """Return the room of one of our modules: a package or a module of the package, or a package beside it."""
    first, _, inner = module.partition(".")
    return first if first != PACKAGE else inner.partition(".")[0] or "__init__"


@cache
def text(file: str) -> str:
    """Return the text of one file."""
    return (SOURCE / file).read_text("utf-8")


@cache
def imports(file: str) -> tuple[Import, ...]:
    """Return all imports of a file, and the modules of ours that strings in it name."""
    return tuple(Import(file, module, typing_only) for module, typing_only in named_in(tree(file)))


def named_in(module: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield the modules that code names, and whether for types alone."""
    for node, typing_only in _nodes(module):
        for name in _named(node):
            yield name, typing_only


def arrows() -> list[Import]:
    """Return the imports of one of our modules by another one."""
    return [each for file in files() for each in imports(file) if each.module in modules()]


def _nodes(node: ast.AST, typing_only: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all nodes below, and whether only a type checker reads them."""
    only_here = node.body if isinstance(node, ast.If) and _is_typing(node) else []
    for child in ast.iter_child_nodes(node):
        only = typing_only or child in only_here
        yield child, only
        yield from _nodes(child, only)


def _is_typing(node: ast.If) -> bool:
    return ast.unparse(node.test).rpartition(".")[2].lstrip("_") == "TYPE_CHECKING"


def _named(node: ast.AST) -> Iterator[str]:
    """Yield the modules that a node names."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names):
            assert node.level == 0, f"{module}: imports are absolute"
            for alias in names:
                inner = f"{module}.{alias.name}"
                yield inner if inner in modules() or module not in modules() else str(module)
        case ast.Constant(value=str(text)) if text in modules() and "." in text:
            yield text


def graph(typing_too: bool = False) -> dict[str, set[str]]:
    """Return the files that each file imports."""
    found: dict[str, set[str]] = {file: set() for file in files()}
    for arrow in arrows():
        if (typing_too or not arrow.typing_only) and modules()[arrow.module] != arrow.file:
            found[arrow.file].add(modules()[arrow.module])
    return found


def rooms_graph() -> dict[str, set[str]]:
    """Return the rooms that each room imports from, for types too."""
    found: dict[str, set[str]] = {room_of(module): set() for module in modules()}
    for arrow in arrows():
        own, other = room_of(module_of(arrow.file)), room_of(arrow.module)
        if own != other:
            found[own].add(other)
    return found


def cycle(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """Return one cycle of a graph, its first node again at its end; empty where there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])[::-1]
    return []


def heights(edges: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return the floor of each node of a graph without cycles: 1 where it imports nothing, else above all that."""
    height: dict[str, int] = {}
    for node in TopologicalSorter(edges).static_order():
        height[node] = 1 + max((height[other] for other in edges[node]), default=0)
    return height


def main(_args: Sequence[str] = ()) -> None:
    """Print the figures of the graph."""
    edges, rooms = graph(), rooms_graph()
    print(f"{len(files())} files, {sum(map(len, edges.values()))} imports of one another, {len(rooms)} rooms")
    print(f"{sum(map(len, rooms.values()))} arrows between rooms")
    for what, found in (
        ("files", cycle(edges)),
        ("files, types too", cycle(graph(True))),
        ("rooms", cycle(rooms)),
    ):
        print(f"cycle of {what}: {' -> '.join(found) or 'none'}")
    if not cycle(rooms):
        height = heights(rooms)
        for floor in range(max(height.values()), 0, -1):
            print(f"{floor:3} {', '.join(sorted(room for room in rooms if height[room] == floor))}")


if __name__ == "__main__":
    main()
