"""PySpark data source: schema, readers and writers.

Readers read tables at one commit, or change streams. A task reads one part or several small ones, and yields Arrow
batches. The offsets of a stream are transactions, so a restarted query reads the same batches again.

Writers write into user tables. Tasks write parts; the driver appends and commits once per job or micro-batch.

Spark has no unsigned integers, so they become the next wider signed type. Spark's filters become a DuckDB condition;
Spark itself applies a filter without a translation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tracelake._errors import TableNotFoundError, UsageError
from tracelake.context import LakeContext
from tracelake.lake.lake import find_location
from tracelake.shards.rows import literal, quoted
from tracelake.storage import open_objects
from tracelake.tables.changes import ChangeLog, Retractions
from tracelake.tables.predicates import condition
from tracelake.tables.scan import CHANGE, CHANGED_AT, Scan
from tracelake.tables.spec import TableSpec, check_name, create_spec, make_spec, read_spec, table_names
from tracelake.user_tables.staging import Pieces, RowOrder, stage
from tracelake.user_tables.write import WriteId, check_first, publish

_CHANGES: Final = {None: Retractions.REFUSE, "all": Retractions.MARK, "insertions": Retractions.LEAVE_OUT}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a reader or writer; their names are case-insensitive."""

    lake: str | None
    metadata: str | None
    """Location of the lake's metadata, if it has moved since the lake was created."""
    table: str
    at: str
    columns: tuple[str, ...] | None
    where: str | None
    changes: str | None
    """`all`, `insertions` or None."""
    since: str
    """Transaction number, or `latest`."""
    transactions_per_batch: int
    """0 means no limit."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Options:
        """Parse the options. Raises UsageError if no table is named or an option is invalid."""
        table = options.get("table") or options.get("path")
        if not table:
            raise UsageError('name a table: .load("spans"), .save("mine"), or .option("table", "mine").')
        changes = options.get("changes")
        if changes not in _CHANGES:
            raise UsageError(f"option changes must be all or insertions, not {changes!r}.")
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
        """Treatment of retracted rows."""
        return _CHANGES[self.changes]

    def schema_of(self, table: pa.Schema) -> pa.Schema:
        """Return the columns to read. Raises UsageError for an unknown column."""
        fields = [*table, *((CHANGE, CHANGED_AT) if self.changes == "all" else ())]
        if self.columns is None:
            return pa.schema(fields)
        by_name = {field.name: field for field in fields}
        if unknown := [name for name in self.columns if name not in by_name]:
            raise UsageError(f"table {self.table} has no column {unknown[0]!r}; it has {', '.join(by_name)}.")
        return pa.schema([by_name[name] for name in self.columns])

    @contextmanager
    def opened(self) -> Iterator[LakeContext]:
        """Open the lake for the time of a block."""
        with closing(LakeContext(find_location(self.lake, self.metadata))) as lake:
            yield lake


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an integer option. Raises UsageError if it is no integer."""
    text = options.get(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"option {name} must be a whole number, not {text!r}.") from error


def _columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """Parse option `columns`: names separated by commas, or a JSON list for names with commas."""
    text = options.get("columns")
    if text is None:
        return None
    if text.lstrip().startswith("["):
        return tuple(str(name) for name in json.loads(text))
    return tuple(name.strip() for name in text.split(","))


_WIDER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def to_spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark columns of an Arrow schema. All are nullable, as in every Spark source."""
    return from_arrow_schema(pa.schema([pa.field(field.name, _signed(field.type)) for field in schema]))


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that a task must yield for these Spark columns."""
    return to_arrow_schema(schema, timezone="UTC")


def _signed(kind: pa.DataType) -> pa.DataType:
    if kind in _WIDER:
        return _WIDER[kind]
    if isinstance(kind, pa.StructType):
        return pa.struct([_signed_field(kind.field(number)) for number in range(kind.num_fields)])
    if isinstance(kind, pa.MapType):
        return pa.map_(_signed(kind.key_type), _signed(kind.item_type))
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return pa.list_(_signed_field(kind.value_field))
    return kind


def _signed_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, _signed(field.type))


_OPERATORS: Final[dict[type[Filter], str]] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def condition_of(filters: Iterable[Filter]) -> str | None:
    """Return a condition that holds for every row that passes all filters, or None if no filter has a translation."""
    return " and ".join(filter(None, map(_sql, filters))) or None


