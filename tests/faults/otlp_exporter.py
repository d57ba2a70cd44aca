"""Sends spans with OpenTelemetry's official OTLP exporter, and records the result of each export.

    python -m tests.faults.otlp_exporter FOLDER NUMBER SEED

The file `url` of the folder has the target and is read before each export; while it is empty, nothing is sent. The
exporter sends new traces and late spans of earlier ones, several in one export. A failed export is sent again, as
clients do, or given up. Ends with its standard input.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

URL = "url"
TIMEOUT_S = 10.0
EARLIER = 300
"""Number of preceding traces that get late spans."""
AGE_MAX_S = 100.0
"""Maximum age of traces at their start: some are due at once with a retention of a minute."""


@dataclass(frozen=True)
class Part:
    """Spans of one trace, by their numbers."""

    trace: int
    spans: tuple[int, ...]


class NotedSession(requests.Session):
    """Counts requests, and keeps the last answer."""

    sent = 0
    rejected = 0

    def send(self, *given: Any, **named: Any) -> requests.Response:
        """See `requests.Session`."""
        self.sent += 1
        response = super().send(*given, **named)
        if response.status_code == 200:
            answer = ExportTraceServiceResponse.FromString(response.content)
            self.rejected = answer.partial_success.rejected_spans
        return response


class Exporting:
    """One exporter and its spans."""

    def __init__(self, folder: Path, number: int, seed: int) -> None:
        self._folder, self._number = folder, number
        self._rng = random.Random(seed)
        self._spans = [0] * EARLIER
        self._traces = count()
        self._newest = 0
        self._times: dict[int, int] = {}

    def run(self, ending: threading.Event) -> None:
        """Export until the end."""
        batches = count()
        with (self._folder / f"exporter-{self._number}.jsonl").open("a") as log:
            while not ending.wait(self._rng.uniform(0, 0.4)):
                parts = self._batch()
                for attempt in range(3):
                    told = self._export(parts, ending)
                    line = {"batch": next(batches), "attempt": attempt, **told}
                    line["parts"] = [(f"{part.trace:032x}", part.spans) for part in parts]
                    print(json.dumps(line), file=log, flush=True)
                    if told["acknowledged"] or self._rng.random() < 0.3:
                        break

    def _batch(self) -> list[Part]:
        """Draw a few new traces, and sometimes late spans of one before them."""
        late = []
        if self._newest and self._rng.random() < 0.4:
            late = [self._part(self._rng.randint(max(1, self._newest - EARLIER + 1), self._newest))]
        new = []
        for _ in range(self._rng.choice([1, 1, 2, 3])):
            self._newest += 1
            self._spans[self._newest % EARLIER] = 0
            self._times[self._newest % EARLIER] = time.time_ns() - int(self._rng.uniform(0, AGE_MAX_S) * 1e9)
            new.append(self._part(self._newest))
        return late + new

    def _part(self, trace: int) -> Part:
        first = self._spans[trace % EARLIER] + 1
        self._spans[trace % EARLIER] += self._rng.randint(1, 3)
        return Part(self._number << 64 | trace, tuple(range(first, self._spans[trace % EARLIER] + 1)))

    def _export(self, parts: list[Part], ending: threading.Event) -> dict[str, Any]:
        """Export once; the exporter itself retries for a while."""
        while not (url := (self._folder / URL).read_text()) and not ending.wait(0.1):
            pass
        session = NotedSession()
        exporter = OTLPSpanExporter(f"{url}/v1/traces", timeout=TIMEOUT_S, session=session)
        result = exporter.export([self._span(part.trace, span) for part in parts for span in part.spans])
        exporter.shutdown()  # type: ignore[no-untyped-call]  # it has no annotation
        acknowledged = result is SpanExportResult.SUCCESS
        return {"acknowledged": acknowledged, "rejected": session.rejected, "sent": session.sent}

    def _span(self, trace: int, span: int) -> ReadableSpan:
        def context(number: int) -> SpanContext:
            return SpanContext(trace, number, is_remote=False, trace_flags=TraceFlags(1))

        start_ns = self._times[(trace & 0xFFFF_FFFF) % EARLIER] + span
        return ReadableSpan(
            name=f"step {span}",
            context=context(span),
            parent=context(1) if span > 1 else None,
            resource=Resource({"service.name": f"exporter-{self._number}"}),
            attributes={"input.value": f"what is step {span} of {trace:x}"},
            start_time=start_ns,
            end_time=start_ns + 1_000_000,
        )


def wait_for_end(ending: threading.Event) -> None:
    """Signal the end of standard input."""
    sys.stdin.read()
    ending.set()


def main() -> None:
    """Export until standard input ends."""
    logging.disable(logging.ERROR)  # the failures that it logs are recorded here
    ending = threading.Event()
    threading.Thread(target=wait_for_end, args=(ending,), daemon=True).start()
    Exporting(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).run(ending)


if __name__ == "__main__":
    main()
