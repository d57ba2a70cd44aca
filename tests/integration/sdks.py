"""Unmodified official SDKs of four languages deliver as docs/reference/sdks.md says.

    python -m tests.campaigns sdks

This is not in the suite: it needs Go and Maven. `test_exporters.py` has Python and JavaScript. Each SDK sends a
trace of two spans with attributes, an event, a status and a parent, and all of it is read back. It also sends a
metric and a log, which are not stored, and must not warn about them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from tests import npm
from tests.integration.test_exporters import (  # noqa: F401  fixtures among them
    JAVASCRIPT,
    check_python,
    check_trace,
    node,
    not_kept,
    process,
    send_signals,
    server,
    spans_of,
)
from tests.patience import HANG_S
from tests.server.process import ServerProcess

ROOT = Path(__file__).parents[2]
JAVASCRIPT_SIGNALS = Path(__file__).parent / "js-signals"
JAVA = Path(__file__).parent / "java"
GO = Path(__file__).parent / "go"
PAGE = ROOT / "docs" / "reference" / "sdks.md"
HEAD = """# SDKs

Official exporters that send all data to a server without loss or warning. Campaign `sdks` runs each one unmodified. It
compares ids, times, attributes, event, status, parent, service and scope of two spans with those that the server
stores. A metric and a log are answered and not stored.

| language | SDK | protocol | compression |
|---|---|---|---|
"""


def test_what_sdks_send_arrives(
    process: ServerProcess,  # noqa: F811
    server: str,  # noqa: F811
    node: str,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each language, protocol and compression delivers all data; the page says so."""
    npm.install(JAVASCRIPT_SIGNALS)
    rows = [*_python(process, server), *_javascript(process, server, node)]
    rows += [*_java(process, server), *_go(process, server)]
    assert not caplog.records, caplog.text  # of Python's exporters
    PAGE.write_text(HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_sdk_that_warns_is_heard(node: str, protocol: str) -> None:  # noqa: F811
    """An SDK warns on standard error if no server accepts metrics and logs, so its silence is evidence."""
    npm.install(JAVASCRIPT_SIGNALS)
    where = ("http://127.0.0.1:1", protocol, "none")
    _warns([node, "export.mjs", *where], JAVASCRIPT_SIGNALS, r'^\{"stack"')
    _warns([*_java_command("ExportSignals.java"), *where], JAVA, "Failed to export (?:metrics|logs)")


def _warns(command: list[str], folder: Path, warning: str) -> None:
    """Check that a program warns twice."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert len(re.findall(warning, done.stderr, re.MULTILINE)) == 2, done.stderr


def _python(process: ServerProcess, server: str) -> list[tuple[str, ...]]:  # noqa: F811
    rows: list[tuple[str, ...]] = []
    told = ("Python", version("opentelemetry-sdk"))
    for compression in Compression:
        check_python(server, OTLPSpanExporter(f"{server}/v1/traces", compression=compression))
        with _answered(server):
            send_signals(
                OTLPMetricExporter(f"{server}/v1/metrics", compression=compression),
                OTLPLogExporter(f"{server}/v1/logs", compression=compression),
            )
        rows.append((*told, "HTTP, protobuf", compression.value))
    url = f"http://{process.grpc_address}"
    for of_grpc in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        check_python(server, GrpcSpanExporter(url, insecure=True, compression=of_grpc))
        with _answered(server):
            send_signals(
                GrpcMetricExporter(url, insecure=True, compression=of_grpc),
                GrpcLogExporter(url, insecure=True, compression=of_grpc),
            )
        rows.append((*told, "gRPC", "gzip" if of_grpc is grpc.Compression.Gzip else "none"))
    return rows


def _javascript(process: ServerProcess, server: str, node: str) -> list[tuple[str, ...]]:  # noqa: F811
    rows: list[tuple[str, ...]] = []
    packages = json.loads((JAVASCRIPT / "package-lock.json").read_text())["packages"]
    sdk = packages["node_modules/@opentelemetry/sdk-trace-base"]["version"]
    for kind, protocol in (("proto", "HTTP, protobuf"), ("http", "HTTP, JSON"), ("grpc", "gRPC")):
        for compression in ("none", "gzip"):
            url = f"http://{process.grpc_address}" if kind == "grpc" else server
            command = [node, "export.mjs", url, kind, compression]
            _check(server, json.loads(_ran(command, JAVASCRIPT)), f"js-{kind}")
            with _answered(server):
                _ran(command, JAVASCRIPT_SIGNALS)
            rows.append(("JavaScript", sdk, protocol, compression))
    return rows


def _java(process: ServerProcess, server: str) -> list[tuple[str, ...]]:  # noqa: F811
    rows: list[tuple[str, ...]] = []
    sdk = re.search(r"<version>(\d+\.\d+\.\d+)</version>", (JAVA / "pom.xml").read_text())
    assert sdk is not None
    for protocol, name in (("http", "HTTP, protobuf"), ("grpc", "gRPC")):
        for compression in ("none", "gzip"):
            url = f"http://{process.grpc_address}" if protocol == "grpc" else server
            where = (url, protocol, compression)
            _check(server, json.loads(_ran([*_java_command("Export.java"), *where], JAVA)), "java")
            with _answered(server):
                _ran([*_java_command("ExportSignals.java"), *where], JAVA)
            rows.append(("Java", sdk[1], name, compression))
    return rows


def _java_command(program: str) -> list[str]:
    return ["java", "-Dfile.encoding=UTF-8", "-cp", f"{ROOT}/.tools/sdks/*", program]


def _go(process: ServerProcess, server: str) -> list[tuple[str, ...]]:  # noqa: F811
    """Check that Go's program sends metrics and logs, too."""
    rows: list[tuple[str, ...]] = []
    sdk = re.search(r"otel/sdk v(\S+)", (GO / "go.mod").read_text())
    assert sdk is not None
    for protocol, name in (("http", "HTTP, protobuf"), ("grpc", "gRPC")):
        for compression in ("none", "gzip"):
            address = process.grpc_address if protocol == "grpc" else server.removeprefix("http://")
            with _answered(server):
                sent = _ran([f"{ROOT}/.tools/sdk-go", address, protocol, compression], GO)
            _check(server, json.loads(sent), "go")
            rows.append(("Go", sdk[1], name, compression))
    return rows


@contextmanager
def _answered(server: str) -> Iterator[None]:  # noqa: F811
    """Accept metrics and logs at the server within this block."""
    before = not_kept(server)
    yield
    after = not_kept(server)
    assert all(after[signal] > before.get(signal, 0) for signal in ("metrics", "logs")), (before, after)


def _ran(command: list[str], folder: Path) -> str:
    """Run a program; return its output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # an SDK prints its warnings there
    return done.stdout


def _check(server: str, sent: dict[str, Any], service: str) -> None:  # noqa: F811
    times = {name: (int(start), int(end)) for name, (start, end) in sent["times"].items()}
    check_trace(spans_of(server, sent["trace"], 2), service, times)
