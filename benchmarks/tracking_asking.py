"""What `tracking.py` asks of a server, in its own words: spans are sent, traces got one by one, text searched for."""

from __future__ import annotations

import http.client
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.door_senders import bodies, with_ids
from benchmarks.door_servers import Contestant

SPANS_A_TRACE: Final = 10
SPAN_BYTES: Final = 4_400
"""No span is larger."""
WORDS_A_TRACE: Final = 20_000
"""Texts are cut from three times as many words as they have."""
ASKED: Final = 50
"""Of each kind of question, unless they take long."""
ASKING_S: Final = 60.0
"""After so long no further one is asked: MLflow may take seconds for one search."""
WARM: Final = 3
"""As many questions go before, of which no time is taken."""
OTLP: Final = {"Content-Type": "application/x-protobuf"}
_JSON: Final = {"Content-Type": "application/json"}


def connected(contestant: Contestant) -> http.client.HTTPConnection:
    """Return a connection to its server."""
    address = urlsplit(contestant.url)
    return http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)


def trace_id(number: int) -> str:
    """Return the id of the trace of this number."""
    return random.Random(number).randbytes(16).hex()


def token(id_of_trace: str) -> str:
    """Return the word that the first span of this trace has, and no other."""
    return f"q{id_of_trace[:15]}"


def fill(contestant: Contestant, first: int, traces: int, traces_a_request: int = 50) -> list[str]:
    """Send so many traces, each of other texts; return their ids."""
    pool = bodies(SPANS_A_TRACE, "protobuf", traces * SPANS_A_TRACE * SPAN_BYTES, traces * WORDS_A_TRACE)
    connection = connected(contestant)
    for begin in range(first, first + traces, traces_a_request):
        numbers = range(begin, min(begin + traces_a_request, first + traces))
        body = b"".join(with_ids(pool[each % len(pool)], each, "protobuf")[0] for each in numbers)
        connection.request("POST", "/v1/traces", body, {**OTLP, **contestant.headers})
        response = connection.getresponse()
        assert response.status == 200, (response.status, response.read())
        response.read()
    return [trace_id(number) for number in range(first, first + traces)]


def json_of(
    connection: http.client.HTTPConnection, method: str, path: str, body: object = None
) -> tuple[int, Any]:
    """Ask for a document; return status and document."""
    sent = None if body is None else json.dumps(body).encode()
    connection.request(method, path, sent, _JSON if sent else {})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def gets(contestant: Contestant, ids: Sequence[str]) -> dict[str, object]:
    """Get traces one by one, each with all its spans."""
    path = "/api/v1/traces/{}"
    if contestant.name.startswith("mlflow"):
        path = "/ajax-api/3.0/mlflow/traces/get?trace_id=tr-{}"

    def get(connection: http.client.HTTPConnection, of: str) -> bool:
        status, document = json_of(connection, "GET", path.format(of))
        found = document.get("spans") or document.get("trace", {}).get("spans") or []
        return status == 200 and len(found) == SPANS_A_TRACE

    return _asked("get", contestant, ids, get)


def searches(contestant: Contestant, ids: Sequence[str]) -> dict[str, object]:
    """Search for a word that one span of each of these traces has."""

    def search(connection: http.client.HTTPConnection, of: str) -> bool:
        if not contestant.name.startswith("mlflow"):
            status, document = json_of(connection, "GET", f"/api/v1/search?q={token(of)}&limit=10")
            return status == 200 and [hit["trace_id"] for hit in document["hits"]] == [of]
        place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": _experiment(contestant)}}
        asked = {"locations": [place], "filter": f"span.content LIKE '%{token(of)}%'", "max_results": 10}
        status, document = json_of(connection, "POST", "/api/3.0/mlflow/traces/search", asked)
        assert status == 200, document
        return [each["trace_id"] for each in document.get("traces", [])] == [f"tr-{of}"]

    return _asked("search", contestant, ids, search)


def _experiment(contestant: Contestant) -> str:
    return contestant.headers["x-mlflow-experiment-id"]


def _asked(
    what: str,
    contestant: Contestant,
    ids: Sequence[str],
    ask: Callable[[http.client.HTTPConnection, str], bool],
) -> dict[str, object]:
    """Ask about some traces; return how many were there, p50 and p99, and the processor time of a question."""
    connection = connected(contestant)
    chosen = random.Random(1).sample(list(ids), min(WARM + ASKED, len(ids)))
    for each in chosen[:WARM]:
        ask(connection, each)
    took_s: list[float] = []
    right = 0
    cpu_s = contestant.cpu_s()
    until_s = time.monotonic() + ASKING_S
    for each in chosen[WARM:]:
        began_s = time.monotonic()
        if took_s and began_s > until_s:
            break
        right += ask(connection, each)
        took_s.append(time.monotonic() - began_s)
    cpu_s = contestant.cpu_s() - cpu_s
    took_s.sort()
    return {
        f"{what}_right": f"{right} of {len(took_s)}",
        f"{what}_p50_ms": round(statistics.median(took_s) * 1_000, 1),
        f"{what}_p99_ms": round(took_s[int(len(took_s) * 0.99)] * 1_000, 1),
        f"{what}_cpu_ms": round(cpu_s * 1_000 / len(took_s), 2),
    }
