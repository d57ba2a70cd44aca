"""A real OpenTelemetry Collector with the settings of docs/how-to/send-traces.md delivers every span once.

    python -m tests.campaigns collector

This is not in the suite because it needs Go. The YAML is taken from the page unchanged; the Collector also gets
free ports and the variation of each case. The server requires a key, and is the command `tracelake serve`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

import tracelake
from tests.patience import HANG_S, wait_until
from tests.storage.servers.ports import free_port

ROOT: Final = Path(__file__).parents[2]
COLLECTOR: Final = ROOT / ".tools" / "otelcol"
PAGE: Final = ROOT / "docs" / "how-to" / "send-traces.md"
REQUEST_SPANS: Final = 50
START_NS: Final = 1_790_000_000_000_000_000
Ids = set[tuple[str, str]]


@dataclass
class Place:
    """Lake with keys, and the addresses of a server that tests start and stop."""

    lake: Path
    folder: Path
    port: int = field(default_factory=free_port)
    grpc_port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """Return the server's address."""
        return f"http://127.0.0.1:{self.port}"

    def key(self, name: str, *options: str) -> str:
        """Make a key."""
        told = json.loads(
            self._tracelake("key", "create", name, "--lake", str(self.lake), "--json", *options)
        )
        return str(told["token"])

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run `tracelake serve` within the block."""
        ports = ["--port", str(self.port), "--grpc-port", str(self.grpc_port)]
        command = [sys.executable, "-m", "tracelake.cli", "serve", "--lake", str(self.lake), *ports]
        log = self.folder / "serve.log"
        with _running(command, log, {}) as process:
            _up(f"{self.url}/healthz", process, log)
            yield process

    def ids(self) -> list[tuple[str, str]]:
        """Return trace and span id of each row of the lake."""
        with tracelake.open(self.lake) as lake:
            rows = lake.sql("SELECT trace_id, span_id FROM spans").to_pylist()
        return [(_hex(row["trace_id"]), _hex(row["span_id"])) for row in rows]

    def _tracelake(self, *words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "tracelake.cli", *words], capture_output=True, text=True, check=True
        ).stdout


@dataclass(frozen=True)
class Collector:
    """Running Collector."""

    http: str
    grpc: str
    log: Path

    def send(self, first: int, count: int) -> Ids:
        """Send this many requests, by gRPC and HTTP alternately; return their spans, all accepted."""
        sent: Ids = set()
        with grpc.insecure_channel(self.grpc) as channel, httpx.Client(timeout=HANG_S) as client:
            stub = TraceServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            for number in range(first, first + count):
                body = request(number)
                if number % 2:
                    stub.Export(body, timeout=HANG_S)
                else:
                    headers = {"content-type": "application/x-protobuf"}
                    answer = client.post(
                        f"{self.http}/v1/traces", content=body.SerializeToString(), headers=headers
                    )
                    assert answer.status_code == 200, answer.text
                sent |= {(f"{number:032x}", f"{span:016x}") for span in range(1, REQUEST_SPANS + 1)}
        return sent

    def retries(self) -> int:
        """Return the number of retries in its log."""
        return self.log.read_text().count("Will retry the request after interval")


def request(number: int) -> ExportTraceServiceRequest:
    """Return a separate trace for each number."""
    made = ExportTraceServiceRequest()
    resource = made.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "collected"
    scope = resource.scope_spans.add()
    for span_id in range(1, REQUEST_SPANS + 1):
        span = scope.spans.add(
            trace_id=number.to_bytes(16), span_id=span_id.to_bytes(8), name=f"step {span_id}"
        )
        span.start_time_unix_nano = START_NS + span_id
        span.end_time_unix_nano = START_NS + span_id + 1_000
        span.attributes.add(key="input.value").value.string_value = f"question {number} of step {span_id}"
    return made


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a new lake."""
    tracelake.init(tmp_path / "lake").close()
    return Place(tmp_path / "lake", tmp_path)


