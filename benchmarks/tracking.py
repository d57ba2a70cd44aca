"""The tracking store beside that of `mlflow server`: one run, the same requests, the same kind of database.

    scripts/setup-mlflow; python -m benchmarks.tracking --seconds 10

Spans have 4 KB of text, ten are a trace; requests have 1 or 50 traces, and 1 or 4 senders send them. For each: spans a
second, processor time of the server a span, p50 and p99 of a request; then database bytes a span, and how long it takes
to get one trace. No pipeline runs beside, for MLflow has none. Each figure is a line of JSON as soon as it is known.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmarks.door_senders import bodies, with_ids
from benchmarks.door_servers import Contestant, missing, running, settle

CONTESTANTS: Final = ("hot-sqlite", "mlflow-sqlite", "hot-postgres", "mlflow-postgres")
SPANS_A_TRACE: Final = 10
TRACES: Final = (1, 50)
SENDERS: Final = (1, 4)
GETS: Final = 50
WARM_S: Final = 5.0
"""As long one sender sends before a load is measured: servers start their workers with the first requests."""


def send(
    url: str, headers: dict[str, str], traces: int, seconds: float, first: int
) -> tuple[list[float], list[str], int]:
    """Send requests one after the other; return how long each took, the ids of some traces, and how many failed."""
    pool = bodies(SPANS_A_TRACE, "protobuf", 4_000_000)
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    headers = {"Content-Type": "application/x-protobuf", **headers}
    took_s: list[float] = []
    ids: list[str] = []
    failed, number, until_s = 0, first, time.monotonic() + seconds
    while time.monotonic() < until_s or not took_s:
        numbers = range(number, number + traces)
        number += traces
        body = b"".join(with_ids(pool[each % len(pool)], each, "protobuf")[0] for each in numbers)
        began_s = time.monotonic()
        connection.request("POST", "/v1/traces", body, headers)
        response = connection.getresponse()
        response.read()
        if response.status == 200:
            took_s.append(time.monotonic() - began_s)
            ids.append(random.Random(numbers[0]).randbytes(16).hex())
        else:
            failed += 1
            time.sleep(0.1)
    return took_s, ids, failed


def measure(
    contestant: Contestant, traces: int, senders: int, seconds: float, first: int
) -> tuple[dict[str, object], list[str]]:
    """Let senders send for a while; return the figures, and ids of traces that were taken."""
    send(contestant.url, contestant.headers, traces, WARM_S, first)
    settle(contestant)
    stored, cpu_s, began_s = contestant.stored_bytes(), contestant.cpu_s(), time.monotonic()
    with ProcessPoolExecutor(senders, multiprocessing.get_context("spawn")) as pool:
        starts = [first + (sender + 1) * 10_000_000 for sender in range(senders)]
        shares = [
            pool.submit(send, contestant.url, contestant.headers, traces, seconds, start) for start in starts
        ]
        answers = [share.result() for share in shares]
    elapsed_s = time.monotonic() - began_s
    settle(contestant)
    took_s = sorted(each for answer in answers for each in answer[0])
    spans = len(took_s) * traces * SPANS_A_TRACE
    busy_s = max(sum(answer[0]) for answer in answers)
    return {
        "traces_a_request": traces,
        "senders": senders,
        "requests": len(took_s),
        "failed": sum(answer[2] for answer in answers),
        "spans_s": round(spans / min(elapsed_s, max(busy_s, seconds))),
        "cpu_ms_a_span": round((contestant.cpu_s() - cpu_s) * 1_000 / spans, 4),
        "p50_ms": round(statistics.median(took_s) * 1_000, 1),
        "p99_ms": round(took_s[int(len(took_s) * 0.99)] * 1_000, 1),
        "stored_bytes_a_span": round((contestant.stored_bytes() - stored) / spans),
    }, [trace_id for answer in answers for trace_id in answer[1]]


def get_ms(contestant: Contestant, ids: list[str]) -> dict[str, object]:
    """Get traces one by one, each with its spans; return p50 and p99."""
    address = urlsplit(contestant.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=120)
    took_s = []
    for trace_id in random.Random(1).sample(ids, min(GETS, len(ids))):
        path = f"/api/v1/traces/{trace_id}"
        if contestant.name.startswith("mlflow"):
            path = f"/ajax-api/3.0/mlflow/traces/get?trace_id=tr-{trace_id}"
        began_s = time.monotonic()
        connection.request("GET", path)
        response = connection.getresponse()
        document = json.loads(response.read())
        took_s.append(time.monotonic() - began_s)
        spans = document.get("spans") or document.get("trace", {}).get("spans") or []
        assert (response.status, len(spans)) == (200, SPANS_A_TRACE), (response.status, len(spans), path)
    took_s.sort()
    p99_s = took_s[int(len(took_s) * 0.99)]
    return {"get_p50_ms": round(statistics.median(took_s) * 1_000, 1), "get_p99_ms": round(p99_s * 1_000, 1)}


def main() -> None:
    """Measure all contestants that can run here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    options = parser.parse_args()
    for name in options.contestants:
        if (lacks := missing(name)) is not None:
            print(json.dumps({"contestant": name, "skipped": lacks}), flush=True)
            continue
        with (
            tempfile.TemporaryDirectory(prefix="tracelake-tracking-") as folder,
            running(name, Path(folder), pipeline=False) as contestant,
        ):
            ids: list[str] = []
            for number, (traces, senders) in enumerate((t, s) for t in TRACES for s in SENDERS):
                first = (number + 1) * 1_000_000_000
                figures, taken = measure(contestant, traces, senders, options.seconds, first)
                ids += taken
                print(json.dumps({"contestant": name, **figures}), flush=True)
            print(json.dumps({"contestant": name, **get_ms(contestant, ids)}), flush=True)


if __name__ == "__main__":
    main()
