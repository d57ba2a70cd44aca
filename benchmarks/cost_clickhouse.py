"""OTLP/HTTP in front of an embedded ClickHouse (`chdb`): one process that inserts spans and answers SQL.

    python cost_clickhouse.py FOLDER PORT

`cost.py` starts it in an environment of its own. The table is that of the OpenTelemetry Collector's exporter, with a
text index over all attribute values: words as they are, without stems and ranking. Rows are inserted once a second.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pyarrow as pa
from chdb import session
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

INSERT_EACH_S: Final = 1.0
MAP: Final = pa.map_(pa.string(), pa.string())
TEXTS: Final = ("TraceId", "SpanId", "ParentSpanId", "SpanName", "SpanKind", "ServiceName", "StatusCode")
_FIELDS: Final[list[Any]] = [
    pa.field("Timestamp", pa.timestamp("ns")),
    *(pa.field(name, pa.string()) for name in TEXTS),
    pa.field("SpanAttributes", MAP),
    pa.field("Duration", pa.uint64()),
]
SCHEMA: Final = pa.schema(_FIELDS)
TABLE: Final = """
CREATE TABLE IF NOT EXISTS otel.spans (
  Timestamp DateTime64(9) CODEC(Delta, ZSTD(1)), TraceId String CODEC(ZSTD(1)), SpanId String CODEC(ZSTD(1)),
  ParentSpanId String CODEC(ZSTD(1)), SpanName LowCardinality(String) CODEC(ZSTD(1)),
  SpanKind LowCardinality(String) CODEC(ZSTD(1)), ServiceName LowCardinality(String) CODEC(ZSTD(1)),
  SpanAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)), Duration UInt64 CODEC(ZSTD(1)),
  StatusCode LowCardinality(String) CODEC(ZSTD(1)),
  Text String MATERIALIZED arrayStringConcat(mapValues(SpanAttributes), '\\n') CODEC(ZSTD(1)),
  INDEX by_trace TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
  INDEX by_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
  INDEX by_value mapValues(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
  INDEX by_duration Duration TYPE minmax GRANULARITY 1,
  INDEX by_word lower(Text) TYPE text(tokenizer = 'splitByNonAlpha')
) ENGINE MergeTree PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))
"""


class Store:
    """The table and the rows that wait for the next insert."""

    def __init__(self, folder: str) -> None:
        self._session = session.Session(folder)
        self._using, self._adding = threading.Lock(), threading.Lock()
        self._rows: list[tuple[Any, ...]] = []
        for statement in ("CREATE DATABASE IF NOT EXISTS otel", TABLE):
            self._session.query(statement)

    def add(self, body: bytes) -> None:
        """Add the spans of a request."""
        rows = list(rows_of(ExportTraceServiceRequest.FromString(body)))
        with self._adding:
            self._rows += rows

    def insert_forever(self) -> None:
        """Insert waiting rows once a second."""
        while True:
            time.sleep(INSERT_EACH_S)
            self.flush()

    def flush(self) -> None:
        """Insert waiting rows."""
        with self._adding:
            rows, self._rows = self._rows, []
        if rows:
            table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
            with self._using:
                self._session.query(
                    f"INSERT INTO otel.spans ({', '.join(SCHEMA.names)}) SELECT * FROM Python(table)"
                )
            del table

    def ask(self, query: str) -> bytes:
        """Return the answer to a query as JSON."""
        with self._using:
            answer: bytes = self._session.query(query, "JSONCompact").bytes()
        return answer


def rows_of(request: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the spans of a request as rows."""
    for resource in request.resource_spans:
        service = next((_text(a.value) for a in resource.resource.attributes if a.key == "service.name"), "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield (
                    span.start_time_unix_nano,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    str(span.kind),
                    service,
                    str(span.status.code),
                    [(each.key, _text(each.value)) for each in span.attributes],
                    max(0, span.end_time_unix_nano - span.start_time_unix_nano),
                )


def _text(value: Any) -> str:
    which = value.WhichOneof("value")
    return "" if which is None else str(getattr(value, which))


def main() -> None:
    """Serve until the process is stopped."""
    store = Store(sys.argv[1])
    threading.Thread(target=store.insert_forever, daemon=True).start()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = 65_536

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/v1/traces":
                store.add(body)
                self._answer(b"")
            elif self.path == "/flush":
                store.flush()
                self._answer(b"")
            else:
                self._answer(store.ask(body.decode()))

        def do_GET(self) -> None:
            self._answer(json.dumps({"status": "ok"}).encode())

        def log_message(self, *_: Any) -> None:
            pass

        def _answer(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()


if __name__ == "__main__":
    main()
