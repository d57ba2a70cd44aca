"""A streaming query as a separate process: it copies the changes of one table into another."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from tracelake.tasks.spark import Spark


def main(lake: str, checkpoint: str, goes_on: str = "") -> None:
    """Copy the existing changes, or all that arrive while the process lives, a transaction a micro-batch."""
    Spark("local[2]").start()
    spark = SparkSession.builder.getOrCreate()
    options = {"lake": lake, "changes": "all", "transactionsPerBatch": "1"}
    changes = spark.readStream.format("tracelake").options(**options).load("people")
    # A replaced row is deleted and inserted in one transaction: the insert is the later of the two.
    version = "2 * _transaction + if(_change > 0, 1, 0) as version"
    rows = changes.selectExpr("id", "who", "_change < 0 as gone", version)
    writer = rows.writeStream.format("tracelake").options(
        lake=lake, key="id", tombstone="gone", orderBy="version", writeId="copy"
    )
    if not goes_on:
        writer = writer.trigger(availableNow=True)
    writer.option("checkpointLocation", checkpoint).start("copied").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
