"""Generate the reference pages that come from code.

`python -m scripts.reference` writes the short pages that are in the repository: tables of commands, calls,
errors and limits. With `--complete DIR`, it also writes pages with the complete help of each command, each signature
and every limit, for a release.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

import msgspec
from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

import tracelake.spark
import tracelake.testing
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
_FLOORS_END: Final = "<!-- End of the packages. -->"
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

All commands. `tracelake COMMAND --help` explains the options of a command and gives examples; a release has a page with
the help of all.

With `--json`, standard output carries exactly one JSON document (`sql` and `search`: a list of objects). An error
writes `{{"error": {{"kind": …, "message": …}}}}` to standard error. On a terminal, long work shows its progress on
standard error.

Exit codes: 0 done; 1 failed; 2 usage; 130 interrupted. Code 1 also means that some input was refused, that `verify`
found damage, or that a check of `doctor` failed. [Errors](errors.md) lists the code of each error.

A commit (`--at`, `REF`) has [these forms](python.md#commits-by-name).

`tracelake --install-completion` lets the shell complete commands and options. A misspelled one brings similar names.
"""

_LIMITS_HEAD: Final = f"""# Limits

{_MADE_BY}

The limits beyond which Tracelake refuses input or a request. They are constants of a release, not settings. If a value
of a setting is out of bounds, the error names the bound. Time-outs and other limits only divide, delay or truncate
work: `src/tracelake/limits`. The last column has the HTTP status or another effect; if it is empty, what exceeds the
limit is refused.
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

After a `StorageError` a retry may succeed (over HTTP, a 503 with `Retry-After`). After a `LimitError` it does not help.
"""

_PYTHON_HEAD: Final = f"""# Python

{_MADE_BY}

The public API: `import tracelake`, and `tracelake.spark` for Spark sessions. In a call, `…` stands for optional
parameters. `help(tracelake.Lake.search)` shows all parameters, types and errors; a release has a page with all of them.

Names that begin with an underscore, and other modules, may change without notice. Times are nanoseconds since 1970 UTC.
Threads may share a `Lake`, and several processes may open the same lake, also for writing. Use it in a `with` block, or
call `close()`. A lake at `memory://name` ends with its process. `tracelake.testing` runs simulations of concurrent
processes.

## Commits by name

Every read sees one commit. Parameters `at` and `ref` name it:

| `at` | commit |
|---|---|
| `main` | the newest |
| `4f2a91` | by the first 6 or more digits of its id |
| `release-1` | by a tag |
| `main~3` | three before |
| `main@17` | of transaction 17 |
| `main@2026-01-01T00:00Z` | the newest at that time; a date means its first moment, in UTC |
"""

_COMPLETE_PYTHON_HEAD: Final = f"""# Python, all signatures

{_MADE_BY}

Each public call with its parameters and the type of its result, and each record with its fields.
"""

_NOT_PUBLIC: Final = ("hot", "objects", "reads")
"""Attributes of a lake whose methods are for Tracelake itself."""

_COMPLETE_ONLY: Final = ("InProcess", "TaskRunner")
"""Classes for tests and adapters, whose methods only the complete page has."""

_BRIEF: Final = tuple(
    f"lake.{name}"
    for name in (
        *("transactions", "keys", "prices", "sessions", "audit", "archive", "annotations"),
        *("retention", "journal", "sources", "outputs", "quarantine", "maintenance"),
    )
)
"""Sections of the short page without effects: most programs use the command line or HTTP for this work."""

_RECORDS: Final = """## Records

Results are records; `help(tracelake.Hit)` shows the fields of one. All of them: {}.
"""

_SPARK: Final = """## tracelake.spark

`tracelake.spark.register(session)` registers format `tracelake` (`TracelakeSource`) and enables filter pushdown.
"""

_OTHER_TYPES: Final = (
    "tracelake.lake.reads.WorkspaceLake",
    "tracelake.search.vectors.VectorSettings",
    "tracelake.storage.ObjectStore",
    "tracelake.tables.scan.Scan",
)

_PYTHON_TAIL: Final = """## Errors

[Errors](errors.md) has them all. `TracelakeError` catches every one. `NothingToCommitError` has `head`, `ConflictError`
has `paths`, `DamagedRecordsError` has `whole` and `problems`.

## Spark format

Options of format `tracelake`: `lake`, `metadata`, `at`, `columns`, `where`; for
[changes](../how-to/query-with-other-engines.md) `changes`, `since`, `transactionsPerBatch`; for
[writing](../how-to/keep-your-own-tables.md) `key`, `buckets`, `tombstone`, `orderBy`, `writeId`.
"""

_REFUSES: Final = re.compile(r"refused|rejected|\b4\d\d\b|\b503\b|error")
"""The effect of a limit beyond which something is refused."""

_SETTING: Final = re.compile(
    r"Shortest|Smallest|Longest|Largest|Latest|Port number|A quota|.* that setting|.* configured"
    r"|Wait of|Time until|Duration of"
)
"""The meaning of a limit that the short page omits: a bound of a setting, which its error names, or a time-out."""


