"""A day of a lake in minutes: growth of parts, commits, files and bytes, hour by hour, with a simulated clock.

    python benchmarks/day.py --texts agents.otlp.jsonl.gz                                  # 24,000 spans
    python benchmarks/day.py --texts agents.otlp.jsonl.gz --spans 240000 --results benchmarks/results

Each hour has the load of its time of day: few spans at night, most in the afternoon. Between transactions the clock
moves by their share of an hour, so that retention, expiry of history and garbage collection act as in a real day. The
pipeline and all maintenance run in this process. Growth is that of a server's lake; times are not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks.cost import SpanMaker, sizes
from tracelake.otlp.partition import take_apart
from tracelake.tables.builtin import TABLE_SPANS
from tracelake.tasks.runners import InProcess
from tracelake.tracking.store import TracedRequest

HOUR_S: Final = 3_600.0
BUSIEST_HOUR: Final = 15
REQUEST_SPANS: Final = 50


class Clock:
    """Wall clock of the process, which begins a day ago and moves forward.

    Files are then never older than their content: the clock of the file system is that of the machine.
    """

    def __init__(self) -> None:
        self.ahead_s = -24 * HOUR_S
        self._real, self._real_ns = time.time, time.time_ns

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self._real() + self.ahead_s

    def time_ns(self) -> int:
        """Return the simulated time in nanoseconds."""
        return self._real_ns() + int(self.ahead_s * 1e9)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Replace the wall clock during the block. Waits and time-outs use the monotonic clock, which stays."""
        with (
            mock.patch("time.time", self.time),
            mock.patch("time.time_ns", self.time_ns),
        ):
            yield


@dataclass(frozen=True)
class Hour:
    """A lake at the end of an hour."""

    hour: int
    spans: int
    """Spans of all hours so far."""
    commits: int
    parts: int
    """Parts of table `spans`."""
    files: int
    hot_traces: int
    hot_free_bytes: int
    """Free pages of the tracking store, which new spans reuse."""
    bytes: dict[str, int]
    written_bytes: int
    """Bytes of all hours so far, as this process gave them to the disk."""


def shares(hours: int) -> list[float]:
    """Return each hour's share of a day: a night of a tenth of the busiest hour."""
    loads = [
        0.1 + 0.9 * max(0.0, math.cos((hour - BUSIEST_HOUR) * math.pi / 12)) ** 1.5 for hour in range(hours)
    ]
    return [load / sum(loads) for load in loads]


def day(maker: SpanMaker, spans: int, transactions: int, folder: Path) -> Iterator[Hour]:
    """Yield the state of a lake after each hour of a day.

    Args:
        maker: makes the spans.
        spans: spans of the day.
        transactions: transactions an hour.
        folder: new folder for the lake.
    """
    clock, sent = Clock(), 0
    with clock.running(), tracelake.init(folder / "lake") as lake, closing(lake.hot.set_up()) as store:
        for hour, share in enumerate(shares(24)):
            rest = max(REQUEST_SPANS, int(share * spans))
            for _ in range(transactions):
                requests = max(1, round(rest / transactions / REQUEST_SPANS))
                for _ in range(requests):
                    body = maker.request(REQUEST_SPANS).body
                    store.write([TracedRequest("protobuf", body, take_apart("protobuf", body))])
                sent += requests * REQUEST_SPANS
                pipeline = lake.pipeline(runner=InProcess())
                while pipeline.run_once() is not None:
                    pass
                pipeline.close()
                clock.ahead_s += HOUR_S / transactions
                if lake.archive.plan():
                    lake.archive.run()
            lake.maintenance.gc_when_due()
            space = lake.archive.space()
            yield Hour(
                hour,
                sent,
                len(lake.log(limit=100_000)),
                lake.table(TABLE_SPANS.name).info().parts,
                sum(1 for file in folder.rglob("*") if file.is_file()),
                space.hot_traces,
                space.free_bytes,
                sizes(folder / "lake"),
                _written_bytes(),
            )


def _written_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def table_of(hours: list[Hour]) -> Table:
    """Return the hours as a table."""
    kinds = sorted({kind for each in hours for kind in each.bytes})
    table = Table(
        *("hour", "spans", "commits", "parts", "files", "hot traces", "free"),
        *kinds,
        "bytes a span",
        "written",
    )
    for each in hours:
        total = sum(each.bytes.values())
        figures = [
            each.hour,
            each.spans,
            each.commits,
            each.parts,
            each.files,
            each.hot_traces,
            each.hot_free_bytes,
        ]
        figures += [each.bytes.get(kind, 0) for kind in kinds]
        figures += [total // each.spans, each.written_bytes // each.spans]
        table.add_row(*(f"{figure:,}" for figure in figures))
    return table


def main() -> None:
    """Run the simulation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True, help="OTLP JSON lines, gzipped")
    parser.add_argument("--kind", choices=("llm", "service"), default="llm")
    parser.add_argument("--spans", type=int, default=24_000, help="spans of the day")
    parser.add_argument("--transactions", type=int, default=12, help="transactions an hour")
    parser.add_argument("--results", type=Path, help="folder for day.json")
    options = parser.parse_args()
    hours: list[Hour] = []
    with tempfile.TemporaryDirectory(prefix="tracelake-day-") as folder:
        maker = SpanMaker(options.kind, options.texts, 7)
        for each in day(maker, options.spans, options.transactions, Path(folder)):
            hours.append(each)
            Console(stderr=True).print(f"hour {each.hour}: {each.spans:,} spans, {each.files:,} files")
    Console(width=220).print(table_of(hours))
    if options.results:
        document: dict[str, Any] = {
            "command": " ".join(sys.argv[1:]),
            "hours": [asdict(each) for each in hours],
        }
        (options.results / "day.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
