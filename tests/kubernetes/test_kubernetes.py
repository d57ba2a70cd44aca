"""Spark on Kubernetes with a stand-in for its API: pods are processes with the environment of their specification."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

import tracelake
from tests.cluster.test_standalone import ingested, stay
from tests.conftest import end_spark
from tests.kubernetes.api import Kubernetes, Node, path_of
from tests.patience import wait_until
from tests.pipeline.spans import AGENTS
from tracelake import InProcess
from tracelake.tasks.spark import Spark

ROOT: Final = Path(__file__).resolve().parents[2]
SECRET: Final = "not for pods to show"
"""Secret value, in the driver's environment and in the Secret that pods name."""


@pytest.fixture(name="kubernetes")
def fixture_kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """Start the API, with credentials in the driver's environment and in a Secret."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    (tmp_path / "pods").mkdir()
    entrypoint = (sys.executable, "-m", "tracelake.cli")  # that of deploy/Dockerfile
    secrets = {"tracelake": {"key": SECRET}}
    node = Node(tmp_path / "pods", entrypoint, path_of(sys.executable), secrets)
    with closing(Kubernetes(node)) as kubernetes:
        yield kubernetes


def settings(executors: int) -> dict[str, str]:
    """Return the settings of docs/how-to/run-on-a-cluster.md, and those for the stand-in."""
    return {
        "spark.kubernetes.container.image": "tracelake:0.1.0",
        "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY": "tracelake:key",
        "spark.executor.instances": str(executors),
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.executorEnv.PYTHONPATH": str(ROOT),  # tasks of tests are functions of tests
    }


def test_ingest_from_the_command_line(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """`--master k8s://` with our image gives the same rows as this process; pods match the real schema, and are
    deleted.

    Specifications of pods and maps contain no credentials: they name the Secret.
    """
    path = tmp_path / "lake"
    tracelake.init(path, buckets=4).close()
    conf = [word for name, value in settings(2).items() for word in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "tracelake.cli", "ingest", str(AGENTS), "--lake", str(path)]
    subprocess.run([*command, "--master", f"k8s://{kubernetes.url}", *conf], check=True, capture_output=True)
    with tracelake.open(path) as lake, tracelake.init(tmp_path / "expected", buckets=4) as expected:
        assert lake.verify().ok
        ingested(expected, InProcess())
        assert lake.table("spans").content_hash() == expected.table("spans").content_hash()
    kinds = [one["kind"] for one in kubernetes.posted]
    assert kinds.count("Pod") >= 2
    assert kubernetes.names("pods") == []
    assert SECRET not in json.dumps(kubernetes.posted)
    file = tmp_path / "posted.yaml"
    file.write_text("".join(f"---\n{json.dumps(one)}\n" for one in kubernetes.posted))
    tool = ("uv", "tool", "run", "--quiet", "kubernetes-validate==1.37.0", "--strict", str(file))
    subprocess.run([f"{Path(sys.executable).parent}/{tool[0]}", *tool[1:]], check=True)


def test_a_pod_is_killed_in_mid_task(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """If a pod is killed during a task, Spark requests another one, and the task succeeds."""
    began = tmp_path / "began"
    runner = Spark(f"k8s://{kubernetes.url}", conf=settings(1))

    def kill() -> None:
        wait_until(lambda: began.exists() and began.read_text().endswith("\n"))
        kubernetes.node.kill(kubernetes.node.pod_of(int(began.read_text())))

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        assert len(runner.run(stay, [str(began)], lambda _: None)) == 1
        killing.join()
        assert len(began.read_text().splitlines()) == 2
        assert len([one for one in kubernetes.posted if one["kind"] == "Pod"]) >= 2
        (given,) = runner.run(eval, ["__import__('os').environ['AWS_SECRET_ACCESS_KEY']"], lambda _: None)
        assert given == SECRET
    finally:
        runner.stop()
        end_spark()