def cli_page() -> str:
    """Return the text of cli.md: a table of the commands."""
    rows = [
        f"| `{' '.join(path[1:])}` | {_summary(command)} |" for path, command in commands(app) if path[1:]
    ]
    return "\n".join([_CLI_HEAD, "| command | effect |", "|---|---|", *rows, ""])


def _summary(command: Any) -> str:
    """Return the first sentence of a command's help."""
    return _sentence(inspect.cleandoc(command.help))


def complete_cli_page() -> str:
    """Return the complete help of each command as one page."""
    sections = [f"## `{' '.join(path)}`\n\n```text\n{_help(path)}\n```\n" for path, _ in commands(app)]
    return _CLI_HEAD + "\n" + "\n".join(sections)


def commands(root: Typer) -> Iterator[tuple[tuple[str, ...], Any]]:
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
    return _limit_tables(_LIMITS_HEAD, is_complete=False)


def complete_limits_page() -> str:
    """Return a page with every limit."""
    return _limit_tables(_COMPLETE_LIMITS_HEAD, is_complete=True)


def _limit_tables(head: str, *, is_complete: bool) -> str:
    """Return a page with all limits, or with those that refuse data or requests, a table for each section."""
    lines = [head]
    for section, found in limit_sections():
        rows = [
            f"| `{name}` | {_value(name)} | {bounds} | {beyond if is_complete else _answer(beyond)} |"
            for name, bounds, beyond in found
            if is_complete or (_REFUSES.search(beyond) and not _SETTING.match(bounds))
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


def _answer(beyond: str) -> str:
    """Return the effect of a limit for the short page: empty if something is simply refused."""
    if re.fullmatch(r"(it|its span|the call|the path|one more|another) is refused( and named)?\.", beyond):
        return ""
    return beyond.removeprefix("the answer is ")


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


def python_page() -> str:
    """Return the text of python.md: each public call with its effect, without optional parameters and results."""
    return _python_tables(_PYTHON_HEAD, is_complete=False)


def complete_python_page() -> str:
    """Return a page with the signature of each public call, and with the fields of each record."""
    return _python_tables(_COMPLETE_PYTHON_HEAD, is_complete=True)


def _python_tables(head: str, *, is_complete: bool) -> str:
    exports = [getattr(tracelake, name) for name in tracelake.__all__]
    classes = [each for each in exports if isinstance(each, type) and not issubclass(each, Exception)]
    records = [kind for kind in classes if _is_record(kind)]
    lines = [head, "## tracelake\n", *_calls("", filter(inspect.isfunction, exports), is_complete)]
    parts = _parts_of_a_lake()
    others = sorted(
        set(classes) - {*records, tracelake.Lake, *parts.values()}, key=lambda kind: kind.__name__
    )
    for heading, kind in (
        ("Lake", tracelake.Lake),
        *parts.items(),
        *((kind.__name__, kind) for kind in others if is_complete or kind.__name__ not in _COMPLETE_ONLY),
    ):
        about = f"`{kind.__name__}`: {_first_sentence(kind)}{_attributes(kind)}"
        lines += [f"## {heading}\n", f"{about}\n"]
        if not is_complete and heading in _BRIEF:
            lines += [f"{', '.join(_names_of_calls(kind))}.\n"]
        else:
            lines += _calls(kind.__name__, members(kind).values(), is_complete)
    lines += _complete_tail(records) if is_complete else [_RECORDS.format(_names(records)), _SPARK]
    return "\n".join([*lines, "", _PYTHON_TAIL])


def _complete_tail(records: list[type]) -> list[str]:
    """Return the tables of records, and of the names of `tracelake.spark` and `tracelake.testing`."""
    rows = [f"| `{kind.__name__}` | {_fields(kind)} | {_first_sentence(kind)} |" for kind in records]
    return [
        *("## Records\n", "| record | fields | meaning |", "|---|---|---|", *rows),
        *_module_table(tracelake.spark),
        *_module_table(tracelake.testing),
        f"\nOther types of parameters and results: {', '.join(f'`{name}`' for name in _OTHER_TYPES)}.",
    ]


def _names(kinds: Iterable[type]) -> str:
    return ", ".join(f"`{kind.__name__}`" for kind in kinds)


def _module_table(module: ModuleType) -> list[str]:
    """Return a section with the public names of a module."""
    rows = [
        f"| `{name}` | {_first_sentence(getattr(module, name))} |"
        for name in module.__all__
        if name != "DefaultSource"
    ]
    return [f"\n## {module.__name__}\n", "| name | meaning |", "|---|---|", *rows]


@cache
def _parts_of_a_lake() -> dict[str, type]:
    """Return the classes of the public attributes of a lake that have methods, by heading."""
    with tempfile.TemporaryDirectory() as place, tracelake.init(place) as lake:
        lake.hot.set_up()  # a lake without a tracking store has no archive
        named: dict[str, type] = {
            name: type(getattr(lake, name))
            for name, member in members(tracelake.Lake).items()
            if isinstance(member, property | cached_property)
        }
    return {
        f"lake.{name}": kind
        for name, kind in named.items()
        if kind.__module__.startswith("tracelake")
        and name[0] != "_"
        and name not in _NOT_PUBLIC
        and not _is_record(kind)
    }


def _is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)


