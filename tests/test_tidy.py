"""The style has a test of its own: the way of imports, pure protocols, sizes, docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "tracelake"
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [file.relative_to(SOURCE).as_posix() for file in FILES]
PROTOCOLS = [name for name in NAMES if name.endswith("protocol.py")]

LAYERS: list[set[str]] = [
    {"_errors"},
    {"limits", "records", "formats"},
    {"storage", "otlp", "_settings"},
    {"tracking", "shards", "journal", "versions", "search", "testing", "place"},
    {"replicas", "conditions"},
    {"pipeline"},
    {"predicates"},
    {"scan"},
    {"user_tables"},
    {"table"},
    {"view"},
    {"changes"},
    {"branch"},
    {"datasets"},
    {"lake_branches", "lake_datasets", "lake_quarantine", "lake_tables", "lake_upkeep"},
    {"record_checks", "content_checks"},
    {"verify"},
    {"lake"},
    {"doctor"},
    {"__init__"},
    {"spark"},
    {"server"},
    {"cli"},
]
"""Rooms and modules, the lowest first: each imports from layers below it and from itself, never from beside it."""
PART_OF = {"demo": "cli"}
"""A command runs the demo, and the demo runs commands."""

IMPURE = {
    *("os", "io", "sys", "time", "datetime", "random", "secrets", "uuid", "socket", "threading", "asyncio"),
    *("pathlib", "shutil", "tempfile", "subprocess", "sqlite3", "duckdb", "pyarrow", "pyspark", "tantivy"),
    *("tracelake.storage", "tracelake.pipeline", "tracelake.lake"),
}
FILE_MAX_LINES = 400
FUNCTION_MAX_LINES = 70


@cache
def tree(name: str) -> ast.Module:
    """Parse one file of the package."""
    return ast.parse((SOURCE / name).read_text("utf-8"))


def imports(name: str) -> Iterator[str]:
    """Yield the modules that a file imports, anywhere in it; `from a import b` gives `a.b`."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(module: str) -> str:
    """Return the room of a module such as `tracelake.shards.store`; names of the public API are `__init__`."""
    inner = module.split(".")[1:]
    first = PART_OF.get(inner[0], inner[0]) if inner else ""
    return first if first in set.union(*LAYERS) else "__init__"


def level(of: str) -> int:
    """Return the number of a room's layer."""
    return next(number for number, layer in enumerate(LAYERS) if of in layer)


@pytest.mark.parametrize("name", NAMES)
def test_imports_go_one_way(name: str) -> None:
    """A room imports only from layers below its own, and rooms of one layer not one another."""
    own = room("tracelake." + name.removesuffix(".py").replace("/", "."))
    for module in imports(name):
        if module.partition(".")[0] != "tracelake":
            continue
        other = room(module)
        allowed = other == own or level(other) < level(own)
        assert allowed, f"{name} of {own} imports {module} of {other}"


def test_every_room_has_a_layer() -> None:
    """A new room or module is given its place here."""
    rooms = {name.partition("/")[0].removesuffix(".py") for name in NAMES}
    assert rooms == set.union(*LAYERS) | set(PART_OF)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_are_pure(name: str) -> None:
    """Decisions do no I/O and know neither clock nor chance."""
    for module in imports(name):
        parts = module.split(".")
        prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        assert not prefixes & IMPURE, f"{name} imports {module}"
    for node in ast.walk(tree(name)):
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        assert called not in {"open", "print", "input"}, f"{name} calls {called}"


def test_every_protocol_room_has_its_protocol() -> None:
    """The rooms whose decisions PROTOCOLS describes keep them in a file of that name."""
    assert set(PROTOCOLS) >= {
        f"{room}/protocol.py" for room in ("shards", "journal", "versions", "search", "replicas")
    }


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name: str) -> None:
    """Files have at most 400 lines, and functions at most 70, without the functions inside them."""
    assert len((SOURCE / name).read_text("utf-8").splitlines()) <= FILE_MAX_LINES
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = lines_of(node) - sum(map(lines_of, functions_in(node)))
            assert lines <= FUNCTION_MAX_LINES, f"{name}: {node.name} has {lines} lines"


def functions_in(body: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Return the functions that stand in a function."""
    return [node for node in body.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(node: ast.stmt) -> int:
    """Return the number of lines of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("name", NAMES)
def test_docstrings(name: str) -> None:
    """Every module that holds something, and every public class, function and method, says what it is for."""
    module = tree(name)
    missing = [] if not module.body or ast.get_docstring(module) else ["the module"]
    missing += [node.name for node in public(module.body) if not ast.get_docstring(node)]
    assert missing == []


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield public classes and functions, and the methods of the classes, except those that Python calls."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_over(name: str) -> None:
    """No notes to self; and nothing but the command line and the demo writes to standard output by itself."""
    text = (SOURCE / name).read_text("utf-8")
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)
    if name.partition("/")[0] not in {"cli", "demo"}:
        assert not re.search(r"(?<![\w.])print\(", text)
