"""Writes the pages of docs/ that come from code: `cli.md` from --help, `limits.md` from the limits, and so on."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

from scripts.floors import FLOORS
from tracelake import _errors, limits
from tracelake.cli import app
from tracelake.cli.output import exit_code
from tracelake.server.http_policy import status_of

DOCS: Final = Path(__file__).parent.parent / "docs"
REFERENCE: Final = DOCS / "reference"
INTERNALS: Final = DOCS / "internals" / "README.md"
HELP_WIDTH: Final = 100
Page: TypeAlias = Callable[[], str]
_MADE_BY: Final = "<!-- Made by scripts/reference.py; do not edit. -->"
_FLOORS_BEGIN: Final = "<!-- Made by scripts/reference.py from scripts/floors.py; do not edit. -->"
_FLOORS_END: Final = "<!-- End of the floors. -->"
_UNITS: Final = {
    "BYTES": "bytes",
    "S": "s",
    "CHARS": "characters",
    "ROWS": "rows",
    "SPANS": "spans",
    "REQUESTS": "requests",
    "MIB": "MiB",
    "MS": "ms",
    "HITS": "hits",
    "BATCHES": "batches",
    "EXAMPLES": "examples",
}

_CLI_HEAD: Final = f"""# Command line

{_MADE_BY}

Every command takes `--json`: standard output then carries exactly one JSON document (`sql` and `search`: a list
of objects), and an error writes `{{"error": {{"kind": …, "message": …}}}}` to standard error. Long work shows
its progress on standard error where that is a terminal.

Exit codes: 0 done, 1 failed (also: some of the input could not be taken, `verify` found something, or a check of
`doctor` failed), 2 usage, 130 interrupted; that of each error is in [Errors](errors.md).

Where a command takes a commit (`--at`, `REF`), write a branch or tag, the beginning of a commit's id (6 digits
or more), `main~3` (three before), `main@17` (of transaction 17) or `main@2026-01-01T00:00Z` (the newest by then).
"""

_LIMITS_HEAD: Final = f"""# Limits

{_MADE_BY}

All limits on inputs, queues, retries and waits stand in one place, `src/tracelake/limits`. They are constants
of a release and not settings. The last column says what becomes of what is more, or comes later.
"""

_ERRORS_HEAD: Final = f"""# Errors

{_MADE_BY}

What Tracelake raises on purpose is a `TracelakeError`, and all of these are in `tracelake`. Each message says what
happened, to what, and what to do next. `NotFoundError` catches whatever has no such name, id or path; `StorageError`
whatever a second try may do: over HTTP it is a 503 with `Retry-After`. A `LimitError` stays one however often the same
is tried, so less must be given; a `ContentionError` is a lost race, and never about a size. All can be pickled. The
last two columns are the HTTP status, and what a command ends with.
"""


def cli_page() -> str:
    """Return the text of cli.md."""
    sections = [f"## `{' '.join(path)}`\n\n```text\n{_help(path)}\n```\n" for path in _commands(app)]
    return _CLI_HEAD + "\n" + "\n".join(sections)


def _commands(root: Typer) -> Iterator[tuple[str, ...]]:
    """Yield `tracelake`, then each command below it, as the words that call it."""
    yield ("tracelake",)
    stack: list[tuple[tuple[str, ...], Any]] = [(("tracelake",), get_command(root))]
    while stack:
        path, command = stack.pop()
        below = getattr(command, "commands", {})
        if not below and len(path) > 1:
            yield path
        stack += [((*path, name), found) for name, found in reversed(below.items())]


def _help(path: tuple[str, ...]) -> str:
    result = CliRunner().invoke(app, [*path[1:], "--help"], prog_name=path[0], terminal_width=HELP_WIDTH)
    assert result.exit_code == 0, (path, result.output)
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


def limits_page() -> str:
    """Return the text of limits.md."""
    lines = [_LIMITS_HEAD]
    for section, told in limit_sections():
        lines += [f"## {section}\n", "| limit | value | bounds | beyond it |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {_value(name)} | {bounds} | {beyond} |" for name, bounds, beyond in told]
        lines.append("")
    return "\n".join(lines)


def limit_sections() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield each section of the limits, in order: its heading, and each limit with its bounds and what is beyond."""
    place = Path(limits.__file__).parent
    for node in ast.parse(inspect.getsource(limits)).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            section = ast.parse((place / f"{node.module.rpartition('.')[2]}.py").read_text("utf-8"))
            if told := list(_limits_in(section.body)):
                yield str(ast.get_docstring(section)).rstrip("."), told


