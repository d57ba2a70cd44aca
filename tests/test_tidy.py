"""Style rules: direction of imports, pure protocols, sizes, docstrings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from scripts import figures, imports
from scripts.floors import FLOORS, floor_of

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "tracelake"
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [file.relative_to(SOURCE).as_posix() for file in FILES]
PACKAGES = {"tracelake", "pyspark_tracelake"}
PROTOCOLS = [name for name in NAMES if name.endswith("protocol.py")]

IMPURE = {
    *("os", "io", "sys", "time", "datetime", "random", "secrets", "uuid", "socket", "threading", "asyncio"),
    *("pathlib", "shutil", "tempfile", "subprocess", "sqlite3", "duckdb", "pyarrow", "pyspark", "tantivy"),
    *("tracelake.storage", "tracelake.pipeline", "tracelake.lake.lake"),
}
FILE_MAX_LINES = 700
MODULE_MIN_LINES = 60
SMALL_OR_SINGLE = {
    "archive/archive_pass.py": "the protocol of one pass; its caller is the whole archive",
    **dict.fromkeys(
        [
            f"cli/{name}.py"
            for name in (
                *(
                    "archive",
                    "datasets",
                    "lake",
                    "maintenance",
                    "query",
                    "serve",
                    "transactions",
                    "versions",
                ),
            )
        ],
        "a group of commands, which the application registers",
    ),
    "demo/agent.py": "the agent that the demo runs, readable alone",
    "hot/index.py": "the index of uncommitted spans, large enough for a file",
    **dict.fromkeys(
        [f"limits/{name}.py" for name in ("pipeline", "search", "server", "storage", "tracking")],
        "a section of the limits page",
    ),
    "pipeline/replay.py": "recovery of the open transaction, a question of its own",
    "server/session_page.py": "routes of one page; the application adds them",
    "pipeline/sources/poller.py": "polling of every source, large enough for a file",
    **dict.fromkeys(
        [f"server/{name}.py" for name in ("access", "metrics", "mlflow", "pipeline", "search", "datasets")],
        "routes of one area, which the application includes",
    ),
    "server/admission.py": "a middleware of the application",
    "server/app.py": "the application; only the command that serves it needs it",
    "server/otlp_grpc.py": "a protocol of its own, imported only if it is on",
    "tables/protocol.py": "pure decisions, which a test keeps pure",
    "tables/query_worker.py": "a program that starts without Tracelake",
    "testing/explore.py": "public through the package",
    "versions/committer.py": "the protocol of a commit, large enough for a file",
}
"""Modules below 60 lines, or that one sibling imports: why each is a file."""
FUNCTION_MAX_LINES = 70
PRIVATE_ACCESSES_MAX = 1_087
"""Accesses of tests to private members. Lower it with each one that goes."""


def test_imports_go_one_way() -> None:
    """A package imports only from lower floors, also in functions, for types alone, and by names in strings."""
    upward = []
    for file in imports.files():
        own = imports.room_of(imports.module_of(file))
        for each in imports.imports(file):
            if each.module.partition(".")[0] in PACKAGES:
                other = imports.room_of(each.module)
                if other != own and floor_of(other) >= floor_of(own):
                    upward.append(f"{file} of {own} imports {each.module}")
    assert upward == []


def test_nothing_is_imported_behind_the_back() -> None:
    """A module imported by a computed name is not ours, or is named in the same file."""
    callers = [
        file
        for file in imports.files()
        if re.search(r"import_module|__import__|\bexec\(|\beval\(", imports.text(file))
    ]
    assert callers == ["tracelake/__init__.py"]


def test_every_room_has_one_floor() -> None:
    """Each package is in the table of floors, and each package in the table exists."""
    rooms = {imports.room_of(module) for module in imports.modules()}
    assert sorted(room for floor in FLOORS for room in floor) == sorted(rooms)


def test_no_cycle_but_of_types() -> None:
    """Files import one another without cycles, except for types alone."""
    assert imports.cycle(imports.graph()) == []


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import tracelake.lake.lake", {"tracelake.lake.lake": False}),
        ("from tracelake import limits, Lake", {"tracelake.limits": False, "tracelake": False}),
        ("from tracelake.lake.lake import Lake", {"tracelake.lake.lake": False}),
        ("def run():\n    from pyspark_tracelake import DefaultSource", {"pyspark_tracelake": False}),
        ("if TYPE_CHECKING:\n    from tracelake.lake.lake import Lake", {"tracelake.lake.lake": True}),
        (
            "if typing.TYPE_CHECKING:\n    import os\nelse:\n    import tracelake.lake.lake",
            {"tracelake.lake.lake": False},
        ),
        ("importlib.import_module('tracelake.lake.lake')", {"tracelake.lake.lake": False}),
        ("LAZY = {'Lake': 'tracelake.lake.lake'}", {"tracelake.lake.lake": False}),
        ("command = ['-m', 'tracelake.cli']", {"tracelake.cli": False}),
    ],
)
def test_every_kind_of_import_is_seen(code: str, modules: dict[str, bool]) -> None:
    """The import scanner, which the tests above need, sees each imported module, and whether it is for types alone."""
    found = dict(imports.named_in(ast.parse(code)))
    assert {module: found[module] for module in found if module in imports.modules()} == modules


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({"a": {"b"}, "b": set()}, []),
        ({"a": {"b"}, "b": {"a"}}, ["a", "b", "a"]),
        ({"a": {"b"}, "b": {"c"}, "c": {"b"}}, ["b", "c", "b"]),
    ],
)
def test_a_cycle_is_found(edges: dict[str, set[str]], found: list[str]) -> None:
    """A cycle is reported with all its modules, whichever comes first."""
    cycle = imports.cycle(edges)
    assert (cycle[:1] == cycle[-1:], sorted(set(cycle))) == (True, sorted(set(found)))


def test_protocols_are_pure() -> None:
    """Protocol modules do no I/O and use neither the clock nor random numbers."""
    impure = []
    for name in PROTOCOLS:
        for each in imports.imports(f"tracelake/{name}"):
            parts = each.module.split(".")
            prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
            if prefixes & IMPURE:
                impure.append(f"{name} imports {each.module}")
        for node in ast.walk(imports.tree(f"tracelake/{name}")):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called in {"open", "print", "input"}:
                impure.append(f"{name} calls {called}")
    assert impure == []


def test_every_protocol_room_has_its_protocol() -> None:
    """Packages whose decisions PROTOCOLS describes have them in a file of that name."""
    assert set(PROTOCOLS) >= {
        f"{room}/protocol.py" for room in ("shards", "journal", "versions", "search", "replicas", "tables")
    }


def test_sizes() -> None:
    """Files have at most 700 lines, and functions at most 70, without docstrings and inner functions."""
    large = []
    for name in NAMES:
        if (length := len((SOURCE / name).read_text("utf-8").splitlines())) > FILE_MAX_LINES:
            large.append(f"{name} has {length} lines")
        for node in ast.walk(imports.tree(f"tracelake/{name}")):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = lines_of(node) - sum(map(lines_of, functions_in(node)))
                lines -= lines_of(node.body[0]) if ast.get_docstring(node) else 0
                if lines > FUNCTION_MAX_LINES:
                    large.append(f"{name}: {node.name} has {lines} lines")
    assert large == []


def functions_in(body: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    """Return the functions defined directly in a function."""
    return [node for node in body.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(node: ast.stmt) -> int:
    """Return the number of lines of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_each_small_or_single_module_has_a_reason() -> None:
    """A module below 60 lines, or imported by one sibling only, is in the list above; Alembic's revisions are not."""
    sizes = figures.modules()
    small = {file for file in sizes if sizes[file] < MODULE_MIN_LINES and "/migrations/" not in file}
    found = {file for file in small | set(figures.only_importers()) if not file.endswith(figures.NAMESPACES)}
    assert {file.removeprefix("tracelake/") for file in found} == set(SMALL_OR_SINGLE)
    assert len(SMALL_OR_SINGLE) <= 40


