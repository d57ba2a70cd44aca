"""Spark's JVM killed under a long-lived process, as by the system when memory runs out: the next run goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

import tracelake
from tests.patience import HANG_S, wait_until
from tests.pipeline.spans import AGENTS
from tracelake._errors import TaskError
from tracelake.tasks.spark import Spark


def jvm() -> psutil.Process:
    """Return the JVM that this process has started."""
    (found,) = [child for child in psutil.Process().children() if "java" in child.name()]
    return found


def begin_and_wait(begun: Path) -> None:
    """Be a task that takes long, once it has said that it began."""
    begun.touch()
    time.sleep(HANG_S)


def test_a_killed_jvm_is_started_again(shared_spark: Spark, tmp_path: Path) -> None:
    """A job that loses its JVM fails with an error that says so, and the run after it starts another."""
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
