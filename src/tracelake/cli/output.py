"""Output of the command line: standard streams, consoles, JSON, errors, progress bars and exit codes.

The standard streams may be closed, full, or a pipe whose reader has gone.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import math
import os
import re
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracelake._errors import TracelakeError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import ConsoleOptions, RenderResult

    from tracelake.tasks.runners import Progress

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them

_STANDARD_MAX: Final = 2
"""Highest file descriptor of the standard streams."""


def prepare_streams() -> None:
    """Replace unencodable characters, and redirect closed standard streams to /dev/null.

    Otherwise the next open file, such as a database, would get the descriptor to which libraries print.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_MAX:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  as long as the process
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # the terminal does not know its width, and nothing fits into zero columns
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def ignore_closed_stream(*streams: TextIO) -> bool:
    """Redirect closed pipes among these streams to /dev/null; return whether there was one.

    Otherwise the interpreter would write again when it exits, and complain.
    """
    closed = [_let_go(stream) for stream in streams]  # a list, because each stream must be redirected
    return any(closed)


def _let_go(stream: TextIO) -> bool:
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        return False  # an in-memory stream
    poll = select.poll()
    poll.register(descriptor, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    return True


PIPE_WIDTH_COLUMNS: Final = 160
"""Output width without a terminal and without COLUMNS."""
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class _SafeConsole(Console):
    """A console that strips control characters, because texts from a lake may contain anything."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(several_lines(text), **options)

    def on_broken_pipe(self) -> None:
        """Ignore a closed stderr; raise BrokenPipeError for a closed stdout."""
        if not self.stderr:
            raise  # noqa: PLE0704  it is called while that is handled
        ignore_closed_stream(sys.stderr)


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text literally: no markup, no highlighting, no colour in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH_COLUMNS
    return _SafeConsole(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


class _SafeFormatter(logging.Formatter):
    """A log formatter that writes each message as one safe line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        record.message = plain(record.message)
        return super().formatMessage(record)


@contextmanager
def log_lines() -> Iterator[None]:
    """Write the package's log to standard error during the block, one timestamped line per message."""
    logger = logging.getLogger("tracelake")
    handler = logging.StreamHandler()
    handler.setFormatter(_SafeFormatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def plain(text: str) -> str:
    """Make foreign text safe for a terminal: one line, no escape sequences, no change of direction."""
    return _CONTROL.sub(lambda match: " " if match[0] in "\n\r\t" else repr(match[0])[1:-1], text)


def several_lines(text: str) -> str:
    """Make text of several lines safe for a terminal."""
    return "\n".join(map(plain, text.split("\n")))


def to_json(value: Any) -> Any:
    """Return `value` in plain JSON types, without loss of information.

    Integers beyond 64 bits, and decimals that no double represents, become strings. NaN and infinities become null;
    bytes become base64, times ISO 8601, tuples and sets lists. Map keys and all other values become strings.
    """
    match value:
        case dict():
            return {k if isinstance(k, str) else str(k): to_json(v) for k, v in value.items()}
        case list() | tuple() | set() | frozenset():
            return [to_json(item) for item in value]
        case bool() | int() | float() | Decimal():
            return _number(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
    return value if value is None else str(value)


def _number(value: float | Decimal) -> int | float | str | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    if isinstance(value, int) or value == value.to_integral_value():
        return int(value) if _INT_MIN <= value <= _INT_MAX else str(value)
    return float(value) if Decimal(repr(float(value))) == value else str(value)


def print_json(value: Any) -> None:
    """Write one JSON document and a newline to standard output; an iterator becomes a list, item by item."""
    encode = _encoder(sys.stdout).encode
    if isinstance(value, Iterator):
        sys.stdout.write("[")
        for number, item in enumerate(value):
            written = item if isinstance(item, EncodedJson) else encode(to_json(item))
            sys.stdout.write(", " * bool(number) + written)
        sys.stdout.write("]\n")
    else:
        sys.stdout.write(encode(to_json(value)))
        sys.stdout.write("\n")


def _encoder(stream: TextIO) -> json.JSONEncoder:
    ascii_only = (stream.encoding or "ascii").lower().replace("-", "") != "utf8"
    return json.JSONEncoder(ensure_ascii=ascii_only, allow_nan=False)


class EncodedJson(str):
    """One or more items of a JSON list, separated by commas."""

    __slots__ = ()


def json_rows(table: pa.Table) -> Iterator[dict[str, Any] | EncodedJson]:
    """Yield the rows of an Arrow table for `print_json`, many at once where DuckDB can encode them."""
    texts = None if _encoder(sys.stdout).ensure_ascii else _encoded_rows(table)
    if texts is None:
        yield from iter_rows(table)
    else:
        yield from (EncodedJson(", ".join(some)) for some in texts)


def _encoded_rows(table: pa.Table) -> Iterator[list[str]] | None:
    """Return lists of rows as JSON objects, equal to those of `to_json`, but about 10 times as fast. Return None if
    only `to_json` can encode the table."""
    if not _has_only_plain_maps(table):
        return None
    keys = [
        json.dumps(name, ensure_ascii=False).replace("'", "''")
        for name in with_unique_names(table).column_names
    ]
    names = [f"c{number}" for number in range(len(keys))]
    try:
        values = [_sql_value(name, kind) for name, kind in zip(names, table.schema.types, strict=True)]
    except TypeError:
        return None
    pairs = zip(keys, values, strict=True)
    members = ", ',', ".join(f"'{key}:', coalesce(to_json({value}), 'null')" for key, value in pairs)
    return _select_texts(table.rename_columns(names), f"concat('{{', {members}, '}}')")


def _select_texts(table: pa.Table, expression: str) -> Iterator[list[str]]:
    """Yield lists of the values of an SQL expression over the rows of a table, in order."""
    import duckdb

    with duckdb.connect() as db:
        rows = db.register("result", table).execute(f"SELECT {expression} FROM result")
        while some := rows.fetchmany(_ROWS_CONVERTED):
            yield [text for (text,) in some]


def _sql_value(value: str, kind: pa.DataType) -> str:
    """Return SQL for a value whose JSON in DuckDB is that of `to_json`. Raises TypeError for types without any."""
    from pyarrow import types

    if types.is_float64(kind):
        return f"CASE WHEN isfinite({value}) THEN {value} END"
    if types.is_binary(kind):
        return f"base64({value})"
    if types.is_struct(kind):
        fields = {each.name: _sql_value(f'{value}."{each.name}"', each.type) for each in kind}
        if all(of == f'{value}."{name}"' for name, of in fields.items()):
            return value
        packed = ", ".join(f'"{name}" := {of}' for name, of in fields.items())
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({packed}) END"
    if types.is_list(kind):
        inner = _sql_value("x", kind.value_type)
        return value if inner == "x" else f"list_transform({value}, lambda x: {inner})"
    if types.is_map(kind):
        is_unchanged = types.is_string(kind.key_type) and _sql_value(value, kind.item_type) == value
    else:
        is_unchanged = any(
            check(kind) for check in (types.is_string, types.is_integer, types.is_boolean, types.is_null)
        )
    if not is_unchanged:
        raise TypeError(kind)
    return value


_ROWS_CONVERTED: Final = 2_000
"""Rows that are Python objects at the same time."""


def iter_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow table, with unique column names.

    Maps become dicts. If a map of the table has keys that a dict cannot hold, all maps become lists of pairs.
    """
    table = with_unique_names(table)
    maps: Literal["strict"] | None = "strict" if _has_only_plain_maps(table) else None
    for first in range(0, len(table), _ROWS_CONVERTED):
        yield from table.slice(first, _ROWS_CONVERTED).to_pylist(maps_as_pydicts=maps)


def _has_only_plain_maps(table: pa.Table) -> bool:
    """Return whether all maps of a table can be dicts: no key is repeated, and all are texts or numbers."""
    return all(
        _has_unique_keys(maps) for column in table.columns for chunk in column.chunks for maps in _maps(chunk)
    )


def _maps(array: Any) -> Iterator[Any]:
    """Yield the maps in an Arrow array at any depth."""
    from pyarrow import types

    kind = array.type
    if types.is_map(kind):
        yield array
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        yield from _maps(array.keys.slice(first, last - first))
        yield from _maps(array.items.slice(first, last - first))
    elif types.is_struct(kind):
        for child in array.flatten():
            yield from _maps(child)
    elif types.is_nested(kind):
        yield from _maps(array.flatten())


def _has_unique_keys(maps: Any) -> bool:
    import numpy as np
    from pyarrow import types

    if types.is_nested(maps.type.key_type):
        return False
    offsets = maps.offsets.to_numpy()
    keys = maps.keys.slice(offsets[0], offsets[-1] - offsets[0]).dictionary_encode()
    owners = np.arange(len(maps)).repeat(np.diff(offsets))
    both = owners * (len(keys.dictionary) + 1) + keys.indices.to_numpy()
    return len(np.unique(both)) == len(both)


def with_unique_names(table: pa.Table) -> pa.Table:
    """Rename the columns of an Arrow table: repeated names get the suffixes `_1`, `_2`, …."""
    names: dict[str, None] = {}
    for name in table.column_names:
        unique, count = name, 0
        while unique in names:
            count += 1
            unique = f"{name}_{count}"
        names[unique] = None
    return table.rename_columns(list(names))


def write_table(table: pa.Table, path: Path) -> None:
    """Write an Arrow table to a file; its suffix `.parquet`, `.csv` or `.jsonl` sets the format.

    The file appears complete: it has a temporary name until it is written. Raises UsageError for a column type that
    the format does not have.
    """
    import duckdb
    import pyarrow as pa
    from pyarrow import parquet

    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    table = with_unique_names(table)
    try:
        match path.suffix:
            case ".parquet":
                parquet.write_table(table, partial)
            case ".csv":
                with duckdb.connect() as db:
                    db.from_arrow(table).write_csv(str(partial), header=True)
            case _:
                with partial.open("w", encoding="utf-8") as lines:
                    encode = _encoder(lines).encode
                    rows = _encoded_rows(table) or ([encode(to_json(row))] for row in iter_rows(table))
                    lines.writelines(text + "\n" for some in rows for text in some)
        partial.replace(path)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, duckdb.Error) as error:
        raise UsageError(f"the result cannot be written to {path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def print_error(message: str, *, kind: str, as_json: bool, **more: Any) -> None:
    """Write an error to standard error: one message, or `{"error": {"kind": …, "message": …}}` with extra fields."""
    if as_json:
        with suppress(BrokenPipeError):
            print(json.dumps({"error": {"kind": kind, "message": message, **more}}), file=sys.stderr)
        ignore_closed_stream(sys.stderr)
        return
    line = Text("error: ", style="bold red").append(Text(several_lines(message), style="default"))
    console(stderr=True).print(line, soft_wrap=True)


@contextmanager
def progress_bar() -> Iterator[Callable[[Progress], None] | None]:
    """Yield a callback that shows progress on standard error, or None without a terminal."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=screen, transient=True) as bars:
        task = bars.add_task("starting", total=None, amount="")

        def show(step: Progress) -> None:
            where = "" if step.transaction is None else f" transaction {step.transaction}"
            bars.update(
                task,
                description=f"{step.stage}{where}{f' ({step.engine})' if step.engine else ''}",
                completed=step.done,
                total=step.total or None,
                amount=f"{step.done:,}/{step.total:,} {step.unit}",
            )

        yield show


COLUMN_LEAST: Final = 4
"""Minimum width of a wrappable column, before columns that should not wrap do so too."""


class WrappingTable(Table):
    """A table that never drops a column. In a narrow terminal, its unwrapped columns wrap too."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbroken = [column for column in self.columns if column.no_wrap]
        cells = (max(map(cell_len, map(str, (column.header, *column.cells)))) for column in unbroken)
        wrappable = len(self.columns) - len(unbroken)
        if sum(cells) + wrappable * COLUMN_LEAST + 3 * len(self.columns) > options.max_width:
            for column in unbroken:
                column.no_wrap = False
        yield from Table.__rich_console__(self, console, options)


DONE: Final = 0
FAILED: Final = 1
"""Also the exit code if some input was not ingested, or if a check found something."""
INTERRUPTED: Final = 130
EXIT_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (UsageError, 2),
    (TracelakeError, FAILED),
    (OSError, FAILED),
    (KeyboardInterrupt, INTERRUPTED),
)
"""Exit codes by error class; the first matching row counts. A command line that does not parse is a usage error."""


def exit_code(kind: type[BaseException]) -> int:
    """Return the exit code of an error class."""
    return next(code for base, code in EXIT_CODES if issubclass(kind, base))
