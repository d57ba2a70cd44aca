"""Generate the reference pages that come from code.

`python -m scripts.reference` writes the short pages that are in the repository: tables of commands, errors and limits.
With `--complete DIR`, it also writes pages with the complete help of each command and with every limit, for a release.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
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

All commands and their options. `tracelake COMMAND --help` explains each option and gives examples.

With `--json`, standard output carries exactly one JSON document (`sql` and `search`: a list of objects). An error
writes `{{"error": {{"kind": …, "message": …}}}}` to standard error. On a terminal, long work shows its progress on
standard error.

Exit codes: 0 done; 1 failed; 2 usage; 130 interrupted. Code 1 also means that some input was refused, that `verify`
found damage, or that a check of `doctor` failed. [Errors](errors.md) lists the code of each error.

A commit (`--at`, `REF`) is a branch, a tag, or the first 6 or more digits of a commit id. It can also be `main~3`
(three commits before), `main@17` (transaction 17) or `main@2026-01-01T00:00Z` (the newest commit at that time).
"""

_LIMITS_HEAD: Final = f"""# Limits

{_MADE_BY}

The limits beyond which Tracelake refuses input or a request. They are constants of a release, not settings. All other
limits only divide, delay or truncate work; `src/tracelake/limits` has all of them, with the effect of each.
"""

_COMPLETE_LIMITS_HEAD: Final = f"""# All limits

{_MADE_BY}

Every limit that a user can reach. They are constants of a release, not settings. Other constants are in the modules
that use them.
"""

_ERRORS_HEAD: Final = f"""# Errors

{_MADE_BY}

Every error that Tracelake raises on purpose is a `TracelakeError` and is exported by `tracelake`. Its message says what
happened, to what, and what to do next. The last two columns are the HTTP status and the exit code of a command.

- `NotFoundError`: no object has this name, id or path.
- `StorageError`: a retry may succeed. Over HTTP it is a 503 with `Retry-After`.
- `ContentionError`: the call lost a race. Its size is not the cause.
- `LimitError`: the input is too large. A retry does not help.
"""

_REFUSES: Final = re.compile(r"refused|rejected|\b4\d\d\b|\b503\b|error")
"""The effect of a limit beyond which something is refused."""


def cli_page() -> str:
    """Return the text of cli.md: a table of the commands."""
    rows = [
        f"| `{' '.join(path[1:])}` | {_summary(command)} | {_parameters(command)} |"
        for path, command in _commands(app)
        if path[1:]
    ]
    return "\n".join([_CLI_HEAD, "| command | effect | arguments and options |", "|---|---|---|", *rows, ""])


def _summary(command: Any) -> str:
    """Return the first sentence of a command's help."""
    paragraph = inspect.cleandoc(command.help).split("\n\n", 1)[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


def _parameters(command: Any) -> str:
    """Return the arguments and options of a command, except those that every command has."""
    names = [
        parameter.opts[0] if parameter.param_type_name == "option" else parameter.name.upper()
        for parameter in command.params
        if not {"--lake", "--json", "--help"} & set(parameter.opts)
    ]
    return " ".join(f"`{name}`" for name in names)


def complete_cli_page() -> str:
    """Return the complete help of each command as one page."""
    sections = [f"## `{' '.join(path)}`\n\n```text\n{_help(path)}\n```\n" for path, _ in _commands(app)]
    return _CLI_HEAD + "\n" + "\n".join(sections)


def _commands(root: Typer) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield `tracelake`, then each command below it: the words that call it, and the command."""
    stack: list[tuple[tuple[str, ...], Any]] = [(("tracelake",), get_command(root))]
    yield stack[0]
    while stack:
        path, command = stack.pop()
        below = getattr(command, "commands", {})
        if not below and len(path) > 1:
            yield path, command
        stack += [((*path, name), found) for name, found in reversed(below.items())]


def _help(path: tuple[str, ...]) -> str:
    result = CliRunner().invoke(app, [*path[1:], "--help"], prog_name=path[0], terminal_width=HELP_WIDTH)
    assert result.exit_code == 0, (path, result.output)
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())


def limits_page() -> str:
    """Return the text of limits.md: the limits beyond which something is refused."""
    return _limit_tables(_LIMITS_HEAD, _REFUSES)


def complete_limits_page() -> str:
    """Return a page with every limit."""
    return _limit_tables(_COMPLETE_LIMITS_HEAD, re.compile(""))


def _limit_tables(head: str, effect: re.Pattern[str]) -> str:
    """Return a page with the limits whose effect matches a pattern, a table for each section."""
    lines = [head]
    for section, found in limit_sections():
        rows = [
            f"| `{name}` | {_value(name)} | {bounds} | {beyond} |"
            for name, bounds, beyond in found
            if effect.search(beyond)
        ]
        if rows:
            lines += [
                f"## {section}\n",
                "| limit | value | bounds | beyond it |",
                "|---|---|---|---|",
                *rows,
                "",
            ]
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
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--complete", type=Path, metavar="DIR", help="also write the complete pages there")
    complete: Path | None = parser.parse_args().complete
    targets = [(DOCS / name, make) for name, make in PAGES.items()]
    if complete is not None:
        targets += [(complete / name, make) for name, make in COMPLETE_PAGES.items()]
    for path, make in targets:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = make()
        path.write_text(text, encoding="utf-8")
        print(f"{path}: {len(text.splitlines())} lines")


PAGES: Final[dict[str, Page]] = {
    "reference/cli.md": cli_page,
    "reference/errors.md": errors_page,
    "reference/limits.md": limits_page,
    "internals/README.md": internals_page,
}
"""The generator of each page, by its path below `docs`."""

COMPLETE_PAGES: Final[dict[str, Page]] = {"cli.md": complete_cli_page, "limits.md": complete_limits_page}
"""The generators of the pages that a release has, and the repository has not."""


if __name__ == "__main__":
    main()
