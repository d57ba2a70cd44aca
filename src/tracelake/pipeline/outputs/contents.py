"""What an output gets of a transaction: the new spans as OTLP, or the changes of a table, each row with its sign."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.otlp.encode import encode
from tracelake.otlp.schema import SPANS
from tracelake.scratch import scratch_directory
from tracelake.shards.model import Batch
from tracelake.shards.parts import check_part
from tracelake.shards.store import EMPTY, Shard
from tracelake.storage import KeyValueStore, LocalFiles, ObjectStore
from tracelake.tables.built_in import BUILT_IN, TABLE_SPANS, BuiltInTable
from tracelake.tables.changes import ChangeLog, Retractions
from tracelake.tables.scan import CHANGE, Scan


class Content(Protocol):
    """The rows of a transaction, as messages have them."""

    shard: Shard
    """The table that they are read from."""

    def rows(self, batch: Batch) -> int:
        """Return how many rows a transaction has."""
        ...

    def tables(self, batch: Batch) -> Iterator[pa.Table]:
        """Yield them."""
        ...

    def encode(self, rows: pa.Table) -> bytes:
        """Return the message of some."""
        ...

    def name(self, row: pa.Table) -> str:
        """Say which row it is, in a table of one."""
        ...


class NewSpans:
    """The spans that are new, as OTLP `TracesData` in protobuf."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self.shard = Shard(TABLE_SPANS.name, key_value, objects)
        self._objects = objects

    def rows(self, batch: Batch) -> int:
        """See `Content`."""
        return sum(part.rows for part in batch.parts)

    def tables(self, batch: Batch) -> Iterator[pa.Table]:
        """See `Content`."""
        with scratch_directory("output") as folder:
            files = LocalFiles(self._objects, folder)
            for part in batch.parts:
                file = files.file(part.path)
                check_part(file, part)
                with pq.ParquetFile(file) as opened:
                    for group in range(opened.num_row_groups):
                        yield (
                            opened.read_row_group(group, columns=SPANS.names).select(SPANS.names).cast(SPANS)
                        )

    def encode(self, rows: pa.Table) -> bytes:
        """See `Content`."""
        return encode(rows).SerializeToString(deterministic=True)

    def name(self, row: pa.Table) -> str:
        """See `Content`."""
        return f"span {row['span_id'][0]} of trace {row['trace_id'][0]}"


class TableChanges:
    """The rows of a built-in table that were inserted or retracted, as lines of JSON."""

    def __init__(self, table: str, key_value: KeyValueStore, objects: ObjectStore, buckets: int) -> None:
        self._table: BuiltInTable = BUILT_IN[table]
        self.shard = Shard(table, key_value, objects)
        self._url = objects.url
        self._buckets = buckets

    def rows(self, batch: Batch) -> int:
        """See `Content`."""
        return sum(part.rows for part in (*batch.parts, *batch.retractions))

    def tables(self, batch: Batch) -> Iterator[pa.Table]:
        """See `Content`: what was retracted first, so that who follows never has two rows of one key."""
        with scratch_directory("output") as folder:
            log = ChangeLog(self._table.name, _no_view, self.shard)
            like = Scan(self._url, str(folder), self._table.layout(self._buckets), EMPTY)
            scans = log.scans_like(like, batch.lower - 1, batch.upper - 1, Retractions.TELL)
            for scan in reversed(scans):
                for rows in scan.batches():
                    yield pa.Table.from_batches([rows])

    def encode(self, rows: pa.Table) -> bytes:
        """See `Content`."""
        lines = (json.dumps(row, ensure_ascii=False, default=_as_text) for row in _plain(rows))
        return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")

    def name(self, row: pa.Table) -> str:
        """See `Content`."""
        key = ", ".join(f"{column} {row[column][0]}" for column in self._table.key)
        return f"{'new' if row[CHANGE.name][0].as_py() > 0 else 'old'} row {key} of table {self._table.name}"


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    try:
        return rows.to_pylist(maps_as_pydicts="strict")
    except (KeyError, ValueError, pa.ArrowException):
        return rows.to_pylist()  # keys of a map that no object can hold: as a list of pairs


def _as_text(value: object) -> str:
    assert isinstance(value, bytes), f"a column of {type(value).__name__}"
    return base64.b64encode(value).decode()


def _no_view() -> Any:
    raise AssertionError("what is published now is in no commit")
