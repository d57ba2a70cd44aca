"""The official SDKs of four languages, unmodified, over both protocols: what arrived, as docs/reference/sdks.md.

    make sdks

No part of the suite, for it needs Go and Maven: `test_exporters.py` has Python and JavaScript. Each sends a trace of
two spans with attributes, an event, a status and a parent, and reads all of it back.
"""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from tests.integration.test_exporters import (  # noqa: F401  fixtures among them
    JAVASCRIPT,
    check_python,
    check_trace,
    node,
    process,
    server,
    spans_of,
)
from tests.patience import HANG_S
from tests.server.process import ServerProcess

ROOT = Path(__file__).parents[2]
JAVA = Path(__file__).parent / "java"
GO = Path(__file__).parent / "go"
PAGE = ROOT / "docs" / "reference" / "sdks.md"
HEAD = """# SDKs

Written by `make sdks`, which drives the official exporters, unmodified, against a server. Each sends a trace of
two spans and reads it back: ids, times, attributes, event, status, parent, service and scope are compared.

| language | SDK | protocol | compression | arrived |
|---|---|---|---|---|
"""
ARRIVED = "2 of 2 spans, all equal"


def test_what_sdks_send_arrives(process: ServerProcess, server: str, node: str) -> None:  # noqa: F811
    """All of it, by each language, protocol and compression; the page says so."""
    rows = [*_python(process, server), *_javascript(process, server, node)]
    rows += [*_java(process, server), *_go(process, server)]
    PAGE.write_text(HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows))


def _python(process: ServerProcess, server: str) -> list[tuple[str, ...]]:  # noqa: F811
    rows: list[tuple[str, ...]] = []
    told = ("Python", version("opentelemetry-sdk"))
    for compression in Compression:
        check_python(server, OTLPSpanExporter(f"{server}/v1/traces", compression=compression))
        rows.append((*told, "HTTP, protobuf", compression.value, ARRIVED))
    for of_grpc in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
        url = f"http://{process.grpc_address}"
        check_python(server, GrpcSpanExporter(url, insecure=True, compression=of_grpc))
        rows.append((*told, "gRPC", "gzip" if of_grpc is grpc.Compression.Gzip else "none", ARRIVED))
    return rows


def _javascript(process: ServerProcess, server: str, node: str) -> list[tuple[str, ...]]:  # noqa: F811
    rows: list[tuple[str, ...]] = []
    packages = json.loads((JAVASCRIPT / "package-lock.json").read_text())["packages"]
    sdk = packages["node_modules/@opentelemetry/sdk-trace-base"]["version"]
    for kind, protocol in (("proto", "HTTP, protobuf"), ("http", "HTTP, JSON"), ("grpc", "gRPC")):
        for compression in ("none", "gzip"):
            url = f"http://{process.grpc_address}" if kind == "grpc" else server
            sent = _ran([node, "export.mjs", url, kind, compression], JAVASCRIPT)
            _check(server, sent, f"js-{kind}")
            rows.append(("JavaScript", sdk, protocol, compression, ARRIVED))
    return rows


def _java(process: ServerProcess, server: str) -> list[tuple[str, ...]]:  # noqa: F811
    rows: list[tuple[str, ...]] = []
    sdk = re.search(r"<version>(\d+\.\d+\.\d+)</version>", (JAVA / "pom.xml").read_text())
    assert sdk is not None
    for protocol in ("http", "grpc"):
        for compression in ("none", "gzip"):
            url = f"http://{process.grpc_address}" if protocol == "grpc" else server
            command = ["java", "-Dfile.encoding=UTF-8", "-cp", f"{ROOT}/.tools/sdks/*", "Export.java"]
            _check(server, _ran([*command, url, protocol, compression], JAVA), "java")
            rows.append(
                ("Java", sdk[1], "gRPC" if protocol == "grpc" else "HTTP, protobuf", compression, ARRIVED)
            )
    return rows


def _go(process: ServerProcess, server: str) -> list[tuple[str, ...]]:  # noqa: F811
    """Metrics and logs go with them, and nothing is said of it."""
    rows: list[tuple[str, ...]] = []
    sdk = re.search(r"otel/sdk v(\S+)", (GO / "go.mod").read_text())
    assert sdk is not None
    for protocol, name in (("http", "HTTP, protobuf"), ("grpc", "gRPC")):
        for compression in ("none", "gzip"):
            address = process.grpc_address if protocol == "grpc" else server.removeprefix("http://")
            command = [f"{ROOT}/.tools/sdk-go", address, protocol, compression]
            _check(server, _ran(command, GO), "go")
            rows.append(("Go", sdk[1], name, compression, ARRIVED))
    return rows


def _ran(command: list[str], folder: Path) -> dict[str, Any]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # an SDK that warns says so there
    sent: dict[str, Any] = json.loads(done.stdout)
    return sent


def _check(server: str, sent: dict[str, Any], service: str) -> None:  # noqa: F811
    times = {name: (int(start), int(end)) for name, (start, end) in sent["times"].items()}
    check_trace(spans_of(server, sent["trace"], 2), service, times)
