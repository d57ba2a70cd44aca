"""64 exporters at once, over HTTP, over gRPC, and half and half, beside a Collector and `mlflow server`, in one run.

    scripts/setup-mlflow && scripts/setup-collector    # the peers
    python benchmarks/exporters.py                     # 3 rounds of 10 s a case, some 25 minutes
    python benchmarks/exporters.py --rounds 1 --seconds 5 --contestant tracelake-door --protocol grpc

Each sends ten spans of 4 KB a request over a connection of its own, and the next when it has its answer. They are not
the exporters of an SDK, whose own work would be measured then (campaign `sdks` drives those): two processes of threads
send the same bytes. Who is refused waits 0.1 s, and sends the next. Senders share the machine with the servers, so
take processor time, and of the rest ratios within a run. A round puts each protocol on each contestant, started anew;
rounds follow each other, and the table has medians.

- tracelake-serve: `tracelake serve` as it is, with hot tier and pipeline. CPU in all is until the last span is
  searchable and nothing is at work any more.
- tracelake-door: the same with `--no-pipeline`: what the door takes, which syncs what it acknowledges.
- collector-batch: an OpenTelemetry Collector with the batch processor of docs/how-to/send-traces.md, that writes files
  as JSON. It answers before it writes, syncs nothing, keeps twice what is sent twice, and nobody can search it.
- mlflow-sqlite: `mlflow server` 3.18 with its default workers, which takes HTTP alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console
from rich.table import Table

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.door_figures import TAKEN_WITHIN_S, Lines, share
from benchmarks.door_senders import Load, Senders, Sent
from benchmarks.door_servers import (
    Contestant,
    adopt_orphans,
    end_all,
    end_on_signals,
    missing,
    removed,
    running,
    settle,
)
from benchmarks.door_watch import wait_for_rows
from benchmarks.ingest import PeakMemory

EXPORTERS: Final = 64
SPANS: Final = 10
PROCESSES: Final = 2
"""That send: one of Python has one thread at work."""
WARM_REQUESTS: Final = 64
"""Of each process of senders."""
GRPC_SHARES: Final = {"http": 0.0, "grpc": 1.0, "both": 0.5}
SERVERS: Final = {
    "tracelake-serve": "tracelake-serve",
    "tracelake-door": "tracelake-serve",
    "collector-batch": "collector-batch",
    "mlflow-sqlite": "mlflow-sqlite",
}
"""Each contestant, and the server that it is."""
COLUMNS: Final = {
    "spans_per_s": "spans/s",
    "door_us_per_span": "CPU µs a span, answered",
    "all_us_per_span": "in all",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "refused": "refused",
    "failed": "failed",
    "peak_mib": "MiB",
}
"""Figures of the table, and their headings."""
PER_PROCESS: Final = 10**7
"""Numbers of requests that a process of senders has for itself."""


@dataclass(frozen=True)
class Figures:
    """One contestant, one protocol, one round."""

    contestant: str
    protocol: str
    spans: int
    spans_per_s: float
    door_us_per_span: float
    """Processor time of all its processes until the last answer, which may have more to do then."""
    all_us_per_span: float
    """Until all is searchable, and nothing is at work any more."""
    p50_ms: float
    p99_ms: float
    refused: int
    failed: int
    problem: str
    """The last of those that failed."""
    peak_mib: float
    """Of all its processes together."""


def send(
    contestant: Contestant, protocol: str, seconds: float, first: int, requests: int | None = None
) -> list[Sent]:
    """Let all exporters send at once, and return what became of it, by process."""
    load = Load(
        contestant.url,
        contestant.headers,
        EXPORTERS // PROCESSES,
        SPANS,
        seconds=seconds,
        requests=requests,
        grpc=contestant.grpc,
        grpc_share=GRPC_SHARES[protocol],
    )
    with ExitStack() as stack:
        senders = [
            stack.enter_context(Senders(load, first + number * PER_PROCESS)) for number in range(PROCESSES)
        ]
        for each in senders:
            each.begin()
        return [each.sent() for each in senders]


def taken_spans(sent: Sequence[Sent]) -> int:
    """Return how many spans were acknowledged."""
    return SPANS * sum(len(each.answers) for each in sent)


def measure(name: str, protocol: str, seconds: float, folder: Path) -> Figures:
    """Start a contestant, put the load on it, and wait until it has done its work."""
    pipeline = name != "tracelake-door"
    with running(SERVERS[name], folder, pipeline=pipeline) as contestant, ExitStack() as stack:
        stored = taken_spans(send(contestant, protocol, seconds, 1, WARM_REQUESTS))
        lake = contestant.lake if pipeline else None
        if lake is not None:
            wait_for_rows(lake, stored, TAKEN_WITHIN_S)
        settle(contestant)
        memories = [
            stack.enter_context(PeakMemory(psutil.Process(pid), every_s=0.5)) for pid in contestant.pids()
        ]
        before_s, begun_s = contestant.cpu_s(), time.monotonic()
        sent = send(contestant, protocol, seconds, 1 + PER_PROCESS // 2)
        spans = taken_spans(sent)
        assert spans, f"nothing was taken: {sent[0].problem}"
        door_s = contestant.cpu_s() - before_s
        if lake is not None:
            wait_for_rows(lake, stored + spans, TAKEN_WITHIN_S)
        settle(contestant)
        all_s = contestant.cpu_s() - before_s
    answers = [answer for each in sent for answer in each.answers]
    first_s = min(answer.at_s - answer.latency_s for answer in answers)
    assert first_s >= begun_s, "senders and this process have one clock"
    latencies = [answer.latency_s * 1e3 for answer in answers]
    return Figures(
        name,
        protocol,
        spans,
        spans_per_s=spans / (max(answer.at_s for answer in answers) - first_s),
        door_us_per_span=door_s * 1e6 / spans,
        all_us_per_span=all_s * 1e6 / spans,
        p50_ms=share(latencies, 0.5),
        p99_ms=share(latencies, 0.99),
        refused=sum(each.refused for each in sent),
        failed=sum(each.failed for each in sent),
        problem=next((each.problem for each in sent if each.problem), ""),
        peak_mib=sum(sum(memory.peak_mib.values()) for memory in memories),
    )


def cases(contestants: Sequence[str], protocols: Sequence[str]) -> list[tuple[str, str]]:
    """Return what a round consists of: contestants in turns."""
    return [
        (name, protocol)
        for protocol in protocols
        for name in contestants
        if protocol == "http" or name != "mlflow-sqlite"
    ]


def table_of(figures: Sequence[Figures]) -> Table:
    """Return the medians of all rounds."""
    table = Table(title=f"{EXPORTERS} exporters, {SPANS} spans of 4 KB a request")
    table.add_column("protocol")
    table.add_column("")
    for heading in ("rounds", *COLUMNS.values()):
        table.add_column(heading, justify="right")
    for protocol, name in dict.fromkeys((each.protocol, each.contestant) for each in figures):
        rounds = [each for each in figures if (each.protocol, each.contestant) == (protocol, name)]
        medians = (statistics.median(getattr(each, figure) for each in rounds) for figure in COLUMNS)
        table.add_row(protocol, name, str(len(rounds)), *(f"{median:,.0f}" for median in medians))
    return table


def main() -> None:
    """Run what the options say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each case")
    parser.add_argument("--contestant", nargs="+", choices=tuple(SERVERS), default=list(SERVERS))
    parser.add_argument("--protocol", nargs="+", choices=tuple(GRPC_SHARES), default=list(GRPC_SHARES))
    parser.add_argument("--out", type=Path, default=Path("exporters.jsonl"), help="a line for each figure")
    options = parser.parse_args()
    lines, figures = Lines(options.out), list[Figures]()
    for name in options.contestant:
        if lacks := missing(SERVERS[name]):
            lines.write({"failed": name, "error": lacks})
    there = [name for name in options.contestant if not missing(SERVERS[name])]
    adopt_orphans()
    end_on_signals()
    folder = Path(tempfile.mkdtemp(prefix="tracelake-exporters-"))
    try:
        for number in range(1, options.rounds + 1):
            for name, protocol in cases(there, options.protocol):
                removed(folder)
                folder.mkdir()
                try:
                    figures.append(measure(name, protocol, options.seconds, folder))
                except Exception as error:  # noqa: BLE001  whatever it is, the others go on
                    problem = f"{type(error).__name__}: {error}"
                    lines.write({"failed": name, "protocol": protocol, "error": problem})
                else:
                    lines.write({"round": number, "exporters": asdict(figures[-1])})
    finally:
        end_all()
        removed(folder)
        Console(width=160).print(table_of(figures))


if __name__ == "__main__":
    main()