def members(kind: type) -> dict[str, Any]:
    """Return the public members of one of our classes: methods, properties, fields; None for an attribute."""
    own: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith("tracelake"):
            own |= dict.fromkeys(inspect.get_annotations(each)) | vars(each)
            own |= dict.fromkeys(
                re.findall(r"^ +self\.(\w+)(?:: [^=\n]+)? = ", inspect.getsource(each), re.MULTILINE)
            )
    return {name: member for name, member in own.items() if not name.startswith("_")}


def _attributes(kind: type) -> str:
    names = [f"`{name}`" for name, member in members(kind).items() if member is None]
    return f" Attributes: {', '.join(names)}." if names else ""


def _calls(owner: str, members: Iterable[Any], is_complete: bool) -> list[str]:
    """Return a table of public functions and properties; for the short page, a list."""
    rows = []
    for member in members:
        function = getattr(member, "fget", getattr(member, "func", member))
        if not inspect.isfunction(function) or function.__name__.startswith("_"):
            continue
        is_property = function is not member
        call = _signature if is_complete else _short_call
        text = call(function, is_property=is_property, is_method=bool(owner))
        effect = _first_sentence(function)
        short = f"{re.split('; ' if is_property else '[:;] ', effect)[0].rstrip('.')}."
        rows.append(f"| `{text}` | {effect} |" if is_complete else f"- `{text}`: {short}")
    head = ["| call | effect |", "|---|---|"] if is_complete else []
    return [*head, *rows, ""] if rows else []


def _names_of_calls(kind: type) -> list[str]:
    """Return the public methods of a class as short calls."""
    methods = (member for member in members(kind).values() if inspect.isfunction(member))
    return [f"`{_short_call(method, is_property=False, is_method=True)}`" for method in methods]


def _signature(function: Any, *, is_property: bool, is_method: bool) -> str:
    """Return a call with its defaults and the type of its result, without the types of parameters."""
    signature = inspect.signature(function)
    parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()][is_method:]
    called = "" if is_property else str(inspect.Signature(parameters))
    called = re.sub(r"<function .*? at \w+>", "…", called).replace("'", '"')
    returned = signature.return_annotation
    return f"{function.__name__}{called}" + (
        f" -> {returned}" if returned not in (None, "None") else ""
    ).replace("|", "\\|")


def _short_call(function: Any, *, is_property: bool, is_method: bool) -> str:
    """Return a call with its required parameters; `…` stands for the optional ones."""
    if is_property:
        return str(function.__name__)
    parameters = list(inspect.signature(function).parameters.values())[is_method:]
    names = [
        f"*{each.name}" if each.kind is each.VAR_POSITIONAL else each.name
        for each in parameters
        if each.default is each.empty
    ]
    return f"{function.__name__}({', '.join(names + ['…'] * (len(names) < len(parameters)))})"


def _first_sentence(documented: Any) -> str:
    """Return the first sentence of a docstring."""
    return _sentence(inspect.getdoc(documented) or "")


def _sentence(text: str) -> str:
    """Return the first sentence of a text, for a cell of a table."""
    paragraph = " ".join(text.split("\n\n", 1)[0].split())
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", paragraph)[0].replace("|", "\\|")


def _fields(kind: type) -> str:
    """Return the public fields, properties and methods of a record."""
    names = (f"{name}()" if inspect.isfunction(member) else name for name, member in members(kind).items())
    return ", ".join(f"`{name}`" for name in names)


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
        f"{_first_sentence(kind)} | {status_of(kind)} | {exit_code(kind)} |"
        for kind in errors()
    ]
    return "\n".join(
        [_ERRORS_HEAD, "| error | is a | says | HTTP | exit code |", "|---|---|---|---|---|", *rows, ""]
    )


def internals_page() -> str:
    """Return the text of the internals' first page, with the table of packages and layers."""
    head, _, rest = INTERNALS.read_text(encoding="utf-8").partition(_FLOORS_BEGIN)
    rows = [
        f"| {number} | `{room}` | {what} |"
        for number, rooms in reversed(list(enumerate(FLOORS, 1)))
        for room, what in rooms.items()
    ]
    table = "\n".join(["| layer | package | purpose |", "|---|---|---|", *rows])
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
    "reference/python.md": python_page,
    "internals/README.md": internals_page,
}
"""The generator of each page, by its path below `docs`."""

COMPLETE_PAGES: Final[dict[str, Page]] = {
    "cli.md": complete_cli_page,
    "limits.md": complete_limits_page,
    "python.md": complete_python_page,
}
"""The generators of the pages that a release has, and the repository has not."""


if __name__ == "__main__":
    main()
