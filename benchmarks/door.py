"""The front door: many small requests, from the answer to searchable, beside what others offer, in one run.

    scripts/setup-mlflow && scripts/setup-collector    # the peers
    scripts/setup-s3                                   # an S3 server other than moto
    python benchmarks/door.py --minutes 40             # 1, 4, 64 senders × 1, 10, 100, 512 spans a request
    python benchmarks/door.py --senders 4 --spans 10 --seconds 10 --peer none --place local
    python benchmarks/door.py --backlog 10000          # stored while no pipeline runs, then taken
    python benchmarks/door.py --steady 60 --share 0.8  # minutes of a part of what the machine takes, a line for each
    python benchmarks/door.py --steady 60 --rate 800   # spans a second instead
    python benchmarks/door.py --minutes 30 --backlog 10000 --steady 5   # all three, one after the other

Spans have 4 KB of text each, all of it different. Every sender has one connection and sends when it has its answer, or,
with `--steady`, when it is due: then a late one counts from when it was due. Servers, senders and stores share the
machine, so take ratios within a run, and not seconds. Each contestant is started once and gets all loads, the smallest
requests first. What fails is told, and all others go on. Each line of `--out` is written as soon as it is known.

- tracelake-serve: `tracelake serve` as it is, with its hot tier and its pipeline, a process below it: all of it is
  the door's, but in the lines of `--steady`, which tell processor time and memory of each kind of process.
- tracelake-hot: the same with `serve --no-pipeline` and `pipeline run`, to tell both apart in all figures.
- tracelake-local, -s3: that without the hot tier, into the inbox of a lake on the disk, or on an S3 server.
  Searchable is, of a request a second, what the server finds that is asked for it; without a hot tier, of four, what a
  search in a third process finds after each commit.
- mlflow-sqlite, -postgres: `mlflow server` 3.18 with its default workers; a span is there when the answer is.
- collector-files: an OpenTelemetry Collector that writes each request to a file as JSON. It syncs nothing, keeps what
  is sent twice twice, and nobody can search what it wrote: the least that can be done with a request.

The door's CPU is that of the processes that answer; CPU in all is of all processes (server, pipeline, JVM, workers,
PostgreSQL; not the senders, the S3 server and who searches) until the last span is searchable, *settled* until
compaction and merges are done, too. What was counted is compared, when a server ends, with what the kernel says of it
and all its children (`cpu`). Bytes written are those that all of them, and the S3 server, gave to the disk.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks.door_figures import TAKEN_WITHIN_S, Budget, Lines, Result, by_minute, print_results, share
from benchmarks.door_senders import HOT_SAMPLE_EVERY_S, SAMPLE_EVERY_S, Load, Senders, Sent, bodies, with_ids
from benchmarks.door_servers import (
    PEERS,
    PLACES,
    Contestant,
    adopt_orphans,
    cpu_s,
    end_all,
    end_on_signals,
    jvm_cpu_s,
    missing,
    removed,
    running,
    settle,
    tracelake_pipeline,
)
from benchmarks.door_watch import LOOK_S, Minutes, Visibility, wait_for_rows
from benchmarks.ingest import PeakMemory

SENDERS: Final = (1, 4, 64)
SPANS: Final = (1, 10, 100, 512)
ALONE: Final = (64, 10)
"""Senders and spans of a backlog and of a steady load."""
WARM_SENDERS: Final = 32
"""Of one span each, before the first load: every worker of a server gets some."""
WARM_REQUESTS: Final = 128
TRIES_MAX: Final = 3
"""How often a contestant is started."""


class Running:
    """A contestant that runs, and gets one load after the other."""

    def __init__(self, contestant: Contestant, format: str, patience_s: float = TAKEN_WITHIN_S) -> None:
        self._contestant = contestant
        self._format = format
        self._next = 1
        """The number of the next request: it makes its ids and its token."""
        self._stored = 0
        load = Load(contestant.url, contestant.headers, WARM_SENDERS, 1, format, requests=WARM_REQUESTS)
        with Senders(load, 1) as warm:
            self._sent(warm.sent(), 1)
        self._taken(patience_s)
        settle(contestant)

    def _sent(self, sent: Sent, spans: int) -> int:
        assert sent.answers, f"none of {sent.failed + sent.refused} requests was taken: {sent.problem}"
        self._next = sent.last + 1
        self._stored += len(sent.answers) * spans
        return len(sent.answers) * spans

    def _taken(self, within_s: float) -> None:
        if self._contestant.lake is not None:
            wait_for_rows(self._contestant.lake, self._stored, within_s)

    def measure(
        self,
        senders: int,
        spans: int,
        seconds: float,
        patience_s: float = TAKEN_WITHIN_S,
        spans_per_s: float | None = None,
        lines: Lines | None = None,
    ) -> Result:
        """Put one load on it, and wait until all of it is searchable, and nothing is at work any more.

        `lines` get one each minute.
        """
        contestant, format = self._contestant, self._format
        result = Result(contestant.name, senders, spans)
        load = Load(
            contestant.url,
            contestant.headers,
            senders,
            spans,
            format,
            seconds,
            spans_per_s=spans_per_s,
            sample_every_s=HOT_SAMPLE_EVERY_S if contestant.is_hot else SAMPLE_EVERY_S,
        )
        visibility: Visibility | None = None
        with ExitStack() as stack:
            sending = stack.enter_context(Senders(load, self._next))
            if contestant.lake is not None:
                visibility = stack.enter_context(Visibility(contestant, sending.samples))
                if lines is not None:
                    stack.enter_context(Minutes(contestant, visibility, lines))
            memories = [
                stack.enter_context(PeakMemory(psutil.Process(pid), every_s=1.0)) for pid in contestant.pids()
            ]
            door_s, all_s, written = contestant.door_cpu_s(), contestant.cpu_s(), contestant.written_bytes()
            begun_s = time.monotonic()
            sent = sending.sent()
            ended_s = max((answer.at_s for answer in sent.answers), default=begun_s)
            count = self._sent(sent, spans)
            result.door_us_per_span = (contestant.door_cpu_s() - door_s) * 1e6 / count
            if visibility is not None:
                self._taken(patience_s)
                result.all_searchable_s = time.monotonic() - ended_s
            result.all_us_per_span = (contestant.cpu_s() - all_s) * 1e6 / count
            if visibility is not None:
                visibility.finish(patience_s)
            settle(contestant)
            result.settled_us_per_span = (contestant.cpu_s() - all_s) * 1e6 / count
            result.written_bytes_per_span = (contestant.written_bytes() - written) / count
        for memory in memories:
            for kind, mib in memory.peak_mib.items():
                result.peak_mib[kind] = result.peak_mib.get(kind, 0.0) + mib
        result.sent_spans, result.refused, result.failed = count, sent.refused, sent.failed
        result.spans_per_s = count / (ended_s - begun_s)
        latencies = [answer.latency_s * 1e3 for answer in sent.answers]
        result.p50_ms, result.p99_ms = share(latencies, 0.5), share(latencies, 0.99)
        if visibility is not None and visibility.seen:
            took = [took_s for _, took_s in visibility.seen]
            result.searchable_p50_s, result.searchable_p99_s = share(took, 0.5), share(took, 0.99)
            result.by_minute = by_minute(visibility.seen, begun_s)
        result.stored_bytes_per_span = contestant.stored_bytes() / self._stored
        return result


def contest(
    name: str, loads: Sequence[tuple[int, int]], options: argparse.Namespace, budget: Budget, folder: Path
) -> None:
    """Put all loads on one contestant, as long as its time lasts; one that fails is told, and it is started again."""
    left = list(loads)
    for _ in range(TRIES_MAX):
        at: object = "start"
        contestant = None
        try:
            with running(name, new(folder)) as contestant:
                measured = Running(contestant, options.format, budget.patience_s())
                while left and (seconds := budget.seconds(len(left))) is not None:
                    at = senders, spans = left.pop(0)
                    options.lines.result(measured.measure(senders, spans, seconds, budget.patience_s()))
        except Exception as error:  # noqa: BLE001  whatever it is, the others go on
            options.lines.write({"failed": name, "load": at, "error": f"{type(error).__name__}: {error}"})
        if contestant is not None:
            options.lines.write({"cpu": name, "processes": contestant.checks})
        if not left or budget.seconds(len(left)) is None:
            break
    if left:
        options.lines.write({"left out": name, "loads": left})


def steady(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Find out what the machine takes in all, then send a share of it for so many minutes."""
    senders, spans = alone(options)
    with running(name, new(folder)) as contestant:
        measured = Running(contestant, options.format)
        rate = options.rate
        if rate is None:
            measured.measure(
                senders, spans, options.seconds
            )  # what starts once there is much to do, starts now
            most = measured.measure(senders, spans, options.seconds)
            assert most.all_searchable_s is not None
            capacity = most.sent_spans / (most.sent_spans / most.spans_per_s + most.all_searchable_s)
            options.lines.write({"steady": name, "takes": capacity})
            rate = options.share * capacity
        options.lines.write({"steady": name, "sends": rate})
        result = measured.measure(
            senders, spans, 60 * options.steady, spans_per_s=max(1.0, rate), lines=options.lines
        )
        options.lines.result(result)


