"""Spark Connect, which has no RDD: a server and this process as its client."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import tracelake
from tests.cluster.servers import ConnectServer
from tests.pipeline.spans import AGENTS
from tracelake._errors import TaskError
from tracelake.tasks import connect
from tracelake.tasks.connect import SparkConnect


@pytest.fixture
def runner(connect_server: ConnectServer) -> Iterator[SparkConnect]:
    """A runner on the server."""
    runner = SparkConnect(connect_server.url)
    yield runner
    runner.stop()


def fails_on_two(number: int) -> int:
    """Fail for one of the tasks."""
    if number == 2:
        raise ValueError("two is refused")
    return number * 10


def nap(seconds: float) -> int:
    """Run a task that takes a while; return its process."""
    time.sleep(seconds)
    return os.getpid()


def test_a_lake_is_filled_over_connect(connect_server: ConnectServer, tmp_path: os.PathLike[str]) -> None:
    """With `master="sc://…"` and no other setting, a lake is filled."""
    with tracelake.init(tmp_path) as lake:
        assert lake.ingest(AGENTS, master=connect_server.url).spans_new == 4_931
        assert lake.verify().ok
        assert lake.ingest(AGENTS, master=connect_server.url).spans_new == 0


def test_receipts_are_in_order_and_errors_in_one_line(runner: SparkConnect) -> None:
    """Receipts are in order and errors are one line, as for executors with an RDD."""
    told = list[int]()
    assert runner.run(fails_on_two, list(range(3, 40)), told.append) == [
        number * 10 for number in range(3, 40)
    ]
    assert told[-1] == 37
    with pytest.raises(TaskError, match=r"ValueError: two is refused\. Nothing was published") as failed:
        runner.run(fails_on_two, [1, 2], told.append)
    assert (failed.value.kind, failed.value.ended) == ("ValueError", False)
    assert runner.run(fails_on_two, [], told.append) == []


def test_each_task_is_one_of_spark(runner: SparkConnect) -> None:
    """Tasks run concurrently, however few: none waits behind another in its partition."""
    assert len(set(runner.run(nap, [1.0, 1.0], lambda _: None))) == 2


def test_threads_have_jobs_of_their_own(runner: SparkConnect) -> None:
    """Each of two concurrent jobs gets reports of its tasks only."""
    told: dict[int, list[int]] = {3: [], 5: []}
    threads = [
        threading.Thread(target=runner.run, args=(nap, [0.2] * number, told[number].append))
        for number in told
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: max(counts) for number, counts in told.items()} == {3: 3, 5: 5}


def test_a_job_that_nobody_takes_ends(
    connect_server: ConnectServer, runner: SparkConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is interrupted if the server reports no running task for a while; a running job is not."""
    monkeypatch.setattr(connect, "SPARK_IDLE_TIMEOUT_S", 1.0)
    others = SparkConnect(connect_server.url)
    with ThreadPoolExecutor() as pool:
        before = pool.submit(others.run, nap, [25.0] * 2, lambda _: None)  # it uses all cores
        time.sleep(5.0)
        with pytest.raises(TaskError, match="no executor of the cluster behind Spark Connect"):
            runner.run(nap, [0.0], lambda _: None)
        assert len(before.result()) == 2


def test_a_server_that_ended_is_told_of_and_found_again(
    connect_server: ConnectServer, runner: SparkConnect
) -> None:
    """If the server ended, the job fails with Spark's error; the next one uses the restarted server."""
    killing = threading.Timer(2.0, connect_server.kill)
    runner.run(nap, [0.0], lambda _: None)
    killing.start()
    with pytest.raises(TaskError) as failed:
        runner.run(nap, [30.0], lambda _: None)
    killing.join()
    assert failed.value.ended
    connect_server.start()
    assert len(runner.run(nap, [0.0], lambda _: None)) == 1
