"""Record the spans that instrumentation libraries send: `python -m tests.otlp.record [NAME …] [--page]`.

It installs the newest libraries, each with its own environment, and runs the conversations of `clients.py` and
`vercel.mjs` against a model server on loopback. Each recording is a file of `tests/otlp/recorded`, without data of the
machine. Needs the package registries, and Node.js for Vercel's SDK.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.otlp.record.matrix import PAGE, RECORDED, page
from tests.otlp.record.models import ModelHandler, read_body

HERE: Final = Path(__file__).parent
_OTEL: Final = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
_SDK: Final = "opentelemetry-instrumentation"
_OPENINFERENCE: Final = "openinference-instrumentation"

CLIENTS: Final[Mapping[str, Sequence[str]]] = {
    "openai_openllmetry": ("openai", f"{_SDK}-openai"),
    "openai_openinference": ("openai", f"{_OPENINFERENCE}-openai"),
    "openai_otel": ("openai", "httpx", f"{_SDK}-genai-openai"),
    "anthropic_otel": ("anthropic",),
    "anthropic_openllmetry": ("anthropic", f"{_SDK}-anthropic"),
    "anthropic_openinference": ("anthropic", f"{_OPENINFERENCE}-anthropic"),
    "langchain_openllmetry": ("langchain", "langchain-openai", f"{_SDK}-langchain"),
    "langchain_openinference": ("langchain", "langchain-openai", f"{_OPENINFERENCE}-langchain"),
    "llamaindex_openllmetry": (
        *("llama-index-core", "llama-index-llms-openai", "llama-index-embeddings-openai"),
        *(f"{_SDK}-openai", f"{_SDK}-llamaindex"),
    ),
    "llamaindex_openinference": (
        *("llama-index-core", "llama-index-llms-openai", "llama-index-embeddings-openai"),
        f"{_OPENINFERENCE}-llama-index",
    ),
    "pydanticai_otel": ("pydantic-ai-slim[openai]",),
    "pydanticai_openinference": ("pydantic-ai-slim[openai]", f"{_OPENINFERENCE}-pydantic-ai"),
    "pydanticai_logfire": ("pydantic-ai-slim[openai]", "logfire"),
    "litellm_openinference": ("litellm", f"{_OPENINFERENCE}-litellm"),
    "litellm_otel": ("litellm",),
    "openaiagents_openinference": ("openai-agents", f"{_OPENINFERENCE}-openai-agents"),
    "mlflow_openai": ("openai", "numpy", "pandas", "mlflow-skinny"),
    "mlflow_anthropic": ("anthropic", "mlflow-skinny"),
    "vercel": ("@ai-sdk/openai", "ai"),
}
"""Each client with its packages. The last one sends the spans."""

_OF_MACHINE: Final = re.compile(r"^(host|process|os|container|service\.instance)\.|^server\.port$")
_CODE: Final = re.compile(r"^(code|thread)\.")


class _Collector(BaseHTTPRequestHandler):
    """Receiver of spans."""

    requests: list[ExportTraceServiceRequest]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        """Store a request with spans, and ignore others."""
        body = read_body(self)
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path.endswith("/v1/traces"):
            self.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _python(environments: Path, name: str) -> list[str]:
    """Return the command of a client, with its environment installed."""
    place = environments / name
    if not (place / ".ready").exists():
        uv = str(Path(sys.executable).with_name("uv"))
        python = str(place / "bin/python")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, place], check=True)
        packages = [*_OTEL, *CLIENTS[name]]
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *packages], check=True)
        (place / ".ready").touch()
    packages = [package.partition("[")[0] for package in CLIENTS[name]]
    return [str(place / "bin/python"), str(HERE / "clients.py"), name, *packages]


def _node(environments: Path) -> list[str]:
    place = environments / "vercel"
    if not (place / ".ready").exists():
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"private": true}')
        exporter = "@opentelemetry/exporter-trace-otlp-proto"
        packages = [
            *CLIENTS["vercel"],
            "@opentelemetry/sdk-trace-node",
            "@opentelemetry/resources",
            exporter,
            "zod",
        ]
        subprocess.run(["npm", "install", "--silent", *packages], cwd=place, check=True)
        (place / ".ready").touch()
    script = place / "vercel.mjs"
    script.write_text((HERE / "vercel.mjs").read_text())
    return ["node", str(script)]


def record(name: str, environments: Path) -> Path:
    """Run a client, and write the spans that it sends."""
    _Collector.requests = []
    with _serving(ModelHandler) as models, _serving(_Collector) as collector:
        environment = os.environ | {
            "MODELS_URL": models,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector}/v1/traces",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "MLFLOW_TRACKING_URI": f"sqlite:///{environments}/mlflow.db",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "ANTHROPIC_OPEN_TELEMETRY": "false",
            "OTEL_BSP_SCHEDULE_DELAY": "500",
            "NO_PROXY": "*",
        }
        command = _node(environments) if name == "vercel" else _python(environments, name)
        output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, timeout=300)
        versions = json.loads(output.stdout.splitlines()[0])
        traces = ExportTraceServiceRequest()
        for request in _Collector.requests:
            traces.resource_spans.extend(request.resource_spans)
    _scrub(traces)
    text = json.dumps(_as_json(traces), ensure_ascii=False)
    for url in (models, collector):
        text = text.replace(url.removeprefix("http://"), "models.example")
    text = re.sub(r"(https?://)?127\.0\.0\.1(:[0-9]+)?", "models.example", text)
    text = re.sub(r"\b0x[0-9a-f]{8,16}\b", "0x0", text)
    sender = list(versions)[-1]
    RECORDED.mkdir(exist_ok=True)
    for earlier in RECORDED.glob(f"{name}-*.json"):
        earlier.unlink()
    path = RECORDED / f"{name}-{versions[sender]}.json"
    path.write_text(
        json.dumps({"versions": versions, "traces": json.loads(text)}, indent=1, ensure_ascii=False)
    )
    return path


def _as_json(traces: ExportTraceServiceRequest) -> dict[str, Any]:
    """Return OTLP/JSON, which has ids as hexadecimal digits."""
    message: dict[str, Any] = MessageToDict(traces)
    for group in message["resourceSpans"]:
        for scope in group["scopeSpans"]:
            for span in scope["spans"]:
                for name in {"traceId", "spanId", "parentSpanId"}.intersection(span):
                    span[name] = base64.b64decode(span[name]).hex()
    return message


def _scrub(traces: ExportTraceServiceRequest) -> None:
    """Remove the attributes that describe the machine."""
    for group in traces.resource_spans:
        _drop(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                _drop(span.attributes)


def _drop(attributes: Any) -> None:
    remaining = [
        attribute
        for attribute in attributes
        if not _OF_MACHINE.search(attribute.key) and not _CODE.search(attribute.key)
    ]
    del attributes[:]
    attributes.extend(remaining)


def main() -> None:
    """Record the named clients, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CLIENTS))
    parser.add_argument("--environments", type=Path, default=Path(".tools/recorded"))
    parser.add_argument("--page", action="store_true", help="only write the page of the recordings")
    arguments = parser.parse_args()
    for name in () if arguments.page else arguments.names:
        path = record(name, arguments.environments.resolve())
        print(path.name, path.stat().st_size)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
