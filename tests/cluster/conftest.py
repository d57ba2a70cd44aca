"""The cluster, started once per run; no test of another file runs in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.servers import Cluster, ConnectServer
from tests.conftest import end_spark
from tracelake.tasks.spark import Spark

HERE = {"spark.pyspark.python": sys.executable, "spark.executor.memory": "512m"}
"""Workers are processes of this machine, so they can use our Python."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Master with two single-core workers, of which tests may kill some."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """A server of Spark Connect."""
    server = ConnectServer(tmp_path_factory.mktemp("connect"))
    yield server
    server.kill()


@pytest.fixture
def on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Spark]]:
    """Make a runner on the cluster with additional settings; it stops when the test ends."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    runners = []

    def make(**more: str) -> Spark:
        conf = HERE | {f"spark.{name.replace('__', '.')}": value for name, value in more.items()}
        runners.append(Spark(cluster.master, conf=conf))
        return runners[-1]

    yield make
    for runner in runners:
        runner.stop()
    end_spark()
