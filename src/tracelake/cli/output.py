"""What goes to standard output and standard error: consoles, JSON, errors."""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from tracelake.cli.streams import let_go

if TYPE_CHECKING:
    import pyarrow as pa

PIPE_WIDTH_COLUMNS: Final = 160
"""Width of what is written where there is no terminal to ask and COLUMNS is not set."""
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class _SafeConsole(Console):
    """A console that no text can steer: what a sentence repeats of a lake may hold anything."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(several_lines(text), **options)

    def on_broken_pipe(self) -> None:
        """Go on where nobody hears how the work goes; where nobody reads what comes of it, raise BrokenPipeError."""
        if not self.stderr:
            raise  # noqa: PLE0704  it is called while that is handled
        let_go(sys.stderr)


def console(*, stderr: bool = False) -> Console:
    """Return a console that takes text as it is: no markup, no guessing of colours, no colour in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH_COLUMNS
    return _SafeConsole(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


class _SafeFormatter(logging.Formatter):
    """Writes a message as one line, whatever is in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        record.message = plain(record.message)
        return super().formatMessage(record)


@contextmanager
def log_lines() -> Iterator[None]:
    """Write what the package logs to standard error until the end of the block, a line each with its time."""
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
    """Make text from outside safe for a terminal: one line, no escape sequences, no change of direction."""
    return _CONTROL.sub(lambda match: " " if match[0] in "\n\r\t" else repr(match[0])[1:-1], text)


def several_lines(text: str) -> str:
    """Do the same for text of several lines."""
    return "\n".join(map(plain, text.split("\n")))


def to_json(value: Any) -> Any:
    """Return `value` in plain JSON types, without loss where JSON has none.

    Integers beyond 64 bits, and decimals that no double holds, become strings; NaN and infinities null;
    bytes base64; times ISO 8601; tuples and sets lists; keys of maps, and
    anything else, strings.
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
    """Write one JSON document and a newline to standard output."""
    ascii_only = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    json.dump(to_json(value), sys.stdout, ensure_ascii=ascii_only, allow_nan=False)
    sys.stdout.write("\n")


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table; of columns with one name, the later ones get `_1`, `_2`, …."""
    names: list[str] = []
    for name in table.column_names:
        unique, count = name, 0
        while unique in names:
            count += 1
            unique = f"{name}_{count}"
        names.append(unique)
    table = table.rename_columns(names)
    try:
        return table.to_pylist(maps_as_pydicts="strict")
    except (TypeError, KeyError, ValueError):
        return table.to_pylist()  # keys of a map that no dict can hold: as a list of pairs


def print_error(message: str, *, kind: str, as_json: bool, **more: Any) -> None:
    """Write an error to standard error: one message, or `{"error": {"kind": …, "message": …}}` with what is more."""
    if as_json:
        with suppress(BrokenPipeError):
            print(json.dumps({"error": {"kind": kind, "message": message, **more}}), file=sys.stderr)
        let_go(sys.stderr)
        return
    line = Text("error: ", style="bold red").append(Text(several_lines(message), style="default"))
    console(stderr=True).print(line, soft_wrap=True)
