"""The tracking store beside that of `mlflow server`: one run, the same requests, the same kind of database.

    scripts/setup-mlflow; python -m benchmarks.tracking --seconds 10 --out tracking.jsonl

Spans have 4 KB of text, ten are a trace. A step is a load or an archive, on a new server of one contestant. Loads:
requests have 1 or 50 traces, and 1 or 4 senders send them. For each: spans a second, processor time of the server a
span, p50 and p99 of a request, bytes a span; no pipeline runs beside, for MLflow has none. The archive, with each
layout: `tracking_archive.py`. What a step found are lines of JSON; those of a step that has ended stand in `--out`, and
the next run with the same file goes on behind them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.door_senders import bodies, with_ids
from benchmarks.door_servers import Contestant, missing, running, settle
from benchmarks.tracking_archive import LAYOUTS, measure_mlflow, measure_tracelake, prepare
from benchmarks.tracking_asking import OTLP, SPANS_A_TRACE, connected

CONTESTANTS: Final = ("hot-sqlite", "mlflow-sqlite", "hot-postgres", "mlflow-postgres")
PARTS: Final = (LOADS := "loads", ARCHIVE := "archive")
TRACES: Final = (1, 50)
SENDERS: Final = (1, 4)
WARM_S: Final = 5.0
"""As long one sender sends before a load is measured: servers start their workers with the first requests."""


Figures = dict[str, object]
Step = Callable[[Contestant, Path], Iterable[Figures]]


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
    contestant: Contestant, _folder: Path, traces: int, senders: int, seconds: float
) -> list[Figures]:
    """Let senders send for a while; return the figures."""
    settle(contestant)
    send(contestant, traces, WARM_S, 0)
    settle(contestant)
    stored, cpu_s, began_s = contestant.database_bytes(), contestant.cpu_s(), time.monotonic()
    with ProcessPoolExecutor(senders, multiprocessing.get_context("spawn")) as pool:
        starts = [(sender + 1) * 10_000_000 for sender in range(senders)]
        shares = [pool.submit(send, contestant, traces, seconds, start) for start in starts]
        answers = [share.result() for share in shares]
    elapsed_s = time.monotonic() - began_s
    settle(contestant)
    took_s = sorted(each for answer in answers for each in answer[0])
    spans = len(took_s) * traces * SPANS_A_TRACE
    busy_s = max(sum(answer[0]) for answer in answers)
    figures: Figures = {
        "requests": len(took_s),
        "failed": sum(answer[1] for answer in answers),
        "spans_s": round(spans / min(elapsed_s, max(busy_s, seconds))),
        "cpu_ms_a_span": round((contestant.cpu_s() - cpu_s) * 1_000 / spans, 4),
        "p50_ms": round(statistics.median(took_s) * 1_000, 1),
        "p99_ms": round(took_s[int(len(took_s) * 0.99)] * 1_000, 1),
        "database_bytes_a_span": round((contestant.database_bytes() - stored) / spans),
    }
    return [figures]


def steps(contestant: str, parts: Iterable[str], seconds: float, traces: int) -> Iterator[tuple[str, Step]]:
    """Yield what is measured of a contestant: a name, and how."""
    if LOADS in parts:
        for each, senders in ((t, s) for t in TRACES for s in SENDERS):
            yield f"{each} × {senders}", partial(measure, traces=each, senders=senders, seconds=seconds)
    if ARCHIVE in parts and contestant.startswith("mlflow"):
        yield ARCHIVE, partial(measure_mlflow, traces=traces)
    elif ARCHIVE in parts:
        for layout in LAYOUTS:
            yield f"{ARCHIVE} {layout}", partial(measure_tracelake, layout=layout, traces=traces)


def had(out: Path | None) -> set[tuple[str, str]]:
    """Return the steps of earlier runs that stand in a file, each with its contestant."""
    if out is None or not out.exists():
        return set()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return {(line["contestant"], line["step"]) for line in lines}


def tell(out: Path | None, lines: Iterable[Figures]) -> None:
    """Print what a step found, and keep it: all of its lines at once, so that a step which stands is whole."""
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
    sys.stdout.write(text)
    sys.stdout.flush()
    if out is not None:
        with out.open("a") as file:
            file.write(text)


def main() -> None:
    """Measure all contestants that can run here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load")
    parser.add_argument("--traces", type=int, default=500, help="that are archived, of each layout")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--out", type=Path, help="lines of steps that are there are not measured again")
    options = parser.parse_args()
    stands = had(options.out)
    for name in options.contestants:
        if (lacks := missing(name)) is not None:
            print(json.dumps({"contestant": name, "skipped": lacks}), flush=True)
            continue
        for step, run in steps(name, options.parts, options.seconds, options.traces):
            if (name, step) in stands:
                continue
            with tempfile.TemporaryDirectory(prefix="tracelake-tracking-") as temporary:
                folder = Path(temporary)
                prepare(folder)
                with running(name, folder, pipeline=False) as contestant:
                    lines = [
                        {"contestant": name, "step": step, **figures} for figures in run(contestant, folder)
                    ]
            tell(options.out, lines)


if __name__ == "__main__":
    main()
