"""Readers of tables at one commit, and of change streams.

A task reads one part or several small ones, and yields Arrow batches. The offsets of a stream are transactions, so a
restarted query reads the same batches again.
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
    """Input of one task."""

    scan: Scan


class Reader(DataSourceReader):
    """Reader of one query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow(schema)
        self._where = options.where

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks, without parts that cannot contain a matching row."""
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
    """Reader with filter pushdown, for sessions that enable it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Use Spark's filters to skip rows. Return all of them, so that Spark applies them again by its own rules."""
        pushed = condition_of(filters)
        both = [condition(each) for each in (self._where, pushed) if each]
        self._where = " and ".join(both) or None
        return filters


def change_partitions(
    log: ChangeLog, after: int, until: int, retractions: Retractions
) -> list[InputPartition]:
    """Return the tasks for changes after `after`, up to `until`."""
    return [ScanPartition(split) for scan in log.scans(after, until, retractions) for split in scan.splits()]


def read_scan(partition: InputPartition, schema: pa.Schema, where: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition with the columns and types of Spark's schema."""
    if isinstance(partition, ScanPartition):  # Spark passes an empty partition if there is nothing to read
        for batch in partition.scan.batches(schema.names, where):
            yield batch.cast(schema)


_OFFSET = "transaction"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a change stream: the driver plans micro-batches, and tasks read them. An offset is a batch's last
    transaction."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow(schema)
        self._last: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the start offset of a new query: transaction `since`."""
        since = self._options.since
        return {_OFFSET: self._newest() if since == "latest" else int(since)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Return the limit of a micro-batch. Spark has no limit on transactions, so the number of files stands for
        it."""
        limit = self._options.transactions_per_batch
        return ReadMaxFiles(limit) if limit > 0 else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the last transaction of the next micro-batch."""
        newest = self._newest() if self._last is None else self._last
        if isinstance(limit, ReadMaxFiles):
            newest = min(newest, start[_OFFSET] + limit.max_files)
        return {_OFFSET: max(newest, start[_OFFSET])}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix the end of this run; it ignores later changes."""
        self._last = self._newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks for changes after `start`, up to `end`."""
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
