"""The front door: many small requests, from the answer to searchable, beside what others offer, in one run.

    scripts/setup-mlflow && scripts/setup-s3           # the peer, and an S3 server other than moto
    python benchmarks/door.py                          # 1, 4, 64 senders × 1, 10, 100, 512 spans a request
    python benchmarks/door.py --senders 4 --spans 10 --seconds 10 --peer none --place local
    python benchmarks/door.py --backlog 10000 --spans 10       # stored while no pipeline runs, then taken
    python benchmarks/door.py --steady 60 --share 0.8 --spans 10 --senders 64

Spans have 4 KB of text each, all of it different. Every sender has one connection and sends when it has its answer.
Servers, senders and stores share the machine, so take ratios within a run, and not seconds.

- tracelake-local, -s3: `serve --no-pipeline` and, to tell both apart, `pipeline run` in a process of its own.
  Searchable is what a search in a third process finds; it is asked for four requests a second.
- mlflow-sqlite, -postgres: `mlflow server` 3.18 with its default workers; a span is there when the answer is.

The door's CPU is that of the processes that answer; CPU in all is of all processes (server, pipeline, JVM, workers,
PostgreSQL; not the senders, the S3 server and who searches) until the last span is searchable.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from rich.console import Console
from rich.table import Table

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks.door_senders import Answer, Load, Senders, Sent, bodies, with_ids
from benchmarks.door_servers import (
    PEERS,
    PLACES,
    Contestant,
    missing,
    removed,
    running,
    stored_bytes,
    tracelake_pipeline,
)
from benchmarks.ingest import PeakMemory

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

LOOK_S: Final = 0.05
WARM_REQUESTS: Final = 20
TAKEN_WITHIN_S: Final = 3_600.0
OUTSTANDING_MAX: Final = 20
"""Requests that are looked for at one time: a search each."""


@dataclass
class Result:
    """One contestant under one load. Times are None where there is nothing to time."""

    contestant: str
    senders: int
    spans: int
    sent_spans: int = 0
    refused: int = 0
    spans_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    door_us_per_span: float = 0.0
    all_us_per_span: float = 0.0
    searchable_p50_s: float | None = None
    searchable_p99_s: float | None = None
    all_searchable_s: float | None = None
    """After the last answer."""
    written_bytes_per_span: float = 0.0
    stored_bytes_per_span: float = 0.0
    peak_mib: dict[str, float] = field(default_factory=dict)


class Visibility(threading.Thread):
    """Looks for requests that were answered until a search finds them."""

    def __init__(self, lake: str, samples: Queue[Answer]) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, float]] = []
        """When a request was answered, and how long after that a search found it, in seconds."""
        self._lake, self._samples = lake, samples
        self._end = threading.Event()

    def run(self) -> None:
        """Look until told to stop, and then until all are found."""
        waiting: list[Answer] = []
        with tracelake.open(self._lake) as lake:
            while waiting or not self._end.is_set():
                while len(waiting) < OUTSTANDING_MAX:
                    try:
                        waiting.append(self._samples.get_nowait())
                    except queue.Empty:
                        break
                for answer in list(waiting):
                    if lake.search(answer.token, limit=1):
                        self.seen.append((answer.at_s, time.monotonic() - answer.at_s))
                        waiting.remove(answer)
                time.sleep(LOOK_S)

    def stop(self) -> list[float]:
        """Return how long each took."""
        self._end.set()
        self.join(TAKEN_WITHIN_S)
        return [took for _, took in self.seen]


def share(values: Sequence[float], part: float) -> float:
    """Return the value that such a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def wait_for_rows(lake: str, rows: int) -> None:
    """Wait until the table of spans has so many rows."""
    deadline = time.monotonic() + TAKEN_WITHIN_S
    with tracelake.open(lake) as opened:
        while opened.table("spans").info().rows < rows:
            assert time.monotonic() < deadline, "the pipeline does not take what waits"
            time.sleep(LOOK_S)


def send(load: Load, first: int) -> Sent:
    """Send a load, and wait until it is answered."""
    senders = Senders(load, first)
    senders.begin()
    return senders.sent()


def measure(name: str, senders: int, spans: int, seconds: float, format: str, folder: Path) -> Result:
    """Run one contestant under one load."""
    with running(name, folder) as contestant:
        warm = Load(contestant.url, contestant.headers, 1, spans, format, requests=WARM_REQUESTS)
        stored = len(send(warm, 1).answers) * spans
        if contestant.lake is not None:
            wait_for_rows(contestant.lake, stored)
        load = Load(contestant.url, contestant.headers, senders, spans, format, seconds)
        return measured(contestant, load, stored, folder)


