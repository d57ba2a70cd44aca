"""How PySpark finds format `tracelake` by itself: it imports every module whose name begins with `pyspark_`."""

from tracelake.spark.source import TracelakeSource as DefaultSource

__all__ = ["DefaultSource"]
