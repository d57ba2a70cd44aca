"""The official OpenTelemetry exporters, unmodified, against a real server: their spans come back whole."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_trace_id

import tracelake
from tests import npm
from tests.patience import HANG_S
from tests.server.process import ServerProcess, serving

JAVASCRIPT = Path(__file__).parent / "js"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server with its pipeline, over a new lake."""
    path = tmp_path_factory.mktemp("exporters") / "lake"
    tracelake.init(path).close()
    with serving(path, pipeline=True) as process:
        yield process


@pytest.fixture(scope="module")
def server(process: ServerProcess) -> str:
    """Return its address."""
    return process.url


@pytest.fixture(scope="module")
def node() -> str:
    """Return the path of node, with the exporters installed as the lock file says."""
    return npm.install(JAVASCRIPT)


def spans_of(server: str, trace_id: str, count: int) -> dict[str, dict[str, Any]]:
    """Wait until the trace has this number of spans; return them by name."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        response = httpx.get(f"{server}/api/v1/traces/{trace_id}", timeout=HANG_S)
        if response.status_code == 200 and len(response.json()["spans"]) == count:
            return {span["name"]: span for span in response.json()["spans"]}
        time.sleep(0.2)
    ready = httpx.get(f"{server}/readyz").text
    pytest.fail(f"trace {trace_id} did not appear: {response.status_code} {response.text[:300]}; {ready}")


def check_trace(spans: dict[str, dict[str, Any]], service: str, times: dict[str, tuple[int, int]]) -> None:
    """Compare with the spans that both programs send; `times` has start and end by span name."""
    ask, chat = spans["ask"], spans["chat"]
    assert (ask["service"], ask["kind"], ask["session_id"], ask["parent_span_id"]) == (
        service,
        "SERVER",
        "s-1",
        None,
    )
    assert ask["attributes"]["tall"] == "ünïcödé 🎉"
    assert (chat["parent_span_id"], chat["kind"], chat["input"]) == (ask["span_id"], "CLIENT", "hello")
    assert (chat["status"], chat["status_message"]) == ("ERROR", "too late")
    assert (chat["attributes"]["count"], chat["attributes"]["ratio"]) == ("3", "0.5")
    assert (chat["events"][0]["name"], chat["events"][0]["attributes"]) == ("retry", {"attempt": "2"})
    assert chat["scope"]["name"] == "exporter-test"
    assert {name: (span["start_ns"], span["end_ns"]) for name, span in spans.items()} == times


@pytest.mark.parametrize("kind", ["proto", "http", "grpc"])
def test_javascript_exporters(process: ServerProcess, server: str, node: str, kind: str) -> None:
    """The JavaScript exporters deliver protobuf, JSON and gRPC, each with gzip."""
    command = [node, "export.mjs", f"http://{process.grpc_address}" if kind == "grpc" else server, kind]
    done = subprocess.run(
        command, cwd=JAVASCRIPT, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout)
    times = {name: (int(start), int(end)) for name, (start, end) in sent["times"].items()}
    check_trace(spans_of(server, sent["trace"], 2), f"js-{kind}", times)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
def test_python_exporter(server: str, compression: Compression) -> None:
    """The Python exporter delivers protobuf with each of its compressions."""
    check_python(server, OTLPSpanExporter(f"{server}/v1/traces", compression=compression))


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_python_grpc_exporter(process: ServerProcess, server: str, compression: grpc.Compression) -> None:
    """The Python exporter delivers over gRPC."""
    address = f"http://{process.grpc_address}"
    check_python(server, GrpcSpanExporter(address, insecure=True, compression=compression))


def test_other_signals_warn_nobody(process: ServerProcess, caplog: pytest.LogCaptureFixture) -> None:
    """An SDK that also exports metrics and logs gets no warning, over either protocol; they are counted."""
    grpc_url = f"http://{process.grpc_address}"
    send_signals(OTLPMetricExporter(f"{process.url}/v1/metrics"), OTLPLogExporter(f"{process.url}/v1/logs"))
    send_signals(GrpcMetricExporter(grpc_url, insecure=True), GrpcLogExporter(grpc_url, insecure=True))
    assert not caplog.records, caplog.text
    assert not_kept(process.url) == {"metrics": 2, "logs": 2}


def send_signals(metric_exporter: MetricExporter, log_exporter: LogRecordExporter) -> None:
    """Send a metric and a log."""
    metrics = MeterProvider([PeriodicExportingMetricReader(metric_exporter, math.inf)])
    metrics.get_meter("exporter-test").create_counter("asked").add(1)
    metrics.force_flush()
    metrics.shutdown()
    logs = LoggerProvider()
    logs.add_log_record_processor(BatchLogRecordProcessor(log_exporter))
    logs.get_logger("exporter-test").emit(LogRecord(body="asked"))
    logs.shutdown()


def not_kept(url: str) -> dict[str, int]:
    """Return the number of requests with unsupported signals that a server answered."""
    told = httpx.get(f"{url}/metrics").text
    counts = re.findall(r'tracelake_not_kept_requests_total{signal="(\w+)"} (\S+)', told)
    return {signal: int(float(count)) for signal, count in counts}


def check_python(server: str, exporter: SpanExporter) -> None:
    """Send a trace by an exporter, and compare it with the stored one."""
    provider = TracerProvider(resource=Resource({"service.name": "python"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("exporter-test", "1.0.0")
    attributes = {"session.id": "s-1", "tall": "ünïcödé 🎉"}
    with tracer.start_as_current_span("ask", kind=SpanKind.SERVER, attributes=attributes) as ask:
        chat = tracer.start_span("chat", kind=SpanKind.CLIENT, attributes={"count": 3, "ratio": 0.5})
        chat.set_attribute("input.value", "hello")
        chat.add_event("retry", {"attempt": 2})
        chat.set_status(StatusCode.ERROR, "too late")
        chat.end()
    provider.shutdown()
    times = {}
    for span in (ask, chat):
        assert isinstance(span, ReadableSpan)
        assert span.start_time is not None
        assert span.end_time is not None
        times[span.name] = (span.start_time, span.end_time)
    check_trace(spans_of(server, format_trace_id(ask.get_span_context().trace_id), 2), "python", times)
