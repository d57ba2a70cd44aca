"""Stream the changes of a table. Offsets are transactions, so a restarted query reads the same batches again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tracelake.spark.options import Options
from tracelake.spark.reading import change_partitions, read_scan
from tracelake.spark.types import to_arrow

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
