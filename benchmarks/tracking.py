"""The tracking store beside that of `mlflow server`: one run, the same requests, the same kind of database.

    scripts/setup-mlflow; python -m benchmarks.tracking --seconds 10

Spans have 4 KB of text, ten are a trace. First, loads: requests have 1 or 50 traces, and 1 or 4 senders send them. For
each: spans a second, processor time of the server a span, p50 and p99 of a request, bytes a span; no pipeline runs
beside, for MLflow has none. Then, on a new server, the archive: `tracking_archive.py`. Each line is JSON, as soon as it
is known.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks.door_senders import bodies, with_ids
from benchmarks.door_servers import Contestant, missing, running, settle
from benchmarks.tracking_archive import measure_archive, prepare
from benchmarks.tracking_asking import OTLP, SPANS_A_TRACE, connected

CONTESTANTS: Final = ("hot-sqlite", "mlflow-sqlite", "hot-postgres", "mlflow-postgres")
PARTS: Final = (LOADS := "loads", "archive")
TRACES: Final = (1, 50)
SENDERS: Final = (1, 4)
WARM_S: Final = 5.0
"""As long one sender sends before a load is measured: servers start their workers with the first requests."""


def send(contestant: Contestant, traces: int, seconds: float, first: int) -> tuple[list[float], int]:
    """Send requests one after the other; return how long each took that was taken, and how many failed."""
    pool = bodies(SPANS_A_TRACE, "protobuf", 4_000_000)
    connection = connected(contestant)
    took_s: list[float] = []
    failed, number, until_s = 0, first, time.monotonic() + seconds
    while time.monotonic() < until_s or not took_s:
        numbers = range(number, number + traces)
        number += traces
        body = b"".join(with_ids(pool[each % len(pool)], each, "protobuf")[0] for each in numbers)
        began_s = time.monotonic()
        connection.request("POST", "/v1/traces", body, {**OTLP, **contestant.headers})
        response = connection.getresponse()
        response.read()
        if response.status == 200:
            took_s.append(time.monotonic() - began_s)
        else:
            failed += 1
            time.sleep(0.1)
    return took_s, failed


def measure(
    contestant: Contestant, traces: int, senders: int, seconds: float, first: int
) -> dict[str, object]:
    """Let senders send for a while; return the figures."""
    send(contestant, traces, WARM_S, first)
    settle(contestant)
    stored, cpu_s, began_s = contestant.database_bytes(), contestant.cpu_s(), time.monotonic()
    with ProcessPoolExecutor(senders, multiprocessing.get_context("spawn")) as pool:
        starts = [first + (sender + 1) * 10_000_000 for sender in range(senders)]
        shares = [pool.submit(send, contestant, traces, seconds, start) for start in starts]
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
        "failed": sum(answer[1] for answer in answers),
        "spans_s": round(spans / min(elapsed_s, max(busy_s, seconds))),
        "cpu_ms_a_span": round((contestant.cpu_s() - cpu_s) * 1_000 / spans, 4),
        "p50_ms": round(statistics.median(took_s) * 1_000, 1),
        "p99_ms": round(took_s[int(len(took_s) * 0.99)] * 1_000, 1),
        "database_bytes_a_span": round((contestant.database_bytes() - stored) / spans),
    }


def loads(contestant: Contestant, seconds: float) -> Iterator[dict[str, object]]:
    """Measure it under each load."""
    for number, (traces, senders) in enumerate((t, s) for t in TRACES for s in SENDERS):
        yield measure(contestant, traces, senders, seconds, (number + 1) * 1_000_000_000)


def main() -> None:
    """Measure all contestants that can run here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--traces", type=int, default=500, help="that are archived, of each layout")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    options = parser.parse_args()
    for name in options.contestants:
        if (lacks := missing(name)) is not None:
            print(json.dumps({"contestant": name, "skipped": lacks}), flush=True)
            continue
        for part in options.parts:
            with tempfile.TemporaryDirectory(prefix="tracelake-tracking-") as temporary:
                folder = Path(temporary)
                prepare(folder)
                with running(name, folder, pipeline=False) as contestant:
                    lines = (
                        loads(contestant, options.seconds)
                        if part == LOADS
                        else measure_archive(contestant, folder, options.traces)
                    )
                    for figures in lines:
                        print(json.dumps({"contestant": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
