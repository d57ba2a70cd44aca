"""What `door.py` compares: Tracelake, `mlflow server`, and a Collector that writes what it gets to a file."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import psutil

import tracelake
from tests.storage.servers.ports import free_port
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server

TOOLS: Final = Path(__file__).parents[1] / ".tools"
MLFLOW: Final = TOOLS / "mlflow" / "bin" / "mlflow"
COLLECTOR: Final = TOOLS / "otelcol"
NEEDS: Final = {
    "mlflow-sqlite": (MLFLOW, "scripts/setup-mlflow"),
    "mlflow-postgres": (MLFLOW, "scripts/setup-mlflow"),
    "collector-files": (COLLECTOR, "scripts/setup-collector"),
    "collector-batch": (COLLECTOR, "scripts/setup-collector"),
}
"""What each peer runs, and what puts it there."""
PEERS: Final = ("mlflow-sqlite", "mlflow-postgres", "collector-files")
PLACES: Final = ("serve", "hot", "local", "s3")
START_S: Final = 900.0
END_S: Final = 60.0
SETTLE_S: Final = 1.0
"""As long as servers do nothing, they have settled."""
SETTLED_SHARE: Final = 0.1
"""Of one processor: less is nothing. Looking for input every 0.2 s takes some."""
SETTLES_MAX: Final = 30
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass
class Contestant:
    """Servers that run. `door` are the processes that take requests, `behind` those that work on what they took."""

    name: str
    url: str
    door: list[int]
    behind: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    grpc: str = ""
    """Where it takes gRPC, as host:port; empty: nowhere."""
    lake: str | None = None
    """Where spans become searchable later; None where they are with the answer."""
    is_hot: bool = False
    """Whether its server finds spans that no commit holds yet."""
    stores: list[int] = field(default_factory=list)
    """Processes that only write for them, such as an S3 server."""
    folders: list[Path] = field(default_factory=list)
    """Where all of it lies."""
    database: Path | None = None
    """Of a SQL database the file, or the folder of its tables."""
    environment: dict[str, str] = field(default_factory=dict)
    checks: list[dict[str, object]] = field(default_factory=list)
    """Of each process that has ended: what was counted of it, and what the kernel says that it took."""

    def pids(self) -> list[int]:
        """Return the processes whose processor time counts; those that they started count with them."""
        return [*self.door, *self.behind]

    def door_cpu_s(self) -> float:
        """Return the processor time of the processes that take requests."""
        return sum(map(cpu_s, self.door))

    def cpu_s(self) -> float:
        """Return that of all processes, those they started with them."""
        return sum(map(cpu_s, self.pids()))

    def written_bytes(self) -> int:
        """Return what all of them have given to the disk."""
        return sum(map(written_bytes, [*self.pids(), *self.stores]))

    def stored_bytes(self) -> int:
        """Return the size of all files that they keep."""
        return sum(
            file.stat().st_size for folder in self.folders for file in folder.rglob("*") if file.is_file()
        )

    def database_bytes(self) -> int:
        """Return the size of its SQL database: SQLite's files with the log, PostgreSQL's tables without."""
        assert self.database is not None
        is_folder = self.database.is_dir()
        files = self.database.rglob("*") if is_folder else self.database.parent.glob(f"{self.database.name}*")
        return sum(file.stat().st_size for file in files if file.is_file())


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


def jvm_cpu_s(pid: int) -> float:
    """Return the processor time of the JVMs below a process: much of it is their start, however much there is to do."""
    total = 0.0
    for process in tree(pid):
        with suppress(psutil.Error):
            if process.name() == "java":
                total += sum(process.cpu_times()[:2])
    return total


def written_bytes(pid: int) -> int:
    """Return the bytes that a process and those below it gave to the disk."""
    total = 0
    for process in tree(pid):
        with suppress(psutil.Error):
            total += process.io_counters().write_bytes  # with those of children that were waited for
    return total


def settle(contestant: Contestant) -> None:
    """Wait until its processes do next to nothing."""
    for _ in range(SETTLES_MAX):
        before = contestant.cpu_s()
        time.sleep(SETTLE_S)
        if contestant.cpu_s() - before < SETTLED_SHARE * SETTLE_S:
            return


def missing(name: str) -> str | None:
    """Say what a contestant lacks here, None where it can run."""
    program, script = NEEDS.get(name, (None, ""))
    return f"{program} is not there: run {script}" if program is not None and not program.exists() else None


@contextmanager
def running(name: str, folder: Path, pipeline: bool = True) -> Iterator[Contestant]:
    """Run a contestant in a new folder until the end of the block."""
    if name == "tracelake-local":
        tracelake.init(folder / "lake").close()
        contestant = Contestant(name, "", [], lake=str(folder / "lake"), folders=[folder / "lake"])
        yield from _tracelake(contestant, folder, pipeline)
    elif name == "tracelake-s3":
        s3 = S3Server()
        try:
            environment = s3.environment()
            os.environ.update(environment)  # who looks for what is searchable needs it too
            lake = s3.url()
            tracelake.init(lake).close()
            contestant = Contestant(name, "", [], lake=lake, folders=[s3.directory], environment=environment)
            contestant.stores = [s3.process.pid]
            yield from _tracelake(contestant, folder, pipeline)
        finally:
            s3.close()
    elif name == "mlflow-sqlite":
        contestant = Contestant(name, "", [], folders=[folder], database=folder / "mlflow.db")
        yield from _mlflow(contestant, folder, f"sqlite:///{folder}/mlflow.db")
    elif name in {"collector-files", "collector-batch"}:
        batch = name == "collector-batch"
        yield from _collector(Contestant(name, "", [], folders=[folder]), folder, batch=batch)
    elif name in {"hot-sqlite", "tracelake-hot", "tracelake-serve"}:
        tracelake.init(folder / "lake").close()
        contestant = _hot(
            Contestant(name, "", [], folders=[folder / "lake"]), folder, folder / "lake" / "tracking.db"
        )
        yield from _tracelake(contestant, folder, pipeline, "--hot-tier", together=name == "tracelake-serve")
    elif name == "hot-postgres":
        server = PostgresServer()
        try:
            tracelake.init(folder / "lake").close()
            contestant = Contestant(name, "", [], [server.process.pid], folders=[server.data])
            contestant.environment = {"TRACELAKE_TRACKING": server.url()}
            contestant = _hot(contestant, folder, server.data / "base")
            yield from _tracelake(contestant, folder, pipeline, "--hot-tier")
        finally:
            server.close()
    else:
        server = PostgresServer()
        try:
            store = server.url().replace("postgresql://", "postgresql+psycopg2://")
            contestant = Contestant(name, "", [], [server.process.pid], folders=[server.data])
            contestant.database = server.data / "base"
            yield from _mlflow(contestant, folder, store)
        finally:
            server.close()


def _hot(contestant: Contestant, folder: Path, database: Path) -> Contestant:
    contestant.lake, contestant.is_hot, contestant.database = str(folder / "lake"), True, database
    return contestant


def _tracelake(
    contestant: Contestant,
    folder: Path,
    pipeline: bool,
    tier: str = "--no-hot-tier",
    *,
    together: bool = False,
) -> Iterator[Contestant]:
    """Run a server, and a pipeline in a process of its own or `together` with it; without one if `pipeline` is off."""
    assert contestant.lake is not None
    serve = ["serve", "--lake", contestant.lake, "--port", "0", tier, "--json"]
    serve += ["--interval", "0.2"] if together and pipeline else ["--no-pipeline"]
    command = [sys.executable, "-m", "tracelake.cli", *serve]
    with _process("serve", command, folder / "serve.log", contestant, read=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, f"serve ended: {(folder / 'serve.log').read_text(errors='replace')[-500:]}"
        told = json.loads(line)
        contestant.url, contestant.grpc = told["url"], told["grpc_url"].removeprefix("http://")
        contestant.door = [server.pid]
        if together or not pipeline:
            yield contestant
            return
        with tracelake_pipeline(contestant.lake, folder, contestant):
            yield contestant


@contextmanager
def tracelake_pipeline(lake: str, folder: Path, contestant: Contestant) -> Iterator[subprocess.Popen[str]]:
    """Run a pipeline on a lake until the end of the block."""
    command = [sys.executable, "-m", "tracelake.cli", "pipeline", "run", "--lake", lake, "--interval", "0.2"]
    with _process("pipeline", command, folder / "pipeline.log", contestant) as process:
        contestant.behind.append(process.pid)
        yield process


def _mlflow(contestant: Contestant, folder: Path, store: str) -> Iterator[Contestant]:
    port = free_port()
    contestant.url = url = f"http://127.0.0.1:{port}"
    command = [str(MLFLOW), "server", "--backend-store-uri", store]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(port)]
    # Its supervisor kills a worker that takes five seconds to start, for ever, where the machine is busy.
    command += ["--uvicorn-opts", "--timeout-worker-healthcheck 120"]
    contestant.environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    log = folder / "mlflow.log"
    with _process("mlflow", command, log, contestant) as server:
        contestant.door = [server.pid]
        _answers(f"{url}/health", server, log)
        body = json.dumps({"name": "door"}).encode()
        request = urllib.request.Request(
            f"{url}/api/2.0/mlflow/experiments/create", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            experiment = json.load(response)["experiment_id"]
        contestant.headers = {"x-mlflow-experiment-id": experiment}
        yield contestant


def _collector(contestant: Contestant, folder: Path, *, batch: bool) -> Iterator[Contestant]:
    """Run a Collector that writes each request, or with `batch` answers before it does, and writes many together."""
    endpoint, contestant.grpc = (f"127.0.0.1:{free_port()}" for _ in range(2))
    contestant.url = f"http://{endpoint}"
    protocols = {"http": {"endpoint": endpoint}, "grpc": {"endpoint": contestant.grpc}}
    processors = {"batch": {"send_batch_size": 1024, "send_batch_max_size": 1024}} if batch else {}
    config = {
        "receivers": {"otlp": {"protocols": protocols}},
        "processors": processors,
        "exporters": {"file": {"path": str(folder / "spans.jsonl")}},
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {
                "traces": {"receivers": ["otlp"], "processors": [*processors], "exporters": ["file"]}
            },
        },
    }
    (folder / "collector.yaml").write_text(json.dumps(config))  # which is YAML, too
    command = [str(COLLECTOR), "--config", f"file:{folder / 'collector.yaml'}"]
    log = folder / "collector.log"
    with _process("collector", command, log, contestant) as server:
        contestant.door = [server.pid]
        _answers(contestant.url, server, log)
        yield contestant


@contextmanager
def _process(
    name: str, command: list[str], log: Path, contestant: Contestant, read: bool = False
) -> Iterator[subprocess.Popen[str]]:
    with log.open("ab") as stream:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE if read else stream,
            stderr=stream,
            text=True,
            # What is compiled is kept, as it is wherever something is installed.
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | contestant.environment,
            cwd=log.parent,
            start_new_session=True,
        )
    begun_s = time.monotonic()
    try:
        yield process
    finally:
        took_s = time.monotonic() - begun_s
        below, counted_s = tree(process.pid), cpu_s(process.pid)
        process.send_signal(signal.SIGTERM)
        used_s = _ended(process)
        for left in below:
            with suppress(psutil.Error):
                left.kill()
        check = {"name": name, "ran_s": took_s, "counted_s": counted_s, "kernel_s": used_s}
        contestant.checks.append(check | {"exit": process.returncode})


def _ended(process: subprocess.Popen[str]) -> float:
    """Wait for the end of a process, and return its processor time and that of its children, as `time` tells it."""
    impatience = threading.Timer(END_S, process.kill)
    impatience.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:
        return 0.0
    finally:
        impatience.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def _answers(url: str, server: subprocess.Popen[str], log: Path) -> None:
    """Wait until a server answers, whatever it says."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            said = log.read_text(errors="replace")[-500:]
            assert server.poll() is None, f"the server has ended: {said}"
            assert time.monotonic() < deadline, f"{url} does not come up: {said}"
            time.sleep(0.2)
        else:
            return


def adopt_orphans() -> None:
    """Become the parent of processes whose own has ended, so that `end_all` finds them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_on_signals() -> None:
    """Leave all blocks, which end what they began, when this process is told to end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # once is enough
    raise SystemExit(128 + number)


def end_all() -> None:
    """End every process that this one has begun, and those below: nothing of a run stays behind."""
    left = [
        process
        for process in psutil.Process().children(recursive=True)
        if not _is_resource_tracker(process)  # it ends with this one, and complains where it is ended before
    ]
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=END_S)


def _is_resource_tracker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline())
    return False


def removed(folder: Path) -> None:
    """Remove what a contestant has left."""
    shutil.rmtree(folder, ignore_errors=True)
