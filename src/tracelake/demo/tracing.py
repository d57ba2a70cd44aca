"""The OpenTelemetry SDK, set up as any application would: two services that export over OTLP/HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from tracelake.limits import DEMO_EXPORT_TIMEOUT_S


@contextmanager
def tracers(server_url: str, *services: str) -> Iterator[list[Tracer]]:
    """Yield a tracer for each service; when the context ends, all of their spans have been sent."""
    with ExitStack() as stack:
        yield [stack.enter_context(_tracer(server_url, service)) for service in services]


@contextmanager
def _tracer(server_url: str, service: str) -> Iterator[Tracer]:
    with requests.Session() as session:
        session.trust_env = False  # the server is on this machine: no proxy between
        exporter = OTLPSpanExporter(f"{server_url}/v1/traces", timeout=DEMO_EXPORT_TIMEOUT_S, session=session)
        provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        try:
            yield provider.get_tracer("tracelake.demo")
        finally:
            provider.force_flush(DEMO_EXPORT_TIMEOUT_S * 1000)
            provider.shutdown()