def backlog(name: str, options: argparse.Namespace, folder: Path) -> None:
    """Store requests while no pipeline runs, then let one take them; then the same spans from files."""
    senders, spans = alone(options)
    with running(name, new(folder), pipeline=False) as contestant:
        assert contestant.lake is not None
        lake = contestant.lake
        load = Load(
            contestant.url, contestant.headers, senders, spans, options.format, requests=options.backlog
        )
        with Senders(load, 1) as sending:
            sent = sending.sent()
        stored = len(sent.answers) * spans
        with tracelake.open(lake) as opened:
            segments = opened.inbox().segments
        begun_s = time.monotonic()
        with (
            tracelake_pipeline(lake, folder, contestant) as process,
            PeakMemory(psutil.Process(process.pid), every_s=0.5) as memory,
        ):
            used_s = contestant.cpu_s()
            wait_for_rows(lake, 1, TAKEN_WITHIN_S)
            first_s = time.monotonic() - begun_s
            wait_for_rows(lake, stored, TAKEN_WITHIN_S)
            drained_s = time.monotonic() - begun_s
            used_s, of_jvm_s = contestant.cpu_s() - used_s, jvm_cpu_s(process.pid)
    figures = {
        "backlog": name,
        "requests": len(sent.answers),
        "refused": sent.refused,
        "failed": sent.failed,
        "segments": segments,
        "spans": stored,
        "first_visible_s": first_s,
        "drained_s": drained_s,
        "spans_per_s": stored / drained_s,
        "spans_per_s_after_first": stored / max(drained_s - first_s, LOOK_S),
        "us_per_span": used_s * 1e6 / stored,
        "of_jvm_us_per_span": of_jvm_s * 1e6 / stored,
        "peak_mib": memory.peak_mib,
    }
    options.lines.write(figures)
    removed(folder)
    files_s, files_cpu_s = from_files(new(folder) / "files", spans, options.backlog, options.format)
    count = options.backlog * spans
    of_files = {"spans_per_s": count / files_s, "us_per_span": files_cpu_s * 1e6 / count}
    options.lines.write(
        {"files": name, **of_files, "times": figures["us_per_span"] / of_files["us_per_span"]}
    )


