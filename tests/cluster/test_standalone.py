"""Standalone Spark cluster with executors in separate processes: delivery of the code, and survived failures."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import tracelake
from tests.cluster.conftest import HERE
from tests.cluster.servers import Cluster
from tests.conftest import end_spark
from tests.patience import wait_until
from tests.pipeline.spans import AGENTS
from tests.storage.servers.ports import free_port
from tracelake import InProcess, Lake
from tracelake._errors import TaskError
from tracelake.doctor.doctor import diagnose
from tracelake.tasks import spark as spark_module
from tracelake.tasks.runners import Progress, TaskRunner
from tracelake.tasks.spark import Spark

Make = Callable[..., Spark]
SPANS = 4_931


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Return the spans as a run in this process stores them."""
    with tracelake.init(tmp_path_factory.mktemp("expected") / "lake", buckets=4) as lake:
        return ingested(lake, InProcess())


def ingested(lake: Lake, runner: TaskRunner | None, **more: object) -> pa.Table:
    """Ingest the agents' file; verify it, and return the stored spans."""
    lake.ingest(AGENTS, runner=runner, **more)  # type: ignore[arg-type]
    assert lake.verify().ok
    return lake.table("spans").to_arrow(
        ["trace_id", "span_id", "name", "attributes"], order_by="trace_id, span_id"
    )


def stay(path: str, seconds: float = 30.0) -> int:
    """Run a task that reports its start, and the first time waits for a while."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if len(Path(path).read_text().splitlines()) == 1:
        time.sleep(seconds)
    return os.getpid()


def test_the_same_rows(on: Make, tmp_path: Path, expected: pa.Table) -> None:
    """Separate executor processes write the same rows as this process."""
    with tracelake.init(tmp_path / "lake", buckets=4) as lake:
        assert ingested(lake, on()).equals(expected)


def test_workers_without_our_code_are_told_of(on: Make, tmp_path: Path) -> None:
    """If the workers' Python is absent or lacks tracelake, one line says what to do, and nothing is quarantined."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    bare.chmod(0o755)
    for python, told in ((bare, "has no tracelake: install"), (tmp_path / "none", "have no program")):
        with (
            tracelake.init(tmp_path / f"lake-{python.name}") as lake,
            pytest.raises(TaskError, match=told) as failed,
        ):
            lake.ingest(AGENTS, runner=on(pyspark__python=str(python)))
        assert "run-on-a-cluster.md" in str(failed.value)
        end_spark()


def test_an_environment_is_sent_along(on: Make, tmp_path: Path) -> None:
    """An archive named `#environment` contains the workers' Python."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nSENT=along exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    archive = tmp_path / "environment.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "bin", "bin")
    runner = on(archives=f"{archive}#environment", pyspark__python="")
    assert runner.run(os.getenv, ["SENT"], lambda _: None) == ["along"]


def test_an_executor_is_killed_in_mid_task(on: Make, cluster: Cluster, tmp_path: Path) -> None:
    """If an executor is killed during a task, Spark retries the task, and only time is lost."""
    runner, began = on(), tmp_path / "began"

    def kill() -> None:
        wait_until(lambda: began.exists() and began.read_text().endswith("\n"))
        cluster.kill_executor_of(int(began.read_text()))

    killing = threading.Thread(target=kill)
    killing.start()
    assert len(runner.run(stay, [str(began)], lambda _: None)) == 1
    killing.join()
    assert len(began.read_text().splitlines()) == 2


def test_a_worker_is_lost_in_mid_transaction(
    on: Make, cluster: Cluster, tmp_path: Path, expected: pa.Table
) -> None:
    """If a worker is lost with its executor during a transaction, the tables are the same."""
    killed = list[Progress]()

    def kill(progress: Progress) -> None:
        if progress.stage == "writing" and not killed:
            killed.append(progress)
            cluster.kill_worker()

    with tracelake.init(tmp_path / "lake", buckets=4) as lake:
        assert ingested(lake, on(), progress=kill).equals(expected)
    assert killed


def test_twins_of_a_task(on: Make, cluster: Cluster, tmp_path: Path, expected: pa.Table) -> None:
    """A paused executor is replaced, and its workers continue after the commit without effect."""
    stopped = list[psutil.Process]()

    def stop(progress: Progress) -> None:
        if progress.stage == "writing" and not stopped:
            # Choose an executor with workers: one that is still starting is not expected by the master, and
            # would live on.
            executor = next(one for one in cluster.executors() if one.children())
            stopped.extend((executor, *executor.children(recursive=True)))
            for process in stopped:
                process.send_signal(signal.SIGSTOP)

    runner = on(
        network__timeout="8s",
        network__timeoutInterval="4s",
        executor__heartbeatInterval="2s",
        speculation="true",
    )
    try:
        with tracelake.init(tmp_path / "lake", buckets=4) as lake:
            assert ingested(lake, runner, progress=stop).equals(expected)
            # Other tasks may end before it is replaced; a worker that resumes before that lives.
            wait_until(lambda: stopped and not is_alive(stopped[0]))
            go_on(stopped)
            wait_until(lambda: not any(map(is_alive, stopped)), moving=lambda: list(map(is_alive, stopped)))
            lake.maintenance.gc()
            assert lake.verify().ok
    finally:
        go_on(stopped)


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def go_on(processes: list[psutil.Process]) -> None:
    """Resume the paused processes that still exist."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def test_the_driver_is_lost_and_another_takes_over(
    cluster: Cluster, tmp_path: Path, expected: pa.Table
) -> None:
    """After a process is killed during its transaction, the next one on the same cluster finishes it."""
    path = tmp_path / "lake"
    tracelake.init(path, buckets=4).close()
    conf = [argument for name, value in HERE.items() for argument in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "tracelake.cli", "ingest", str(AGENTS), "--lake", str(path)]
    process = subprocess.Popen([*command, "--master", cluster.master, *conf], stderr=subprocess.DEVNULL)
    wait_until(lambda: list(path.glob("staging/pipeline/**/*.*")), moving=lambda: len(cluster.executors()))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    with tracelake.open(path) as lake:
        assert lake.ingest(AGENTS, master=cluster.master, conf=HERE).spans_read == SPANS
        assert ingested(lake, InProcess()).equals(expected)


