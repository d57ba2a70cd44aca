"""Losses of a cluster during work: workers after their write, memory, blocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

import tracelake
from tests.cluster.servers import ROOT, Cluster, ConnectServer
from tests.cluster.test_standalone import SPANS, ingested, stay
from tests.patience import wait_until
from tests.pipeline.spans import AGENTS
from tracelake import InProcess
from tracelake._errors import TaskError
from tracelake.tasks.connect import SparkConnect
from tracelake.tasks.runners import TaskRunner
from tracelake.tasks.spark import Spark

Make = Callable[..., Spark]


class DiesAfterwards:
    """Task that the first time kills its worker after its write, before the result arrives."""

    def __init__(self, function: Callable[[Any], Any], folder: Path) -> None:
        self.function, self.folder = function, folder

    def __call__(self, numbered: tuple[int, Any]) -> Any:
        """Run the task."""
        number, task = numbered
        receipt = self.function(task)
        mark = self.folder / str(number)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return receipt


class EachTwice:
    """Runner that runs all tasks twice, because their workers die after the first time."""

    def __init__(self, runner: TaskRunner, folder: Path) -> None:
        self.runner, self.folder = runner, folder

    def start(self) -> None:
        """Start it."""
        self.runner.start()

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], on_done: Callable[[int], None]
    ) -> list[Any]:
        """Run them."""
        folder = self.folder / uuid4().hex
        folder.mkdir()
        receipts = self.runner.run(DiesAfterwards(function, folder), list(enumerate(tasks)), on_done)
        assert len(list(folder.iterdir())) == len(tasks)
        return receipts

    def stop(self) -> None:
        """Stop it."""
        self.runner.stop()


def hold(mebibytes: int) -> int:
    """Run a task that takes much memory."""
    return len(bytearray(mebibytes << 20))


def die(what: str) -> None:
    """Kill the current process, or its executor's, as the system does when memory is short."""
    worker = psutil.Process()
    victim = worker if what == "worker" else next(p for p in worker.parents() if "java" in p.name())
    victim.kill()
    threading.Event().wait()  # for killing the executor, which also ends this process


def test_tasks_are_retried_after_their_write(on: Make, tmp_path: Path) -> None:
    """A retried task leaves the rows of one try; the collector deletes the parts of the other, which nothing names."""
    with (
        tracelake.init(tmp_path / "expected", buckets=4) as expected,
        tracelake.init(tmp_path / "lake", buckets=4) as lake,
    ):
        runner = EachTwice(on(), tmp_path)
        assert ingested(lake, runner).equals(ingested(expected, InProcess()))
        lake.maintenance.gc()
        assert lake.verify().ok


def test_a_task_that_takes_too_much_memory(on: Make) -> None:
    """A memory limit for workers makes only the task fail; if the system kills a process, one line names a remedy."""
    runner = on(executor__pyspark__memory="1g", task__maxFailures="1")
    with pytest.raises(TaskError, match="MemoryError") as failed:
        runner.run(hold, [4_096], lambda _: None)
    assert failed.value.kind == "MemoryError"
    for what in ("worker", "executor"):
        with pytest.raises(TaskError, match=r"ran out of memory.*spark\.executor\.memoryOverhead") as failed:
            runner.run(die, [what], lambda _: None)
        assert (failed.value.kind, failed.value.ended) == (None, False)
    assert runner.run(hold, [1], lambda _: None) == [1 << 20]


def test_blocks_are_lost(cluster: Cluster, tmp_path: Path) -> None:
    """Over Connect, tasks reach executors through a shuffle; if all its blocks are lost, they are made again."""
    server = ConnectServer(tmp_path, cluster.master)
    runner = SparkConnect(server.url)
    began = tmp_path / "began"

    def kill() -> None:
        wait_until(lambda: began.exists() and began.read_text().endswith("\n"), moving=cluster.executors)
        for executor in cluster.executors():
            cluster.kill_executor(executor)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        assert len(runner.run(stay, [str(began)], lambda _: None)) == 1
        killing.join()
        assert len(began.read_text().splitlines()) == 2
        with tracelake.init(tmp_path / "lake") as lake:
            assert lake.ingest(AGENTS, master=server.url).spans_new == SPANS
    finally:
        runner.stop()
        server.kill()


def test_two_drivers_on_a_bucket_and_postgresql() -> None:
    """Although executors, workers and drivers die in short campaigns, the tables equal those of one writer."""
    for more in ([], ["--connect"]):
        command = [sys.executable, "-m", "tests.faults.kill_cluster", "--seed", "15", *more]
        campaign = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert campaign.returncode == 0, campaign.stdout + campaign.stderr[-3000:]