def measured(contestant: Contestant, load: Load, stored: int, folder: Path) -> Result:
    """Put one load on a contestant that runs and holds so many spans."""
    result = Result(contestant.name, load.senders, load.spans)
    sending = Senders(load, WARM_REQUESTS + 1)
    visibility = Visibility(contestant.lake, sending.samples) if contestant.lake else None
    if visibility:
        visibility.start()
    door_s, all_s, written = contestant.door_cpu_s(), contestant.cpu_s(), contestant.written_bytes()
    begun_s = time.monotonic()
    with ExitStack() as stack:
        pids = [*contestant.door, *contestant.behind]
        memories = [stack.enter_context(PeakMemory(psutil.Process(pid))) for pid in pids]
        sending.begin()
        sent = sending.sent()
        ended_s = max(answer.at_s for answer in sent.answers)
        result.door_us_per_span = contestant.door_cpu_s() - door_s
        result.sent_spans = len(sent.answers) * load.spans
        if contestant.lake is not None and visibility is not None:
            wait_for_rows(contestant.lake, stored + result.sent_spans)
            result.all_searchable_s = time.monotonic() - ended_s
        result.all_us_per_span = contestant.cpu_s() - all_s
        took = visibility.stop() if visibility else []
    for memory in memories:
        for kind, mib in memory.peak_mib.items():
            result.peak_mib[kind] = result.peak_mib.get(kind, 0.0) + mib
    result.door_us_per_span *= 1e6 / result.sent_spans
    result.all_us_per_span *= 1e6 / result.sent_spans
    result.refused = sent.refused
    result.spans_per_s = result.sent_spans / (ended_s - begun_s)
    latencies = [answer.latency_s * 1e3 for answer in sent.answers]
    result.p50_ms, result.p99_ms = share(latencies, 0.5), share(latencies, 0.99)
    if took:
        result.searchable_p50_s, result.searchable_p99_s = share(took, 0.5), share(took, 0.99)
        print_over_time(visibility.seen if visibility else [], begun_s)
    result.written_bytes_per_span = (contestant.written_bytes() - written) / result.sent_spans
    result.stored_bytes_per_span = stored_bytes(folder) / (stored + result.sent_spans)
    return result