def test_a_job_that_nobody_takes_ends(on: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no worker has room for an executor, the job fails after a timeout, and the next job may succeed."""
    monkeypatch.setattr(spark_module, "SPARK_IDLE_TIMEOUT_S", 3.0)
    with pytest.raises(TaskError, match=r"no executor of spark://.* has accepted a task for 3 s") as failed:
        on(executor__memory="64g").run(abs, [1], lambda _: None)
    assert failed.value.ended


def test_a_master_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable master is reported in one line without a traceback."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    runner = Spark(f"spark://127.0.0.1:{free_port()}")
    try:
        with pytest.raises(TaskError, match="run again once that is fixed"):
            runner.run(abs, [1], lambda _: None)
    finally:
        runner.stop()


def test_credentials_reach_executors_and_no_file(
    on: Make, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials are in the environment of executors, but in no log, command line or file of the lake."""
    secret = uuid.uuid4().hex
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    runner = on()
    assert runner.run(os.getenv, ["AWS_SECRET_ACCESS_KEY"], lambda _: None) == [secret]
    for process in cluster.executors():
        assert secret not in " ".join(process.cmdline())
    with tracelake.init(tmp_path / "lake", buckets=4) as lake:
        ingested(lake, runner)
    for folder in (cluster.folder, tmp_path / "lake"):
        for file in filter(Path.is_file, folder.rglob("*")):
            assert secret.encode() not in file.read_bytes(), file


def test_the_context_of_who_calls_is_used_and_left(on: Make, cluster: Cluster) -> None:
    """In a notebook, tasks run in the user's session, which remains afterwards."""
    on().start()
    from pyspark.sql import SparkSession  # noqa: PLC0415  slow to import

    session = SparkSession.builder.getOrCreate()
    theirs = Spark()
    assert theirs.run(abs, [-2], lambda _: None) == [2]
    theirs.stop()
    assert session.sparkContext.master == cluster.master
    assert session.range(3).count() == 3


def test_doctor_looks_at_each_executor(cluster: Cluster, tmp_path: Path) -> None:
    """`doctor` reports versions, the lake, clock and space as executors see them."""
    tracelake.init(tmp_path / "lake").close()
    diagnosis = diagnose(str(tmp_path / "lake"), master=cluster.master, conf=HERE)
    (checked,) = [check for check in diagnosis.checks if check.check == "cluster"]
    assert checked.status == "ok"
    assert f"executors: 2, hosts: 1; as this process: Python {sys.version_info[0]}." in checked.message
    assert socket.gethostname() in checked.message