def _sql(condition: Filter) -> str | None:
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1:
        return None  # a field of a struct, or a negation
    column = quoted(attribute[0])
    if isinstance(condition, IsNull | IsNotNull):
        return f"{column} is {'null' if isinstance(condition, IsNull) else 'not null'}"
    if isinstance(condition, StringStartsWith):
        prefix = _constant(condition.value)
        return prefix and f"starts_with({column}, {prefix})"
    if isinstance(condition, In):
        options = [_constant(value) for value in condition.value]
        return f"{column} in ({', '.join(map(str, options))})" if options and None not in options else None
    operator, value = _OPERATORS.get(type(condition)), _constant(getattr(condition, "value", None))
    return None if operator is None or value is None else f"{column} {operator} {value}"


def _constant(value: object) -> str | None:
    if isinstance(value, str) and "\0" not in value:
        return literal(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


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
    """Return Spark's input partitions for the changes of the transactions in (`after`, `until`].

    `retractions` says what happens to retracted rows.
    """
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
            with self._options.opened() as lake:
                first_end = lake.change_log(self._options.table).first_end(start[_OFFSET])
            newest = min(newest, max(start[_OFFSET] + limit.max_files, first_end))
        return {_OFFSET: max(newest, start[_OFFSET])}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix the end of this run at the newest transaction; the run ignores later changes."""
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


@dataclass
class StagedMessage(WriterCommitMessage):
    """Parts that one task wrote."""

    staged: Pieces


class Writer(DataSourceArrowWriter):
    """Writer of one job. Its parts are unreferenced until `commit`, so a failed job leaves nothing visible."""

    def __init__(
        self,
        connector_options: Options,
        objects_url: str,
        spec: TableSpec,
        epoch: int,
        tombstone: str | None,
        order: RowOrder,
        write_id: WriteId | None,
    ) -> None:
        self._connector_options = connector_options
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
        with self._connector_options.opened() as lake:
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
    connector_options: Options, options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> StreamWriter:
    """Return the writer of a streaming query. Raises UsageError if the options do not allow it."""
    if not (query := options.get("writeId")):
        raise UsageError(
            "a streaming query needs option writeId, a unique name that stays with its checkpoint: it and the "
            "batch number identify a micro-batch, so that each is written once."
        )
    return StreamWriter(make_writer(connector_options, options, schema, overwrite=overwrite), query)


def make_writer(
    connector_options: Options, options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> Writer:
    """Return the writer of a frame. Raises UsageError if the options do not allow it."""
    table = connector_options.table
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
    with connector_options.opened() as lake:
        spec = _spec(lake, table, columns, key, tombstone, number(options, "buckets", lake.config.buckets))
        if tombstone is not None and not spec.key:
            raise UsageError(f"table {table} has no key, so its rows cannot be deleted by key.")
        order.check(spec)
        epoch = lake.shard(table).state().epoch
        return Writer(connector_options, lake.objects.url, spec, epoch, tombstone, order, write_id)


def _spec(
    lake: LakeContext,
    table: str,
    columns: pa.Schema,
    key: tuple[str, ...],
    tombstone: str | None,
    buckets: int,
) -> TableSpec:
    """Return the specification of an existing table, or of a new table with these columns and key."""
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


_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class TracelakeSource(DataSource):
    """Data source for format `tracelake`. `Options` lists its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tracelake"

    def schema(self) -> StructType:
        """Return the columns of the table, and pin the query to the commit that has them."""
        options = Options.of(self.options)
        with options.opened() as lake:
            schema = options.schema_of(lake.view(options.at).table(options.table).schema)
            if commit := lake.commit_of(options.at):
                self.options["at"] = commit
        return to_spark_schema(schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one query."""
        # Spark refuses a reader with `pushFilters` if pushdown is disabled. Only the worker process reveals
        # whether it is enabled.
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        pushes = _PUSHDOWN_WORKER in sys.modules or getattr(main, "name", None) == _PUSHDOWN_WORKER
        return (FilteringReader if pushes else Reader)(Options.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Return the reader of a change stream."""
        return StreamReader(Options.of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer into a user table."""
        return make_writer(Options.of(self.options), self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Return the writer of a streaming query into a user table."""
        return make_stream_writer(Options.of(self.options), self.options, schema, overwrite=overwrite)
