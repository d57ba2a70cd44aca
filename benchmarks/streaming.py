"""Structured Streaming as its documentation shows it: OTLP JSON lines from a folder to Parquet or Delta, checkpointed.

Processes of `recovery.py` and `appended.py` use it; both run the jar of Delta Lake that `scripts/setup-delta` brings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.ingest import SPARK_SCHEMA

DELTA: Final = Path(__file__).resolve().parents[1] / ".tools" / "delta"


def environment(kind: str) -> dict[str, str]:
    """Return what a process has in its environment: Delta Lake runs with the Spark that it was built for alone."""
    return {"PYTHONPATH": str(DELTA / "spark")} if kind == "delta" else {}


def session(kind: str, folder: Path) -> Any:
    """Start Spark with two threads, as `parquet` or `delta` wants it."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  a process that measures something else needs none

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    if kind == "delta":
        jars = sorted(map(str, DELTA.glob("*.jar")))
        assert jars, "Delta Lake is not there: run scripts/setup-delta"
        builder = (
            builder.config("spark.jars", ",".join(jars))
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        )
    return builder.getOrCreate()


def start(
    spark: Any, kind: str, folder: Path, files_at_once: int | None = None, *, goes_on: bool = False
) -> Any:
    """Start the query that takes the files of `in`, one row a span; without `goes_on` it ends when they are in."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    reader = spark.readStream.schema(" ".join(SPARK_SCHEMA.split()))
    if files_at_once is not None:
        reader = reader.option("maxFilesPerTrigger", files_at_once)
    spans = (
        reader.json(str(folder / "in"))
        .select(f.explode("resourceSpans").alias("r"))
        .select("r.resource", f.explode("r.scopeSpans").alias("s"))
        .select("resource", "s.scope", f.explode("s.spans").alias("span"))
        .select("resource", "scope", "span.*")
    )
    writer = (
        spans.writeStream.format(kind)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("compression", "zstd")
    )
    trigger = {"processingTime": "0 seconds"} if goes_on else {"availableNow": True}
    return writer.trigger(**trigger).start(str(folder / "out"))
