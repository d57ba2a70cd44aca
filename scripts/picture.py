"""Makes docs/images/*.png: the demo's traces in a lake of its own, and Chromium looking at its pages."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

import uvicorn
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from playwright.sync_api import Page, sync_playwright

import tracelake
from tracelake.demo.agent import QUESTIONS, Agent, passages
from tracelake.demo.run import write_batch
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

IMAGES: Final = Path(__file__).parent.parent / "docs" / "images"
SHOP_SPANS: Final = 400
SHOP_AGO_NS: Final = 300 * 1_000_000_000
ARGUMENTS: Final = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars"


def fill(lake: tracelake.Lake, folder: Path) -> str:
    """Let the agent answer its questions, add a batch of a web shop; return the trace to look at."""
    kept = InMemorySpanExporter()
    agent = Agent(tracer("docs-agent", kept), tracer("docs-index", kept), passages())
    answers = [agent.ask(q, session=f"session-{n // 4 + 1}", user="ada") for n, q in enumerate(QUESTIONS)]
    sent, shop = folder / "agent.otlp.pb", folder / "shop.otlp.jsonl.gz"
    sent.write_bytes(encode_spans(kept.get_finished_spans()).SerializeToString())
    write_batch(shop, SHOP_SPANS, time.time_ns() - SHOP_AGO_NS)
    lake.ingest(sent, shop, runner=InProcess())
    return next(answer.trace_id for answer in answers if answer.missing)


def tracer(service: str, exporter: SpanExporter) -> Tracer:
    """Return a tracer of one service."""
    provider = TracerProvider(resource=Resource({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("tracelake.demo")


@contextmanager
def served(lake: tracelake.Lake) -> Iterator[str]:
    """Serve the lake in a thread; yield its address."""
    with closing(Inbox(lake.objects)) as inbox, socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(lake, inbox), log_config=None, access_log=False))
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def browser_page() -> Iterator[Page]:
    """Open a page of Chromium, light, at one and a half times the pixels."""
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("chromium is missing: run scripts/setup-browser as root, or install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS.split())
        yield browser.new_page(
            viewport={"width": 1120, "height": 640}, device_scale_factor=1.5, color_scheme="light"
        )
        browser.close()


def main() -> None:
    """Write the pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        with tracelake.init(folder / "lake") as lake:
            trace_id = fill(lake, folder)
            with served(lake) as url, browser_page() as page:
                page.goto(f"{url}/traces/{trace_id}")
                page.click('.row:has-text("execute_tool search_docs")')
                page.locator(".details h2").wait_for()
                page.screenshot(path=IMAGES / "trace.png")
    for image in sorted(IMAGES.glob("*.png")):
        print(f"{image.name}: {image.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
