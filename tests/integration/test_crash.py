"""O1 and O2, end to end: a server with its pipeline, killed under load, loses nothing and duplicates nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx

import tracelake
from tests.patience import HANG_S, wait_until
from tests.server.otlp_requests import export_request
from tests.server.process import ServerProcess, serving

HEADERS = {"Content-Type": "application/x-protobuf"}
SPANS_EACH = 20


def send(server: ServerProcess, first: int, last: int, kill_after: int | None = None) -> set[int]:
    """Send requests with these numbers, one trace each; return the acknowledged numbers."""
    acknowledged: set[int] = set()
    answered = count(1)
    with ThreadPoolExecutor(8) as pool, httpx.Client(headers=HEADERS, timeout=HANG_S) as client:

        def send_one(number: int) -> None:
            body = export_request(*range(1, SPANS_EACH + 1), trace_id=number).SerializeToString()
            try:
                response = client.post(f"{server.url}/v1/traces", content=body)
            except httpx.TransportError:
                return
            if response.status_code == 200:
                acknowledged.add(number)
                if next(answered) == kill_after:
                    server.kill()  # here, because a waiting thread may be scheduled only after the last request

        answers = [pool.submit(send_one, number) for number in range(first, last)]
        for answer in answers:
            answer.result(HANG_S)
    return acknowledged


def wait_until_taken(lake: tracelake.Lake, traces: int) -> None:
    """Wait until the tables have at least this number of traces and the inbox is empty."""
    wait_until(
        lambda: lake.table("traces").info().rows >= traces and not any(lake.objects.list("inbox/")),
        "the pipeline did not take what is in the inbox",
        moving=lambda: lake.table("traces").info().upper,
        poll_s=0.2,
    )


def test_o1_o2_kill_under_load_then_retry(tmp_path: Path) -> None:
    """A server killed during requests and transactions has each span once after all are sent again (O1, O2)."""
    path, requests = tmp_path / "lake", 300
    with tracelake.init(path) as lake:
        with serving(path, pipeline=True) as server:
            warm = send(server, 1, 20)
            wait_until_taken(lake, len(warm))
            # From here on the pipeline works concurrently with the requests, so the kill falls into a
            # transaction.
            acknowledged = warm | send(server, 20, requests, kill_after=120)
        assert len(acknowledged) < requests - 1
        with serving(path, pipeline=True) as server:
            wait_until_taken(lake, len(acknowledged))
            found = set(lake.sql("SELECT DISTINCT trace_id FROM spans").column(0).to_pylist())
            assert {f"{number:032x}" for number in acknowledged} <= found
            again = send(server, 1, requests)
            wait_until_taken(lake, len(again))
            assert server.stop() == (0, "closed\n")
        assert again == set(range(1, requests))
        counts = "SELECT count(*) AS rows, count(DISTINCT (trace_id, span_id)) AS keys FROM spans"
        assert lake.sql(counts).to_pylist() == [
            {"rows": SPANS_EACH * len(again), "keys": SPANS_EACH * len(again)}
        ]
        assert lake.table("traces").info().rows == len(again)
        assert lake.verify().ok
