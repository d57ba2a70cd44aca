"""Spark executor in a Kubernetes pod, started from our image."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelake import UsageError
from tracelake.tasks import java

POD = {
    "SPARK_DRIVER_URL": "spark://driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
    "SPARK_EXECUTOR_POD_NAME": "tracelake-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    "SPARK_JAVA_OPT_10": "-Dtenth=a b",
    "SPARK_JAVA_OPT_9": "-Dninth",
    "SPARK_JAVA_OPT_1": "--add-modules=jdk.incubator.vector",
    "SPARK_JAVA_OPTIONS": "-Dnone",
}


def it_is_as_described() -> None:
    """Check the command of an executor, and the error for an invalid environment."""
    command = java.command_of(POD, Path("/java"), Path("/spark"))
    begin, words = command[:6], command[7:]
    assert begin == ["/java", "-Dninth", "-Dtenth=a b", "-Xmx512m", "-cp", "/opt/spark/conf:/spark/jars/*"]
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--driver-url": "spark://driver:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.3",
        "--resourceProfileId": "0",
        "--podName": "tracelake-exec-3",
    }
    for name in POD:
        if not name.startswith(("SPARK_JAVA", "SPARK_CONF")):
            with pytest.raises(UsageError, match=f"^{name} not set: only Spark starts this"):
                java.command_of(POD | {name: ""}, Path("/java"), Path("/spark"))


def test_it_is_as_described() -> None:
    """Java options are in the order of their numbers, and an absent module is not requested."""
    it_is_as_described()