@pytest.mark.parametrize(
    ("exporter", "compression"),
    [
        ("otlp_grpc", None),
        ("otlp_grpc", "none"),
        ("otlp_http", None),
        ("otlp_http", "gzip"),
        ("otlp_http", "none"),
    ],
)
def test_what_a_collector_sends_arrives(place: Place, exporter: str, compression: str | None) -> None:
    """Every span arrives, by each exporter and compression, and the Collector logs no warning."""
    key = place.key("collector", "--role", "ingest")
    with place.serving(), collector(place, key, exporter, compression) as running:
        sent = running.send(1, 40)
        all_there(place, sent)
        said = running.log.read_text()
    assert "\twarn\t" not in said, said
    assert "\terror\t" not in said, said


@pytest.mark.parametrize("exporter", ["otlp_grpc", "otlp_http"])
def test_back_pressure_is_waited_out(place: Place, exporter: str) -> None:
    """If a key's quota is exceeded, the Collector waits as the server asks, and each span arrives once."""
    key = place.key("collector", "--role", "ingest", "--spans-per-s", "200")
    with place.serving(), collector(place, key, exporter) as running:
        sent = running.send(1, 100)
        all_there(place, sent)
        said = running.log.read_text()
    assert running.retries() > 0, said
    assert "Throttle (" in said, said  # it has read how long to wait
    assert "has used up its spans a second" in said, said
    assert "Dropping data" not in said, said


@pytest.mark.parametrize("exporter", ["otlp_grpc", "otlp_http"])
def test_a_server_that_is_away_is_waited_for(place: Place, exporter: str) -> None:
    """If the server starts late and is killed during the transfer, each span still arrives once."""
    key = place.key("collector", "--role", "ingest")
    with collector(place, key, exporter) as running:
        sent = running.send(1, 40)
        wait_until(lambda: running.retries() > 0, "the Collector does not try again")
        with place.serving() as server:
            sent |= running.send(41, 40)
            server.kill()
        before = running.retries()
        sent |= running.send(81, 40)
        wait_until(lambda: running.retries() > before, "the Collector does not try again")
        with place.serving():
            all_there(place, sent)


def all_there(place: Place, sent: Ids) -> None:
    """Wait for every span; none may be duplicate or unknown."""
    wait_until(
        lambda: len(place.ids()) >= len(sent),
        f"spans are missing; {place.folder}/*.log say more",
        moving=lambda: len(place.ids()),
        poll_s=0.5,
    )
    there = place.ids()
    assert len(there) == len(set(there))
    assert set(there) == sent


def settings() -> str:
    """Return the YAML of the page."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


@contextmanager
def collector(place: Place, key: str, exporter: str, compression: str | None = None) -> Iterator[Collector]:
    """Run a Collector with the page's settings, one of its exporters, and optionally another compression."""
    http, of_grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    protocols = {"grpc": {"endpoint": of_grpc}, "http": {"endpoint": http}}
    varied: dict[str, Any] = {
        "receivers": {"otlp": {"protocols": protocols}},
        "service": {
            "pipelines": {"traces": {"exporters": [exporter]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    if compression is not None:
        varied["exporters"] = {exporter: {"compression": compression}}
    (place.folder / "page.yaml").write_text(settings(), encoding="utf-8")
    (place.folder / "varied.yaml").write_text(json.dumps(varied), encoding="utf-8")  # JSON is YAML, too
    environment = {
        "TRACELAKE_GRPC": f"127.0.0.1:{place.grpc_port}",
        "TRACELAKE_URL": place.url,
        "TRACELAKE_KEY": key,
    }
    log = place.folder / "collector.log"
    words = [f"--config=file:{place.folder / name}" for name in ("page.yaml", "varied.yaml")]
    with _running([str(COLLECTOR), *words], log, environment) as process:
        _up(f"http://{http}", process, log)
        yield Collector(f"http://{http}", of_grpc, log)


@contextmanager
def _running(
    command: list[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("ab") as stream,
        subprocess.Popen(
            command, stdout=stream, stderr=stream, cwd=log.parent, env=os.environ | environment
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            httpx.get(url, timeout=HANG_S)
        except httpx.TransportError:
            return False
        return True

    wait_until(answers, f"{url} does not answer", poll_s=0.1)


def _hex(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.hex()