def from_files(folder: Path, spans: int, requests: int, format: str) -> tuple[float, float]:
    """Return how long the same spans take from files of 1,000 requests each, and their processor time.

    Without the start of the JVM, which a backlog has in its figures.
    """
    from tracelake.tasks.spark import Spark  # noqa: PLC0415  heavy

    folder.mkdir(parents=True)
    pool = bodies(spans, format)
    for begin in range(0, requests, 1_000):
        with (folder / f"{begin:08}.otlp").open("wb") as file:
            for number in range(begin, min(begin + 1_000, requests)):
                body, _ = with_ids(pool[number % len(pool)], number, format)
                file.write(body + b"\n" if format == "json" else len(body).to_bytes(4) + body)
    runner = Spark("local[*]")
    runner.start()
    try:
        with tracelake.init(folder / "lake") as lake:
            begun_s, begun_cpu_s = time.monotonic(), cpu_s(os.getpid())
            report = lake.ingest(str(folder / "*.otlp"), runner=runner)
            assert not report.bad, report.bad
            return time.monotonic() - begun_s, cpu_s(os.getpid()) - begun_cpu_s
    finally:
        runner.stop()


def alone(options: argparse.Namespace) -> tuple[int, int]:
    """Return senders and spans of a backlog and of a steady load."""
    senders, spans = ALONE
    return (options.senders or [senders])[0], (options.spans or [spans])[0]


