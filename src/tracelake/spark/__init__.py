"""Spark data source `tracelake`: read, stream and write tables of a lake.

spark.read.format("tracelake").option("lake", "./lake").option("at", "main").load("spans")
"""

from __future__ import annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Final as _Final

from tracelake.spark.source import TracelakeSource

if _TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TracelakeSource", "register"]

_PUSHDOWN: _Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register format `tracelake` with a session, and enable filter pushdown.

    PySpark finds the format without this call if the package is installed on drivers and executors. Filters are then
    pushed down only if `spark.sql.python.filterPushdown.enabled` is set, which this function does.
    """
    spark.dataSource.register(TracelakeSource)
    spark.conf.set(_PUSHDOWN, "true")
