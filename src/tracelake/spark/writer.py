"""Writers into user tables. Tasks write parts; the driver appends and commits once per job or micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tracelake._errors import TableNotFoundError, UsageError
from tracelake.lake.context import LakeContext
from tracelake.spark.options import Options, number, to_arrow
from tracelake.storage import open_objects
from tracelake.tables.spec import TableSpec, check_name, create_spec, make_spec, read_spec, table_names
from tracelake.user_tables.staging import Pieces, RowOrder, stage
from tracelake.user_tables.write import WriteId, check_first, publish


@dataclass
class StagedMessage(WriterCommitMessage):
    """Parts that one task wrote."""

    staged: Pieces


class Writer(DataSourceArrowWriter):
    """Writer of one job. Its parts are unreferenced until `commit`, so a failed job leaves nothing visible."""

    def __init__(
        self,
        told: Options,
        objects_url: str,
        spec: TableSpec,
        epoch: int,
        tombstone: str | None,
        order: RowOrder,
        write_id: WriteId | None,
    ) -> None:
        self._told = told
        self._objects_url = objects_url
        self._spec = spec
        self._epoch = epoch
        self._tombstone = tombstone
        self._order = order
        self._write_id = write_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Write the rows of one task as parts."""
        objects = open_objects(self._objects_url)
        return StagedMessage(stage(objects, self._spec, self._epoch, iterator, self._tombstone, self._order))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append and commit the parts of all tasks, on the driver."""
        self.publish(messages, self._write_id)

    def publish(self, messages: Sequence[WriterCommitMessage | None], write_id: WriteId | None) -> None:
        """Append and commit the parts of tasks, once per `write_id`."""
        staged = [message.staged for message in messages if isinstance(message, StagedMessage)]
        with self._told.opened() as lake:
            if self._spec.name not in table_names(lake.objects):
                check_first(lake.stores, self._spec, staged)
            spec = create_spec(lake.objects, self._spec)
            publish(lake.stores, spec, staged, write_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete nothing. Spark also calls this after a failed commit, when the table may reference the parts.

        Garbage collection deletes unreferenced parts after a day.
        """


class StreamWriter(DataSourceStreamArrowWriter):
    """Writer of one streaming query. A retried micro-batch is written once, even after a crash."""

    def __init__(self, writer: Writer, query: str) -> None:
        self._writer = writer
        self._query = query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # as above
        """Write the rows of one task as parts."""
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Append and commit a micro-batch, on the driver."""
        self._writer.publish(messages, WriteId(self._query, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's
        """Delete nothing, as `Writer.abort`."""


def make_stream_writer(
    told: Options, options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> StreamWriter:
    """Return the writer of a streaming query. Raises UsageError if the options do not allow it."""
    if not (query := options.get("writeId")):
        raise UsageError(
            "a streaming query needs option writeId, a unique name that stays with its checkpoint: it and the "
            "batch number identify a micro-batch, so that each is written once."
        )
    return StreamWriter(make_writer(told, options, schema, overwrite=overwrite), query)


def make_writer(told: Options, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Writer:
    """Return the writer of a frame. Raises UsageError if the options do not allow it."""
    table = told.table
    check_name(table)
    if overwrite:
        raise UsageError(
            f"table {table} cannot be overwritten: use mode append, which replaces rows by key; option tombstone "
            "deletes rows."
        )
    tombstone = options.get("tombstone")
    given_id = options.get("writeId")
    write_id = WriteId(given_id) if given_id is not None else None
    columns = to_arrow(schema)
    if tombstone is not None and tombstone not in columns.names:
        raise UsageError(f"there is no column {tombstone!r} to mark the keys to delete.")
    order = RowOrder(column=options.get("orderBy"))
    if order.column is not None and order.column not in columns.names:
        raise UsageError(f"there is no column {order.column!r} to order rows by.")
    key = tuple(name.strip() for name in options.get("key", "").split(",") if name.strip())
    with told.opened() as lake:
        spec = _spec(lake, table, columns, key, tombstone, number(options, "buckets", lake.config.buckets))
        if tombstone is not None and not spec.key:
            raise UsageError(f"table {table} has no key, so its rows cannot be deleted by key.")
        order.check(spec)
        epoch = lake.shard(table).state().epoch
        return Writer(told, lake.objects.url, spec, epoch, tombstone, order, write_id)


def _spec(
    lake: LakeContext,
    table: str,
    columns: pa.Schema,
    key: tuple[str, ...],
    tombstone: str | None,
    buckets: int,
) -> TableSpec:
    """Return the specification of the table, or that of a new table."""
    try:
        spec = read_spec(lake.objects, table)
    except TableNotFoundError:
        # Spark marks a column of constants as not null, but the next write may contain nulls.
        fields = [pa.field(field.name, field.type) for field in columns if field.name != tombstone]
        return make_spec(table, pa.schema(fields), key, buckets)
    if key and key != spec.key:
        raise UsageError(
            f"the key of table {table} is {', '.join(spec.key) or 'none'}, not {', '.join(key)}; leave option "
            "key out, or choose another table."
        )
    return spec