def _limits_in(body: list[ast.stmt]) -> Iterator[tuple[str, str, str]]:
    """Yield the constants of a section; the text below one says what it bounds, and what happens beyond it."""
    for node, following in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(following, ast.Expr):
            text = " ".join(str(ast.literal_eval(following.value)).split())
            bounds, _, beyond = text.partition(" Beyond: ")
            yield ast.unparse(node.target), bounds, beyond


def _value(name: str) -> str:
    value = getattr(limits, name)
    unit = "bytes/s" if name.endswith("_BYTES_PER_S") else _UNITS.get(name.rsplit("_", 1)[-1], "")
    if unit == "bytes" and value % limits.MIB == 0:
        return f"{value // limits.MIB:,} MiB"
    return f"{value:,g} {unit}".strip() if isinstance(value, float) else f"{value:,} {unit}".strip()


def errors() -> list[type[_errors.TracelakeError]]:
    """Return the classes of all errors, in the order of their file."""
    return [
        kind
        for kind in vars(_errors).values()
        if isinstance(kind, type) and issubclass(kind, _errors.TracelakeError)
    ]


def errors_tree() -> str:
    """Return the names of all errors as a tree; one of two kinds stands below the first of them."""

    def below(kind: type[BaseException], indent: str) -> Iterator[str]:
        inner = [each for each in errors() if each.__bases__[0] is kind]
        for each in inner:
            last = each is inner[-1]
            yield f"{indent}{'└' if last else '├'}── {each.__name__}"
            yield from below(each, indent + ("    " if last else "│   "))

    return "\n".join(["TracelakeError", *below(_errors.TracelakeError, "")])


def errors_page() -> str:
    """Return the text of errors.md."""
    rows = [
        f"| `{kind.__name__}` | {', '.join(f'`{base.__name__}`' for base in kind.__bases__)} | "
        f"{' '.join(inspect.getdoc(kind).split())} | {status_of(kind)} | {exit_code(kind)} |"  # type: ignore[union-attr]
        for kind in errors()
    ]
    return "\n".join(
        [_ERRORS_HEAD, "| error | is a | says | HTTP | exit code |", "|---|---|---|---|---|", *rows, ""]
    )


def internals_page() -> str:
    """Return the text of the internals' first page, with the floors of the house as they are now."""
    head, _, rest = INTERNALS.read_text(encoding="utf-8").partition(_FLOORS_BEGIN)
    rows = [
        f"| {number} | `{room}` | {what} |"
        for number, rooms in reversed(list(enumerate(FLOORS, 1)))
        for room, what in rooms.items()
    ]
    table = "\n".join(["| floor | room | what it holds |", "|---|---|---|", *rows])
    return f"{head}{_FLOORS_BEGIN}\n\n{table}\n\n{_FLOORS_END}{rest.partition(_FLOORS_END)[2]}"


def main() -> None:
    """Write the pages."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        text = make()
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(text.splitlines())} lines")


PAGES: Final[dict[str, Page]] = {
    "reference/cli.md": cli_page,
    "reference/errors.md": errors_page,
    "reference/limits.md": limits_page,
    "internals/README.md": internals_page,
}
"""What writes each page, by its path below `docs`."""


if __name__ == "__main__":
    main()
