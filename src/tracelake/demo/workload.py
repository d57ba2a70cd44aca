"""Generated traces of a web shop, for volume. A fixed seed gives each run the same shape."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

SEED: Final = 20_260_101
LINE_SPANS: Final = 500
ERROR_RATE: Final = 0.01
SPREAD_NS: Final = 3_600 * 1_000_000_000
"""Traces start within this time before the given end."""

_Spans: TypeAlias = dict[str, list[dict[str, Any]]]
"""Spans in OTLP JSON, by service."""

_KINDS: Final = {"SERVER": 2, "CLIENT": 3}


@dataclass(frozen=True, slots=True)
class Rpc:
    """Call of a service: its own median time, and its calls to other services."""

    service: str
    name: str
    median_ms: float
    calls: tuple[Rpc, ...] = ()


_STOCK = Rpc("inventory", "GET /stock/{sku}", 3, (Rpc("inventory-db", "SELECT stock", 1.2),))
_PRICE = Rpc("pricing", "price.Quote", 2)
_CATALOG = Rpc("catalog", "GET /products", 4, (Rpc("catalog-db", "SELECT products", 2), _PRICE))
_PAY = Rpc("payment", "payment.Charge", 25, (Rpc("fraud", "fraud.Score", 12),))
ROUTES: Final = (
    Rpc("gateway", "GET /", 2, (_CATALOG,)),
    Rpc("gateway", "GET /product", 2, (_CATALOG, _STOCK)),
    Rpc("gateway", "POST /cart", 2, (Rpc("cart", "cart.Add", 3, (_STOCK, _PRICE)),)),
    Rpc("gateway", "POST /checkout", 4, (Rpc("checkout", "checkout.Place", 6, (_STOCK, _PRICE, _PAY)),)),
)


def write_batch(path: Path, spans: int, end_ns: int) -> int:
    """Write at least `spans` spans as gzipped lines of OTLP JSON; return their number. Traces are never split."""
    rng = random.Random(SEED)  # noqa: S311  not for secrets
    written = 0
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as file:
        while written < spans:
            line: _Spans = defaultdict(list)
            size = min(LINE_SPANS, spans - written)
            while sum(map(len, line.values())) < size:
                trace_id, start_ns = f"{rng.getrandbits(128):032x}", end_ns - rng.randrange(SPREAD_NS)
                _call(rng, line, rng.choice(ROUTES), trace_id, None, start_ns)
            written += sum(map(len, line.values()))
            file.write(json.dumps(_document(line), separators=(",", ":")) + "\n")
    return written


def _call(
    rng: random.Random,
    by_service: _Spans,
    call: Rpc,
    trace_id: str,
    parent: str | None,
    start_ns: int,
) -> int:
    """Add the spans of a call and of its sequential sub-calls; return its end time."""
    span_id = f"{rng.getrandbits(64):016x}"
    own_ns = int(call.median_ms * rng.lognormvariate(0, 0.6) * 1e6)
    now_ns = start_ns + own_ns // 2
    for below in call.calls:
        now_ns = _call(rng, by_service, below, trace_id, span_id, now_ns)
    end_ns = now_ns + own_ns // 2
    failed = rng.random() < ERROR_RATE
    span: dict[str, Any] = {
        "traceId": trace_id,
        "spanId": span_id,
        "name": call.name,
        "kind": _KINDS["CLIENT" if call.service.endswith("-db") else "SERVER"],
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(end_ns),
        "attributes": [
            {"key": "server.address", "value": {"stringValue": f"{call.service}-{rng.randrange(3)}"}},
            {"key": "retry.count", "value": {"intValue": str(rng.randrange(3) if failed else 0)}},
        ],
        "status": {"code": 2, "message": f"{call.service} timed out"} if failed else {},
    }
    if parent is not None:
        span["parentSpanId"] = parent
    by_service[call.service].append(span)
    return end_ns


def _document(by_service: _Spans) -> dict[str, Any]:
    """Return one TracesData object with a resource per service."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]},
                "scopeSpans": [{"scope": {"name": "tracelake.demo.workload"}, "spans": spans}],
            }
            for service, spans in sorted(by_service.items())
        ]
    }