def print_over_time(seen: list[tuple[float, float]], begun_s: float) -> None:
    """Print p50 and p99 from the answer to searchable, minute by minute, of a load of more than one."""
    minutes: dict[int, list[float]] = {}
    for at_s, took_s in seen:
        minutes.setdefault(int((at_s - begun_s) // 60), []).append(took_s)
    if len(minutes) > 1:
        for minute, took in sorted(minutes.items()):
            line = f"minute {minute + 1}: searchable p50 {share(took, 0.5):.2f} s, p99 {share(took, 0.99):.2f} s\n"
            sys.stderr.write(line)


def steady(name: str, options: argparse.Namespace, folder: Path) -> Result:
    """Find out what the machine takes in all, then send a share of it for so many minutes."""
    senders, spans = options.senders[0], options.spans[0]
    most = measure(name, senders, spans, options.seconds, options.format, folder / "most")
    assert most.all_searchable_s is not None
    capacity = most.sent_spans / (most.sent_spans / most.spans_per_s + most.all_searchable_s)
    sys.stderr.write(
        f"{name} takes {capacity:,.0f} spans/s until searchable; {options.share:.0%} of it follow\n"
    )
    with running(name, folder / "steady") as contestant:
        load = Load(
            contestant.url,
            contestant.headers,
            senders,
            spans,
            options.format,
            seconds=60 * options.steady,
            spans_per_s=options.share * capacity,
        )
        return measured(contestant, load, 0, folder / "steady")


def backlog(name: str, options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Store requests while no pipeline runs, then let one take them; then the same spans from files."""
    spans, requests = options.spans[0], options.backlog
    with running(name, folder, pipeline=False) as contestant:
        assert contestant.lake is not None
        lake = contestant.lake
        load = Load(
            contestant.url, contestant.headers, options.senders[0], spans, options.format, requests=requests
        )
        sent = send(load, 1)
        with tracelake.open(lake) as opened:
            segments = opened.inbox().segments
        begun_s = time.monotonic()
        with tracelake_pipeline(lake, folder) as process, PeakMemory(psutil.Process(process.pid)) as memory:
            wait_for_rows(lake, 1)
            first_s = time.monotonic() - begun_s
            wait_for_rows(lake, len(sent.answers) * spans)
            drained_s = time.monotonic() - begun_s
    stored = len(sent.answers) * spans
    files_s = from_files(folder / "files", spans, requests, options.format)
    return {
        "contestant": name,
        "requests": len(sent.answers),
        "refused": sent.refused,
        "segments": segments,
        "spans": stored,
        "first_visible_s": first_s,
        "drained_s": drained_s,
        "spans_per_s": stored / drained_s,
        "spans_per_s_after_first": stored / max(drained_s - first_s, LOOK_S),
        "peak_mib": memory.peak_mib,
        "from_files_spans_per_s": requests * spans / files_s,
    }


def from_files(folder: Path, spans: int, requests: int, format: str) -> float:
    """Return how long the same spans take from files of 1,000 requests each, without the start of the JVM."""
    from tracelake.tasks.runners import Spark  # noqa: PLC0415  heavy

    folder.mkdir(parents=True)
    pool = bodies(spans, format)
    for begin in range(0, requests, 1_000):
        with (folder / f"{begin:08}.otlp").open("wb") as file:
            for number in range(begin, min(begin + 1_000, requests)):
                body, _ = with_ids(pool[number % len(pool)], number, format)
                file.write(body + b"\n" if format == "json" else len(body).to_bytes(4) + body)
    runner = Spark("local[*]", short_lived=False)
    runner.start()
    try:
        with tracelake.init(folder / "lake") as lake:
            begun_s = time.monotonic()
            report = lake.ingest(str(folder / "*.otlp"), runner=runner)
            assert not report.bad, report.bad
            return time.monotonic() - begun_s
    finally:
        runner.stop()


def print_results(results: list[Result]) -> None:
    """Print what was measured, and each contestant's spans per CPU second as a multiple of MLflow's on SQLite."""
    table = Table(title="acknowledged, and until searchable")
    for heading in (
        "", "senders", "spans", "spans/s", "p50 ms", "p99 ms", "CPU µs/span door", "in all", "× MLflow",
        "searchable p50 s", "p99 s", "all s", "B/span written", "stored", "503",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for result in results:
        base = [
            other.all_us_per_span
            for other in results
            if (other.contestant, other.senders, other.spans)
            == ("mlflow-sqlite", result.senders, result.spans)
        ]
        seconds = (result.searchable_p50_s, result.searchable_p99_s, result.all_searchable_s)
        table.add_row(
            result.contestant,
            str(result.senders),
            str(result.spans),
            f"{result.spans_per_s:,.0f}",
            f"{result.p50_ms:.1f}",
            f"{result.p99_ms:.1f}",
            f"{result.door_us_per_span:,.0f}",
            f"{result.all_us_per_span:,.0f}",
            f"{statistics.mean(base) / result.all_us_per_span:.1f}" if base else "",
            *("" if value is None else f"{value:.2f}" for value in seconds),
            f"{result.written_bytes_per_span:,.0f}",
            f"{result.stored_bytes_per_span:,.0f}",
            str(result.refused),
        )
    Console(width=190).print(table)


def contestants(options: argparse.Namespace) -> list[str]:
    """Return who takes part; who cannot is named on standard error."""
    peers = [] if "none" in options.peer else PEERS if "all" in options.peer else options.peer
    names = [f"tracelake-{place}" for place in options.place] + list(peers)
    for name in names:
        if lacks := missing(name):
            sys.stderr.write(f"{name} takes no part: {lacks}\n")
    return [name for name in names if not missing(name)]


def main() -> None:
    """Run what the options say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--senders", type=int, nargs="+", default=[1, 4, 64])
    parser.add_argument("--spans", type=int, nargs="+", default=[1, 10, 100, 512], help="in one request")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--format", choices=("protobuf", "json"), default="protobuf")
    parser.add_argument("--place", nargs="+", choices=PLACES, default=list(PLACES), help="of the lake")
    parser.add_argument("--peer", nargs="+", choices=("all", "none", *PEERS), default=["all"])
    parser.add_argument("--backlog", type=int, help="requests that wait when the pipeline starts")
    parser.add_argument("--steady", type=float, help="minutes of a load the machine can take")
    parser.add_argument("--share", type=float, default=0.8, help="of what the machine takes")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    documents: list[dict[str, object]] = []
    results: list[Result] = []
    folder = Path(tempfile.mkdtemp(prefix="tracelake-door-"))
    try:
        if options.backlog:
            for place in options.place:
                documents.append(backlog(f"tracelake-{place}", options, new(folder)))
        elif options.steady:
            results += [steady(f"tracelake-{place}", options, new(folder)) for place in options.place]
        else:
            for spans in options.spans:
                for senders in options.senders:
                    for name in contestants(options):
                        results.append(
                            measure(name, senders, spans, options.seconds, options.format, new(folder))
                        )
    finally:
        removed(folder)
    documents += map(asdict, results)
    if options.json or not results:
        sys.stdout.write(json.dumps(documents, indent=None if options.json else 2) + "\n")
    else:
        print_results(results)


def new(folder: Path) -> Path:
    """Empty the folder, and return it."""
    removed(folder)
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
