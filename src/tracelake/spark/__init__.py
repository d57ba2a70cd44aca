"""Spark data source `tracelake`: read, stream and write tables of a lake.

spark.read.format("tracelake").option("lake", "./lake").option("at", "main").load("spans")
"""

from __future__ import annotations

import os as _os
import sys as _sys
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
    pushed down only if `spark.sql.python.filterPushdown.enabled` is set, which this function does. Workers of a local
    master run this Python, unless PYSPARK_PYTHON or `spark.pyspark.python` names another one.
    """
    _run_this_python(spark)
    spark.dataSource.register(TracelakeSource)
    spark.conf.set(_PUSHDOWN, "true")


def _run_this_python(spark: SparkSession) -> None:
    """Let local workers run this interpreter: the `python3` of an environment that is not active lacks the package."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    if context is None or not context.master.startswith("local") or "PYSPARK_PYTHON" in _os.environ:
        return
    if context.getConf().get("spark.pyspark.python") is None:
        context.pythonExec = _sys.executable
