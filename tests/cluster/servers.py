"""Real Spark cluster on this machine: a standalone master with workers, and a Spark Connect server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil
import pyspark

from tests.patience import wait_until
from tests.storage.servers.ports import free_port
from tracelake.tasks.java import _OPENS, find_java

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = Path(pyspark.__file__).parent
_CLASSES: Final = "org.apache.spark.deploy"


def start_jvm(
    folder: Path, name: str, *arguments: str, heap_mb: int = 192, python: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a JVM of Spark with its log in `folder`. Its workers use this Python, otherwise the one on PATH."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    # A worker starts executors by SPARK_HOME, whose shell script asks for Scala's version.
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13"}
    environment["PYTHONPATH"] = str(ROOT)  # tasks of tests are functions of tests
    if python is not None:
        environment["PYSPARK_PYTHON"] = python
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [
                str(find_java().path),
                *("-cp", str(HOME / "jars" / "*")),
                *(f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
                "-Djava.net.preferIPv4Stack=true",
                *arguments,
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Cluster:
    """Standalone master with single-core workers, whose executors are separate processes."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        port, page = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{port}"
        arguments = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        # Executors that tests kill one after the other must not end the application.
        self._master = start_jvm(
            folder, "master", "-Dspark.deploy.maxExecutorRetries=-1", f"{_CLASSES}.master.Master", *arguments
        )
        wait_until(lambda: _answers(port), moving=self._master.poll)
        self._workers: list[subprocess.Popen[bytes]] = []
        for _ in range(workers):
            self.add_worker()

    def add_worker(self) -> None:
        """Start another worker, and wait until the master knows it."""
        name = f"worker-{len(self._workers)}"
        arguments = ("--host", "127.0.0.1", "--webui-port", str(free_port()), "-c", "1", "-m", "1g")
        self._workers.append(
            start_jvm(
                self.folder,
                name,
                f"{_CLASSES}.worker.Worker",
                *arguments,
                "-d",
                str(self.folder / name),
                self.master,
            )
        )
        log = self.folder / f"{name}.log"
        wait_until(
            lambda: b"Successfully registered with master" in log.read_bytes(),
            moving=lambda: log.stat().st_size,
        )

    def executors(self) -> list[psutil.Process]:
        """Return the processes of the running executors."""
        children = [
            child for worker in self._workers if worker.poll() is None for child in _below(worker.pid)
        ]
        return [child for child in children if "java" in _name(child)]

    def kill_executor_of(self, pid: int) -> None:
        """Kill the executor of this Python worker, with all its workers, as the system does when memory is short."""
        self.kill_executor(
            next(one for one in self.executors() if pid in {child.pid for child in _below(one.pid)})
        )

    def kill_executor(self, executor: psutil.Process) -> None:
        """Kill one executor with all its workers."""
        for process in (*_below(executor.pid), executor):
            _kill(process)

    def kill_worker(self) -> None:
        """Kill a worker with its executors, as when a host is lost, and start another."""
        worker = next(worker for worker in self._workers if worker.poll() is None)
        for process in (*_below(worker.pid), psutil.Process(worker.pid)):
            _kill(process)
        worker.wait()
        self.add_worker()

    def close(self) -> None:
        """Stop all processes."""
        for process in (*self._workers, self._master):
            if process.poll() is None:
                for child in _below(process.pid):
                    _kill(child)
                process.kill()
            process.wait()


class ConnectServer:
    """Spark Connect server with local executors or those of a cluster, which use this Python."""

    def __init__(self, folder: Path, master: str = "local[2]", conf: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._conf = dict(conf or {})
        self._master = master
        self._port = free_port()
        self.url = f"sc://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            **self._conf,
        }
        conf = [argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        self._process = start_jvm(
            self.folder,
            "connect",
            *(
                f"{_CLASSES}.SparkSubmit",
                "--class",
                server,
                "--master",
                self._master,
                *conf,
                "spark-internal",
            ),
            heap_mb=768,
            python=sys.executable,
        )
        wait_until(lambda: _answers(self._port), moving=self._process.poll)

    def kill(self) -> None:
        """Kill it at once."""
        for child in _below(self._process.pid):
            _kill(child)
        self._process.kill()
        self._process.wait()


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return
