"""The options of format `tracelake`, and the lake that they name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tracelake._errors import UsageError
from tracelake.lake.opened import OpenLake
from tracelake.lake.opening import find_location
from tracelake.tables.changes import Retractions
from tracelake.tables.scan import CHANGE, CHANGED_AT

_CHANGES: Final = {None: Retractions.REFUSE, "all": Retractions.TELL, "insertions": Retractions.LEAVE_OUT}


@dataclass(frozen=True, slots=True)
class Options:
    """What a reader was told; the names of options are the same in any case of letters."""

    lake: str | None
    metadata: str | None
    """Where the metadata of the lake is, if not where it was made."""
    table: str
    at: str
    columns: tuple[str, ...] | None
    where: str | None
    changes: str | None
    """`all` or `insertions`, None for neither."""
    since: str
    """A transaction, or `latest`."""
    transactions_per_batch: int
    """0 for no limit."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Read the options. Raises UsageError."""
        table = options.get("table") or options.get("path")
        if not table:
            raise UsageError('name a table: .load("spans"), .save("mine"), or .option("table", "mine").')
        changes = options.get("changes")
        if changes not in _CHANGES:
            raise UsageError(f"option changes is all or insertions, not {changes!r}.")
        since = options.get("since", "-1")
        if since != "latest":
            number(options, "since", -1)
        return cls(
            options.get("lake"),
            options.get("metadata"),
            table,
            options.get("at", "main"),
            _columns(options),
            options.get("where"),
            changes,
            since,
            number(options, "transactionsPerBatch", 0),
        )

    @property
    def retractions(self) -> Retractions:
        """What becomes of rows that were retracted."""
        return _CHANGES[self.changes]

    def schema_of(self, table: pa.Schema) -> pa.Schema:
        """Return the columns to read. Raises UsageError for one that the table has not."""
        fields = [*table, *((CHANGE, CHANGED_AT) if self.changes == "all" else ())]
        if self.columns is None:
            return pa.schema(fields)
        by_name = {field.name: field for field in fields}
        if unknown := [name for name in self.columns if name not in by_name]:
            raise UsageError(f"table {self.table} has no column {unknown[0]!r}; it has {', '.join(by_name)}.")
        return pa.schema([by_name[name] for name in self.columns])

    @contextmanager
    def opened(self) -> Iterator[OpenLake]:
        """Open the lake, and close it again."""
        with closing(OpenLake(find_location(self.lake, self.metadata))) as lake:
            yield lake


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a whole number. Raises UsageError."""
    text = options.get(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"option {name} is a whole number, not {text!r}.") from error


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return option `columns`: names between commas, or a JSON list where a name holds one."""
    text = options.get("columns")
    if text is None:
        return None
    if text.lstrip().startswith("["):
        return tuple(str(name) for name in json.loads(text))
    return tuple(name.strip() for name in text.split(","))