def contestants(options: argparse.Namespace) -> list[str]:
    """Return who takes part; who cannot is told."""
    peers = [] if "none" in options.peer else PEERS if "all" in options.peer else options.peer
    names = [f"tracelake-{place}" for place in options.place] + list(peers)
    for name in names:
        if lacks := missing(name):
            options.lines.write({"failed": name, "load": "start", "error": lacks})
    return [name for name in names if not missing(name)]


def main() -> None:
    """Run what the options say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, help="for the whole table, instead of --seconds")
    parser.add_argument("--senders", type=int, nargs="+", help=f"by default {SENDERS}")
    parser.add_argument("--spans", type=int, nargs="+", help=f"in one request; by default {SPANS}")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--format", choices=("protobuf", "json"), default="protobuf")
    parser.add_argument("--place", nargs="*", choices=PLACES, default=list(PLACES), help="of the lake")
    parser.add_argument("--peer", nargs="+", choices=("all", "none", *PEERS), default=["all"])
    parser.add_argument("--backlog", type=int, help="requests that wait when the pipeline starts")
    parser.add_argument("--steady", type=float, help="minutes of a load the machine can take")
    parser.add_argument("--share", type=float, default=0.8, help="of what the machine takes")
    parser.add_argument("--rate", type=float, help="spans a second of --steady, instead of --share")
    parser.add_argument(
        "--out", type=Path, default=Path("door.jsonl"), help="where a line goes for each figure"
    )
    options = parser.parse_args()
    options.lines = Lines(options.out)
    adopt_orphans()
    end_on_signals()
    folder = Path(tempfile.mkdtemp(prefix="tracelake-door-"))
    try:
        if options.minutes or not (options.backlog or options.steady):
            names = contestants(options)
            budget = Budget(options.seconds, options.minutes, len(names))
            loads = [(n, spans) for spans in options.spans or SPANS for n in options.senders or SENDERS]
            for name in names:
                budget.begin()
                contest(name, loads, options, budget, folder)
        for part in [backlog] * bool(options.backlog) + [steady] * bool(options.steady):
            for name in [f"tracelake-{place}" for place in options.place]:
                try:
                    part(name, options, folder)
                except Exception as error:  # noqa: BLE001  whatever it is, the others go on
                    problem = f"{type(error).__name__}: {error}"
                    options.lines.write({"failed": name, "load": part.__name__, "error": problem})
    finally:
        end_all()
        removed(folder)
        print_results(options.lines.results)


def new(folder: Path) -> Path:
    """Empty the folder, and return it."""
    removed(folder)
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
