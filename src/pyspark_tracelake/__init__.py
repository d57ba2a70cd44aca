"""Entry point through which PySpark finds format `tracelake`: it imports every module that begins with `pyspark_`."""

from tracelake.spark.source import TracelakeSource as DefaultSource

__all__ = ["DefaultSource"]