def test_docstrings() -> None:
    """Every module with content, and every public class, function and method, has a docstring."""
    missing = []
    for name in NAMES:
        module = imports.tree(f"tracelake/{name}")
        if module.body and not ast.get_docstring(module):
            missing.append(name)
        missing += [f"{name}: {node.name}" for node in public(module.body) if not ast.get_docstring(node)]
    assert missing == []


def public(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield public classes and functions, and the methods of the classes, except those that Python calls."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body)


def test_nothing_is_left_over() -> None:
    """No code has notes to self, and only the command line and the demo write to standard output directly."""
    strays = []
    for name in NAMES:
        text = (SOURCE / name).read_text("utf-8")
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text):
            strays.append(f"{name} has a note to self")
        if name.partition("/")[0] not in {"cli", "demo"} and re.search(r"(?<![\w.])print\(", text):
            strays.append(f"{name} prints")
    assert strays == []


def test_no_test_forks_itself() -> None:
    """Child processes are new processes, because a fork of a process with threads may crash, even by SIGSEGV.

    `archive/test_kills.py` forks a separate process that has only imported modules.
    """
    pattern = re.compile(r"\b(os\.fork|multiprocessing\.Process)\(")
    assert [
        file.relative_to(TESTS).as_posix()
        for file in sorted(TESTS.rglob("*.py"))
        if file.name not in {"test_kills.py", "test_tidy.py"} and pattern.search(file.read_text("utf-8"))
    ] == []


def test_private_accesses_only_fall() -> None:
    """Tests use what is public; accesses to private members of other objects may only become fewer."""
    assert figures.private_accesses() <= PRIVATE_ACCESSES_MAX


def test_no_class_forwards_by_getattr() -> None:
    """A class lists its attributes: only a module may define `__getattr__`, to import lazily."""
    found = [
        f"{file} {node.name}"
        for file in imports.files()
        for node in ast.walk(imports.tree(file))
        if isinstance(node, ast.ClassDef)
        for each in node.body
        if isinstance(each, ast.FunctionDef) and each.name in {"__getattr__", "__getattribute__"}
    ]
    assert found == []


def test_no_mixin_has_one_user() -> None:
    """A class that is combined with another base by inheritance serves two classes or more."""
    classes = [
        node
        for file in imports.files()
        for node in ast.walk(imports.tree(file))
        if isinstance(node, ast.ClassDef)
    ]
    assert mixins_with_one_user(classes) == []
    example = ast.parse("class One: ...\nclass Two: ...\nclass Three(One, Two): ...\nclass Four(Two): ...")
    assert mixins_with_one_user(list(ast.walk(example))) == ["One"]


def mixins_with_one_user(nodes: Sequence[ast.AST]) -> list[str]:
    """Return the given classes that only one class inherits, together with another of them."""
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    names = {each.name for each in classes}
    bases = [[ast.unparse(base) for base in each.bases if ast.unparse(base) in names] for each in classes]
    users = Counter(base for each in bases for base in each)
    return sorted({base for each in bases if len(each) > 1 for base in each if users[base] == 1})


def test_mutants_are_in_one_directory() -> None:
    """Only `tests/mutants`, which `make mutants` runs, checks that a test notices a broken rule."""
    outside = [
        path.relative_to(TESTS).as_posix()
        for path in sorted(TESTS.rglob("*.py"))
        if TESTS / "mutants" not in path.parents
        and re.search(r"import .*\bassert_caught\b", path.read_text("utf-8"))
    ]
    assert outside == []
