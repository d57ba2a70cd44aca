"""Spark's JVM killed under a long-lived process, as by the system when memory runs out: the next run continues."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

import tracelake
from tests.conftest import end_spark
from tests.patience import HANG_S, wait_until
from tests.pipeline.spans import AGENTS
from tracelake._errors import TaskError
from tracelake.tasks import spark
from tracelake.tasks.java import gateway_ended
from tracelake.tasks.spark import SOCKETS_FOLDER, Spark


def jvm() -> psutil.Process:
    """Return the JVM that this process has started."""
    (found,) = [child for child in psutil.Process().children() if "java" in child.name()]
    return found


def end_jvm() -> None:
    """Kill it, and wait until it has ended."""
    jvm().kill()
    assert gateway_ended(within_s=HANG_S)


def begin_and_wait(begun: Path) -> None:
    """Signal the start of a task, then wait."""
    begun.touch()
    time.sleep(HANG_S)


def test_a_killed_jvm_is_started_again(shared_spark: Spark, tmp_path: Path) -> None:
    """A job that loses its JVM fails with a clear error, and the next run starts another JVM."""
    shared_spark.start()
    begun = tmp_path / "begun"

    def kill() -> None:
        wait_until(begun.exists)
        os.kill(jvm().pid, signal.SIGKILL)

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(TaskError, match=r"JVM has ended.*the next run starts another"):
        shared_spark.run(begin_and_wait, [begun], lambda _: None)
    killing.join()
    with tracelake.init(tmp_path / "lake") as lake:
        assert lake.ingest(AGENTS, runner=shared_spark).spans_new == 4_931
        assert lake.verify().ok


def test_who_finds_out_later_leaves_the_new_jvm_to_others(shared_spark: Spark) -> None:
    """Several lakes of a process share one JVM: the second must not end the one that the first has restarted."""
    other = Spark("local[2]")
    for runner in (shared_spark, other):
        runner.start()
    end_jvm()
    assert shared_spark.run(abs, [-1], lambda _: None) == [1]
    new = jvm().pid
    assert other.run(abs, [-2], lambda _: None) == [2]
    assert jvm().pid == new
    # Any call detects it, also the first one since the previous death.
    end_jvm()
    assert other.run(abs, [-3], lambda _: None) == [3]
    end_jvm()
    assert shared_spark.run(abs, [-4], lambda _: None) == [4]
    other.stop()


def test_a_jvm_that_ends_while_it_starts_is_started_again(shared_spark: Spark) -> None:
    """A start is retried if the system is still out of memory or the user's context has ended in the JVM."""
    shared_spark.start()
    end_jvm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark, "settings_for", killing)
        with pytest.raises(TaskError, match="JVM has ended"):
            shared_spark.run(abs, [-1], lambda _: None)
    assert shared_spark.run(abs, [-2], lambda _: None) == [2]
    shared_spark._started().stop()  # as a user may in a notebook
    assert shared_spark.run(abs, [-3], lambda _: None) == [3]
    shared_spark._started().stop()
    end_jvm()
    assert shared_spark.run(abs, [-4], lambda _: None) == [4]


def killing(*_: object) -> dict[str, str]:
    """Kill the JVM in the middle of its start."""
    end_jvm()
    return {}


def test_sockets_that_somebody_deletes_are_made_anew(shared_spark: Spark) -> None:
    """Deleted sockets are recreated, as after a cleanup of the temporary directory."""
    folder = shared_spark._started().getConf().get(SOCKETS_FOLDER)
    assert folder is not None
    shutil.rmtree(folder)
    assert shared_spark.run(abs, [-1], lambda _: None) == [1]


def test_a_jvm_that_has_done_many_jobs_is_a_new_one(
    shared_spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JVM is replaced after many jobs, because each leaves garbage. It stays while others have jobs or a user
    has a session."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  slow to import

    end_spark()  # and with it any session
    shared_spark.run(abs, [0], lambda _: None)
    old = jvm().pid
    begun, over = tmp_path / "begun", tmp_path / "over"
    long = threading.Thread(
        target=shared_spark.run, args=(begin_and_wait_for, [(begun, over)], lambda _: None)
    )
    long.start()
    wait_until(begun.exists)
    monkeypatch.setattr(spark, "JOBS_OF_A_JVM_MAX", 1)
    assert shared_spark.run(abs, [-1], lambda _: None) == [1]
    assert jvm().pid == old
    over.touch()
    long.join()
    assert shared_spark.run(abs, [-2], lambda _: None) == [2]
    new = jvm().pid
    assert new != old
    monkeypatch.setattr(spark, "JOBS_OF_A_JVM_MAX", 2)
    assert shared_spark.run(abs, [-3], lambda _: None) == [3]
    assert jvm().pid == new  # it starts at zero
    monkeypatch.setattr(spark, "JOBS_OF_A_JVM_MAX", 0)
    frame = SparkSession.builder.getOrCreate().range(3)
    assert shared_spark.run(abs, [-4], lambda _: None) == [4]
    assert frame.count() == 3
    assert jvm().pid == new


def begin_and_wait_for(files: tuple[Path, Path]) -> None:
    """Signal the start of a task, and wait for the file that ends it."""
    begun, over = files
    begun.touch()
    wait_until(over.exists)
