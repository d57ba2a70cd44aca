"""Each limit has a unit, is used, and states its effect; no call or default has a literal bound."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from scripts.reference import limit_sections
from tracelake import limits

SOURCE = Path(__file__).resolve().parents[1] / "src"
LIMITS = sorted(Path(limits.__file__).parent.glob("*.py"))
LIMITS_TEXT = "".join(file.read_text("utf-8") for file in LIMITS)
FILES = [
    file
    for file in sorted(SOURCE.rglob("*.py"))
    if file not in LIMITS and "testing" not in file.parts  # a simulation has separate limits
]
NAMES = [name for name in vars(limits) if name.isupper() and name != "MIB"]

BOUNDING = {
    *("chunk_size", "ge", "le", "lt", "gt", "max_length", "max_size", "max_workers", "maxsize", "interval"),
    *("timeout", "limit", "interval_s", "timeout_s", "within_s", "heap_mb", "backlog", "min", "max"),
}
"""Names of arguments that are bounds."""
BOUNDING_CALLS = {"min", "max", "islice"}
"""Functions whose arguments are bounds."""
NAME_CHARS = 33
"""Minimum end of a slice that bounds a text; shorter slices are digits of hashes and ids, or parts of a format."""
EXCUSED = {
    "tracelake/tasks/backoff.py": {"32"},
    "tracelake/cli/render.py": {"0.001"},
    "tracelake/cli/query.py": {"10"},
    "tracelake/storage/sqlite.py": {"64", "68", "72"},
    "tracelake/otlp/values.py": {"-2 ** 63", "2 ** 63 - 1", "-2 ** 31", "2 ** 31 - 1", "2 ** 32 - 1"},
    "tracelake/demo/agent.py": {"5"},
}
"""Exponents that keep a pause finite, a nonzero divisor, a column's width, offsets in the header of SQLite. Also
widths of integers in protobuf, and the passages that the demo's agent reads."""


@cache
def tree(file: Path) -> ast.Module:
    """Parse one file."""
    return ast.parse(file.read_text("utf-8"))


def number(node: ast.expr | None) -> float | None:
    """Return the value of an expression of numbers alone, otherwise None."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = number(operand)
            return None if positive is None else -positive
        case ast.BinOp(left=left, right=right) if None not in (number(left), number(right)):
            return float(eval(compile(ast.Expression(node), "", "eval")))
    return None


def is_bound(value: float | None) -> bool:
    """Return whether a number may be a limit; 0, 1, 2 and their negatives are more likely shapes."""
    return value is not None and (abs(value) > 2 or value != int(value))


def test_every_limit_says_what_it_bounds_and_what_happens_beyond() -> None:
    """Each constant has a docstring that states what it bounds, and after "Beyond:" what happens."""
    rows = [limit for _, section in limit_sections() for limit in section]
    assert [name for name, _, _ in rows] == NAMES
    assert [
        name for name, bounds, beyond in rows if not (bounds.endswith(".") and beyond.endswith("."))
    ] == []


def test_every_limit_bounds_something() -> None:
    """Every limit is used."""
    nodes = [node for file in [*FILES, *LIMITS] for node in ast.walk(tree(file))]
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert set(NAMES) - used == set()


def test_no_call_has_a_literal_bound() -> None:
    """No call, pause, slice or default of an argument has a literal bound: each bound is a named constant."""
    strays = [
        f"{file.relative_to(SOURCE)}:{line}: {bound}"
        for file in FILES
        for bound, line in bounds_in_calls(file)
    ]
    assert strays == []


def bounds_in_calls(file: Path) -> Iterator[tuple[str, int]]:
    """Yield bounding arguments and pauses that are literal numbers: in calls, and as defaults of functions."""
    known = EXCUSED.get(file.relative_to(SOURCE).as_posix(), set())
    for node in ast.walk(tree(file)):
        for name, value in arguments(node):
            if name in BOUNDING and is_bound(number(value)) and ast.unparse(value) not in known:
                yield f"{name}={ast.unparse(value)}", value.lineno


def arguments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield name and value of the arguments of a call or a function, and ends of slices, under a bounding name."""
    if isinstance(node, ast.Call):
        yield from ((keyword.arg or "", keyword.value) for keyword in node.keywords)
        called = ast.unparse(node.func)
        if called == "time.sleep":
            yield "timeout", node.args[0]
        elif called in BOUNDING_CALLS:
            yield from (("limit", argument) for argument in node.args)
    elif isinstance(node, ast.Slice) and node.upper is not None:
        end = number(node.upper)
        if end is not None and end >= NAME_CHARS:
            yield "limit", node.upper
    elif isinstance(node, ast.arguments):
        last = [*node.posonlyargs, *node.args][len(node.posonlyargs) + len(node.args) - len(node.defaults) :]
        values = [*node.defaults, *node.kw_defaults]
        for argument, value in zip([*last, *node.kwonlyargs], values, strict=True):
            if value is not None:
                yield argument.arg, value


def test_every_exception_exists() -> None:
    """Each file in the table of exceptions contains its exceptions."""
    assert [name for name, numbers in EXCUSED.items() if not numbers <= literals(SOURCE / name)] == []


def literals(file: Path) -> set[str]:
    """Return the numbers of a file, as code."""
    return {ast.unparse(node) for node in ast.walk(tree(file)) if isinstance(node, ast.expr) and number(node)}


def test_bounds_are_seen() -> None:
    """The helpers of the test above find bounds."""
    for code, strays in {
        "time.sleep(0.3)": 1,
        "time.sleep(PAUSE_S)": 0,
        "min(size, 4096)": 1,
        "islice(rows, 2 ** 10)": 1,
        "text[:40]": 1,
        "digest[:16]": 0,
        "def wait(timeout_s: float = 5.0): pass": 1,
        "Queue(maxsize=1)": 0,
        "Option(min=0.01)": 1,
    }.items():
        found = [(name, value) for node in ast.walk(ast.parse(code)) for name, value in arguments(node)]
        assert sum(name in BOUNDING and is_bound(number(value)) for name, value in found) == strays, code


def test_a_limit_has_its_unit() -> None:
    """A limit that is not an integer counts seconds, milliseconds, MB or a share; one given in MiB counts bytes."""
    for name in NAMES:
        fraction = isinstance(getattr(limits, name), float)
        assert not fraction or name.endswith(("_S", "_MS", "_MB")) or "_SHARE" in name, name
        in_mib = re.search(rf"^{name}: Final = .*\bMIB$", LIMITS_TEXT, flags=re.MULTILINE)
        assert in_mib is None or "_BYTES" in name, name
