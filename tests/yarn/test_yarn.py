"""Spark on YARN, whose containers have only the environment sent with the application."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.cluster.test_standalone import ingested, stay
from tests.conftest import end_spark
from tests.patience import wait_until
from tests.pipeline.spans import AGENTS
from tests.yarn.node import PYSPARK_JARS, ROOT, YarnNode, pack_environment
from tracelake import InProcess
from tracelake.doctor.doctor import diagnose
from tracelake.tasks.spark import Spark


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnNode]:
    """Start YARN, and set the path of its settings, as users do."""
    with closing(YarnNode(tmp_path_factory.mktemp("yarn"))) as node, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(node.settings))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.delenv("PYSPARK_PYTHON", raising=False)
        yield node


@pytest.fixture(scope="module")
def conf(node: YarnNode, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return settings for two small executors with a sent environment."""
    folder = tmp_path_factory.mktemp("sent")
    pack_environment(folder / "environment.tar.gz")
    return {
        "spark.archives": f"{folder}/environment.tar.gz#environment",
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),  # tasks of tests are functions of tests
        "spark.yarn.am.memory": "256m",
        "spark.yarn.jars": f"local:{PYSPARK_JARS}",  # on a real cluster they exist already, or are sent too
        "spark.yarn.stagingDir": node.settings.parent.as_uri(),
    }


@pytest.fixture(scope="module")
def runner(conf: dict[str, str]) -> Iterator[Spark]:
    """Runner whose application lives as long as the module."""
    runner = Spark("yarn", conf=conf)
    yield runner
    runner.stop()
    end_spark()


def test_ingest_from_the_command_line(conf: dict[str, str], tmp_path: Path) -> None:
    """`--master yarn` and an archive give the same rows as this process, without any setup of containers."""
    path = tmp_path / "lake"
    tracelake.init(path, buckets=4).close()
    settings = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "tracelake.cli", "ingest", str(AGENTS), "--lake", str(path)]
    subprocess.run([*command, "--master", "yarn", *settings], check=True, capture_output=True)
    with tracelake.open(path) as lake, tracelake.init(tmp_path / "expected", buckets=4) as expected:
        assert lake.verify().ok
        ingested(expected, InProcess())
        assert lake.table("spans").content_hash() == expected.table("spans").content_hash()


def test_containers_have_what_was_sent(runner: Spark) -> None:
    """Containers use the Tracelake of the archive, not that of this machine."""
    (where,) = runner.run(eval, ["__import__('tracelake').__file__"], lambda _: None)
    assert "/environment/lib/" in where
    assert not where.startswith(os.fspath(ROOT))


def test_a_container_is_killed_in_mid_task(runner: Spark, node: YarnNode, tmp_path: Path) -> None:
    """If a container is killed during a task, YARN gives Spark another one, and the task succeeds."""
    began = tmp_path / "began"

    def kill() -> None:
        wait_until(lambda: began.exists() and began.read_text().endswith("\n"))
        node.kill_executor_of(int(began.read_text()))

    killing = threading.Thread(target=kill)
    killing.start()
    assert len(runner.run(stay, [str(began)], lambda _: None)) == 1
    killing.join()
    assert len(began.read_text().splitlines()) == 2


def test_doctor_looks_at_containers(runner: Spark, tmp_path: Path) -> None:
    """`doctor` checks containers as on any cluster."""
    runner.start()
    tracelake.init(tmp_path / "lake").close()
    diagnosis = diagnose(str(tmp_path / "lake"), master="yarn")
    (checked,) = [check for check in diagnosis.checks if check.check == "cluster"]
    assert checked.status == "ok", checked
