"""PySpark data source: schema, readers and writers."""

from __future__ import annotations

import sys
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from tracelake.spark.options import Options, to_spark_schema
from tracelake.spark.reader import FilteringReader, Reader, StreamReader
from tracelake.spark.writer import make_stream_writer, make_writer

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
