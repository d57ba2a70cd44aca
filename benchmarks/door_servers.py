"""What `door.py` compares: Tracelake and `mlflow server`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

import tracelake
from tests.storage.servers.ports import free_port
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server

TOOLS: Final = Path(__file__).parents[1] / ".tools"
MLFLOW: Final = TOOLS / "mlflow" / "bin" / "mlflow"
PEERS: Final = ("mlflow-sqlite", "mlflow-postgres")
PLACES: Final = ("local", "s3")
START_S: Final = 600.0


@dataclass
class Contestant:
    """Servers that run. `door` are the processes that take requests, `behind` those that work on what they took."""

    name: str
    url: str
    door: list[int]
    behind: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    lake: str | None = None
    """Where spans become searchable later; None where they are with the answer."""

    def door_cpu_s(self) -> float:
        """Return the processor time of the processes that take requests."""
        return sum(map(cpu_s, self.door))

    def cpu_s(self) -> float:
        """Return that of all processes, those they started with them."""
        return self.door_cpu_s() + sum(map(cpu_s, self.behind))

    def written_bytes(self) -> int:
        """Return what all of them have given to the disk."""
        return sum(map(_written_bytes, [*self.door, *self.behind]))


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and those below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and those below it, those that have ended too."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # user, system, and of children that were waited for
    return total


def _written_bytes(pid: int) -> int:
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):
            total += process.io_counters().write_bytes
    return total


def missing(name: str) -> str | None:
    """Say what a contestant lacks here, None where it can run."""
    return (
        f"{MLFLOW} is not there: run scripts/setup-mlflow" if name in PEERS and not MLFLOW.exists() else None
    )


@contextmanager
def running(name: str, folder: Path, pipeline: bool = True) -> Iterator[Contestant]:
    """Run a contestant in a new folder until the end of the block."""
    if name.startswith("tracelake-"):
        with _lake(name, folder) as (lake, environment):
            yield from _tracelake(name, lake, folder, environment, pipeline)
    elif name == "mlflow-sqlite":
        yield from _mlflow(name, folder, f"sqlite:///{folder}/mlflow.db", [])
    else:
        server = PostgresServer()
        try:
            url = server.url().replace("postgresql://", "postgresql+psycopg2://")
            yield from _mlflow(name, folder, url, [server.process.pid])
        finally:
            server.close()


@contextmanager
def _lake(name: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    if name == "tracelake-local":
        tracelake.init(folder / "lake").close()
        yield str(folder / "lake"), {}
        return
    server = S3Server()
    try:
        environment, url = server.environment(), server.url()
        os.environ.update(environment)  # who looks for what is searchable needs it too
        tracelake.init(url).close()
        yield url, environment
    finally:
        server.close()


def _tracelake(
    name: str, lake: str, folder: Path, environment: dict[str, str], pipeline: bool
) -> Iterator[Contestant]:
    command = [sys.executable, "-m", "tracelake.cli"]
    serve = [*command, "serve", "--lake", lake, "--port", "0", "--no-pipeline", "--json"]
    with _process(serve, folder / "serve.log", environment, read=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        contestant = Contestant(name, url, [server.pid], lake=lake)
        if not pipeline:
            yield contestant
            return
        with tracelake_pipeline(lake, folder, environment) as process:
            contestant.behind.append(process.pid)
            yield contestant


@contextmanager
def tracelake_pipeline(
    lake: str, folder: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a pipeline on a lake until the end of the block."""
    command = [sys.executable, "-m", "tracelake.cli", "pipeline", "run", "--lake", lake, "--interval", "0.2"]
    with _process(command, folder / "pipeline.log", environment or {}) as process:
        yield process


def _mlflow(name: str, folder: Path, store: str, behind: list[int]) -> Iterator[Contestant]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(MLFLOW), "server", "--backend-store-uri", store]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(port)]
    # Its supervisor kills a worker that takes five seconds to start, for ever, where the machine is busy.
    command += ["--uvicorn-opts", "--timeout-worker-healthcheck 120"]
    with _process(command, folder / "mlflow.log", {"MLFLOW_DISABLE_TELEMETRY": "true"}) as server:
        _answers(f"{url}/health")
        body = json.dumps({"name": "door"}).encode()
        request = urllib.request.Request(
            f"{url}/api/2.0/mlflow/experiments/create", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            experiment = json.load(response)["experiment_id"]
        yield Contestant(name, url, [server.pid], behind, {"x-mlflow-experiment-id": experiment})


@contextmanager
def _process(
    command: list[str], log: Path, environment: dict[str, str], read: bool = False
) -> Iterator[subprocess.Popen[str]]:
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE if read else stream,
            stderr=stream,
            text=True,
            env=os.environ | environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        below = tree(process.pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
        for left in below:
            with suppress(psutil.Error):
                left.kill()


def _answers(url: str) -> None:
    """Wait until a server answers, whatever it says."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not come up"
            time.sleep(0.1)
        else:
            return


def stored_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def removed(folder: Path) -> None:
    """Remove what a contestant has left."""
    shutil.rmtree(folder, ignore_errors=True)
