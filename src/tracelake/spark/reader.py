"""Read a table as of one commit: each task reads one part, or some small ones, and yields Arrow batches.

Stream the changes of a table. Offsets are transactions, so a restarted query reads the same batches again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tracelake.spark.options import Options, condition_of, to_arrow
from tracelake.tables.changes import ChangeLog, Retractions
from tracelake.tables.predicates import condition
from tracelake.tables.scan import Scan


@dataclass
class ScanPartition(InputPartition):
    """What one task reads."""

    scan: Scan


class Reader(DataSourceReader):
    """Plans and reads one query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow(schema)
        self._where = options.where

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: none for parts that cannot hold a wanted row."""
        with self._options.opened() as lake:
            name, at = self._options.table, self._options.at
            lake.hold(name)
            if self._options.changes is not None:
                until = lake.view(at).time_of(name)
                since = until if self._options.since == "latest" else int(self._options.since)
                return change_partitions(lake.change_log(name), since, until, self._options.retractions)
            table = lake.view(at).table(name)
            return [ScanPartition(scan) for scan in table.splits(self._where)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_scan(partition, self._schema, self._where)


class FilteringReader(Reader):
    """A reader that is told Spark's filters, where Spark's configuration lets it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Leave out what no filter asks for; Spark applies all of them again, by its own rules."""
        pushed = condition_of(filters)
        both = [condition(each) for each in (self._where, pushed) if each]
        self._where = " and ".join(both) or None
        return filters


def change_partitions(
    log: ChangeLog, after: int, until: int, retractions: Retractions
) -> list[InputPartition]:
    """Return the tasks of the changes later than `after`, up to `until`."""
    return [ScanPartition(split) for scan in log.scans(after, until, retractions) for split in scan.splits()]


def read_scan(partition: InputPartition, schema: pa.Schema, where: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition with the columns and types that Spark was told of."""
    if isinstance(partition, ScanPartition):  # Spark makes an empty one where there is nothing to read
        for batch in partition.scan.batches(schema.names, where):
            yield batch.cast(schema)


_OFFSET = "transaction"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver; tasks read them. An offset is the last transaction of a batch."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow(schema)
        self._last: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return where a new query begins: after transaction `since`."""
        since = self._options.since
        return {_OFFSET: self._newest() if since == "latest" else int(since)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Return the limit of one micro-batch; Spark has no word for transactions."""
        limit = self._options.transactions_per_batch
        return ReadMaxFiles(limit) if limit > 0 else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the last transaction to read now."""
        newest = self._newest() if self._last is None else self._last
        if isinstance(limit, ReadMaxFiles):
            newest = min(newest, start[_OFFSET] + limit.max_files)
        return {_OFFSET: max(newest, start[_OFFSET])}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Remember what is there now; later changes are for another run."""
        self._last = self._newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the changes later than `start`, up to `end`."""
        with self._options.opened() as lake:
            lake.hold(self._options.table)
            log = lake.change_log(self._options.table)
            return change_partitions(log, start[_OFFSET], end[_OFFSET], self._options.retractions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_scan(partition, self._schema, self._options.where)

    def _newest(self) -> int:
        with self._options.opened() as lake:
            return lake.change_log(self._options.table).newest()
