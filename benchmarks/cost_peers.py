"""Peers of `cost.py`: how each is installed, started, fed and asked.

Each lives in a cache directory: an environment with packages from PyPI, or a program built from a Go module. A peer
that cannot be installed is reported with the reason. `TRACELAKE_PEER_<NAME>` names a program that exists already.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import httpx

START_S: Final = 300.0
INSTALL_S: Final = 2_400.0
_HERE: Final = Path(__file__).parent


class MissingPeerError(Exception):
    """A peer cannot be installed here, or does not start."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request, a word that only its first span has, and the trace of this span."""

    body: bytes
    word: str
    trace_id: str


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Peer:
    """One server on a new folder."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages from PyPI."""
    go: ClassVar[tuple[str, str]] = ("", "")
    """Go package and version of the program."""
    health: ClassVar[str] = "/"
    memory_s: ClassVar[float] = 0.0
    """Time for which spans stay in memory before they are written."""
    rate_max: ClassVar[float] = float("inf")
    """Spans a second that two cores certainly take."""

    def __init__(self, cache: Path, folder: Path) -> None:
        self.cache, self.folder = cache, folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.traces = f"{self.url}/v1/traces"
        self.headers: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.pid = 0

    @property
    def port(self) -> str:
        """The port of the server."""
        return self.url.rpartition(":")[2]

    def command(self, program: str) -> list[str]:
        """Return the command that starts the server."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Prepare the running server."""

    def find(self, client: httpx.Client, sent: SentRequest) -> bool:
        """Return whether a trace is found, by a word of it or by its id."""
        raise NotImplementedError

    def program(self) -> str:
        """Return the program, and install it before if needed. Raises MissingPeerError."""
        given = os.environ.get(f"TRACELAKE_PEER_{self.name.upper()}")
        if given:
            return given
        target = self.cache / self.name
        program = target / "bin" / (self.go[0].rpartition("/")[2] if self.go[0] else self.name)
        if not (target / ".ready").exists():
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            for command in self._install(target, program):
                _run(command, target)
            (target / ".ready").touch()
        return str(target / "bin" / "python" if self.name == "clickhouse" else program)

    def _install(self, target: Path, program: Path) -> Iterator[list[str]]:
        if self.go[0]:
            package, version = self.go
            module = "/".join(package.split("/")[:3])
            yield ["go", "mod", "init", "peer"]
            yield ["go", "get", f"{module}@{version}"]
            yield ["go", "get", f"{package}@{version}"]
            yield ["go", "build", "-o", str(program), package]
            return
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        python = str(target / "bin" / "python")
        if uv:
            yield [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(target)]
            yield [uv, "pip", "install", "--quiet", "--python", python, *self.packages]
        else:
            yield [sys.executable, "-m", "venv", str(target)]
            yield [python, "-m", "pip", "install", "--quiet", *self.packages]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the server until the end of the block. Raises MissingPeerError."""
        program = self.program()
        self.folder.mkdir(parents=True)
        command = self.command(program)
        with (self.folder.parent / f"{self.name}.log").open("wb") as log:
            server = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=os.environ | self.environment
            )
            self.pid = server.pid
            try:
                self._wait(server)
                self.prepare()
                yield
            finally:
                server.terminate()
                try:
                    server.wait(60)
                except subprocess.TimeoutExpired:
                    server.kill()

    def _wait(self, server: subprocess.Popen[bytes]) -> None:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s and server.poll() is None:
            try:
                httpx.get(self.url + self.health, timeout=5)
            except httpx.HTTPError:
                time.sleep(0.2)
            else:
                return
        raise MissingPeerError(f"{self.name} does not start: {self.folder.parent}/{self.name}.log")


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=INSTALL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingPeerError(f"`{command[0]} {command[1]}`: {error}") from error
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise MissingPeerError(f"`{command[0]} {command[1]} …` failed: {last[:300]}")


class ClickHouse(Peer):
    """ClickHouse, embedded in a Python process behind an OTLP door, with a text index."""

    name = "clickhouse"
    packages = ("chdb==4.4.0", "pyarrow", "opentelemetry-proto")
    memory_s = 2.0

    def command(self, program: str) -> list[str]:
        """See `Peer`."""
        return [program, str(_HERE / "cost_clickhouse.py"), str(self.folder / "data"), self.port]

    def find(self, client: httpx.Client, sent: SentRequest) -> bool:
        """See `Peer`."""
        query = f"SELECT count() FROM otel.spans WHERE hasToken(lower(Text), '{sent.word}')"
        return client.post(f"{self.url}/sql", content=query).json()["data"][0][0] not in (0, "0")


class VictoriaTraces(Peer):
    """VictoriaTraces: attributes as columns, found by trace id."""

    name = "victoriatraces"
    go = ("github.com/VictoriaMetrics/VictoriaTraces/app/victoria-traces", "v0.5.0")
    health = "/health"
    memory_s = 7.0

    def command(self, program: str) -> list[str]:
        """See `Peer`."""
        self.traces = f"{self.url}/insert/opentelemetry/v1/traces"
        options = {"storageDataPath": self.folder / "data", "httpListenAddr": f"127.0.0.1:{self.port}"}
        return [program, *(f"-{name}={value}" for name, value in options.items()), "-retentionPeriod=10y"]

    def find(self, client: httpx.Client, sent: SentRequest) -> bool:
        """See `Peer`."""
        query = {"query": f'_time:1h trace_id:="{sent.trace_id}" | limit 1'}
        return bool(client.get(f"{self.url}/select/logsql/query", params=query).text.strip())


class Jaeger(Peer):
    """Jaeger with Badger: no full text, found by trace id."""

    name = "jaeger"
    go = ("github.com/jaegertracing/jaeger/cmd/jaeger", "v1.76.0")
    health = "/api/services"

    def command(self, program: str) -> list[str]:
        """See `Peer`."""
        receiver, query_grpc = free_port(), free_port()
        self.traces = f"http://127.0.0.1:{receiver}/v1/traces"
        places = {"keys": f"{self.folder}/keys", "values": f"{self.folder}/values"}
        badger = {"directories": places, "ephemeral": False, "ttl": {"spans": "8760h"}}
        config = {
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "pipelines": {
                    "traces": {
                        "receivers": ["otlp"],
                        "processors": ["batch"],
                        "exporters": ["jaeger_storage_exporter"],
                    }
                },
                "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
            },
            "extensions": {
                "jaeger_query": {
                    "storage": {"traces": "some"},
                    "http": {"endpoint": f"127.0.0.1:{self.port}"},
                    "grpc": {"endpoint": f"127.0.0.1:{query_grpc}"},
                },
                "jaeger_storage": {"backends": {"some": {"badger": badger}}},
            },
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{receiver}"}}}},
            "processors": {"batch": {}},
            "exporters": {"jaeger_storage_exporter": {"trace_storage": "some"}},
        }
        file = self.folder / "jaeger.yaml"
        file.write_text(json.dumps(config))
        return [program, "--config", str(file)]

    def find(self, client: httpx.Client, sent: SentRequest) -> bool:
        """See `Peer`."""
        answer = client.get(f"{self.url}/api/traces/{sent.trace_id}")
        return answer.is_success and bool(answer.json()["data"])


class Mlflow(Peer):
    """MLflow's tracking server on SQLite: found by trace id."""

    name = "mlflow"
    packages = ("mlflow",)
    health = "/health"
    rate_max = 100.0

    def command(self, program: str) -> list[str]:
        """See `Peer`."""
        self.environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        store = ["--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"]
        files = ["--artifacts-destination", str(self.folder / "artifacts")]
        return [program, "server", *store, *files, "--host", "127.0.0.1", "--port", self.port]

    def prepare(self) -> None:
        """See `Peer`."""
        place = f"{self.url}/api/2.0/mlflow/experiments/create"
        answer = httpx.post(place, json={"name": "cost"}, timeout=60).raise_for_status()
        self.headers = {"x-mlflow-experiment-id": answer.json()["experiment_id"]}

    def find(self, client: httpx.Client, sent: SentRequest) -> bool:
        """See `Peer`."""
        place = f"{self.url}/api/3.0/mlflow/traces/get"
        return client.get(place, params={"trace_id": f"tr-{sent.trace_id}"}).is_success


class Phoenix(Peer):
    """Arize Phoenix on SQLite: found by trace id."""

    name = "phoenix"
    packages = ("arize-phoenix",)
    health = "/healthz"
    rate_max = 50.0

    def command(self, program: str) -> list[str]:
        """See `Peer`."""
        self.environment = {
            "PHOENIX_WORKING_DIR": str(self.folder),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": self.port,
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        return [program, "serve"]

    def find(self, client: httpx.Client, sent: SentRequest) -> bool:
        """See `Peer`."""
        place = f"{self.url}/v1/projects/default/spans"
        answer = client.get(f"{place}?trace_id={sent.trace_id}&limit=1")
        return answer.is_success and bool(answer.json()["data"])


PEERS: Final[dict[str, type[Peer]]] = {
    each.name: each for each in (ClickHouse, VictoriaTraces, Jaeger, Mlflow, Phoenix)
}
