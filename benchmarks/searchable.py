"""Where processor time goes from the answer to a request until a search finds it, by stage, in one process.

    python benchmarks/searchable.py                        # 20 requests of 10 spans a batch, in both tiers
    python benchmarks/searchable.py --no-hot-tier          # through the inbox
    python benchmarks/searchable.py --hot 0 100 1000       # a search while so many requests are hot

Each batch is stored, searched at once and again, taken by the pipeline, and searched at once and again: a search finds
the last of its requests each time. The table has the mean of a batch, in milliseconds of the process, after some to
warm up. With `--hot` no pipeline runs: it tells what a search costs that comes after one more request, and after
twenty, while so many wait.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Final
from unittest import mock

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks import stages
from benchmarks.door_senders import bodies, with_ids
from benchmarks.stages import REST, STAGES, Stopwatch
from tracelake import Lake
from tracelake.otlp.framing import write_segment
from tracelake.otlp.partition import take_apart
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import PREFIX, SEGMENT_DIGITS
from tracelake.tracking.store import TracedRequest, TrackingStore

WARM: Final = 3
"""Batches before the first that counts."""
SEARCHING: Final = {
    "open the commit": ["tracelake.versions.repository.Repository.head", "tracelake.tables.view.named_by"],
    "look what is hot": [
        "tracelake.tracking.outbox.Uncommitted.newest",
        "tracelake.tracking.outbox.Uncommitted.listed_in",
    ],
    "read what is hot": [
        "tracelake.tracking.outbox.Uncommitted.parts",
        "tracelake.tracking.outbox.Uncommitted.of_traces",
    ],
    "index what is hot": ["tracelake.hot.index.write_unpublished"],
    "compare claims of both tiers": ["tracelake.hot.search.HotSearch._uncommitted_rows"],
    "fetch parts of the index": ["tracelake.search.part_cache.PartCache.fetch"],
    "open parts of the index": ["tracelake.search.open_index.OpenIndex.searcher"],
    "query": ["tracelake.tables.view.CommitView.search"],
}
STORING: Final = {"store": ["tracelake.tracking.store.TrackingStore.write"]}
PHASES: Final = (
    "store",
    "search at once",
    "and again",
    "pipeline",
    "search after the commit",
    "and again.",
)


class Batches:
    """Stores requests of a lake, and remembers the word of the last."""

    def __init__(self, lake: Lake, spans: int, hot: bool) -> None:
        self._lake, self._pool, self._numbers = lake, bodies(spans, "protobuf", 2**23), count(1)
        self._store: TrackingStore | None = lake.hot.set_up() if hot else None
        self.word = ""

    def requests(self, number: int) -> list[bytes]:
        """Return so many requests that were not there before."""
        made = [
            with_ids(self._pool[at % len(self._pool)], at, "protobuf")
            for at, _ in zip(self._numbers, range(number), strict=False)
        ]
        self.word = made[-1][1]
        return [body for body, _ in made]

    def store(self, some: list[bytes]) -> None:
        """Store requests as one group."""
        if self._store is not None:
            self._store.write(
                [TracedRequest("protobuf", body, take_apart("protobuf", body)) for body in some]
            )
            return
        path = f"{PREFIX}{0:020d}-{next(self._numbers):016x}-{0:0{SEGMENT_DIGITS}}.segment"
        self._lake.objects.put(path, write_segment([("protobuf", body) for body in some]))

    def search(self, must: bool = True) -> None:
        """Look for the last request that was stored."""
        found = bool(self._lake.search(self.word, limit=1))
        assert found or not must, f"{self.word} is not found"


def by_stage(lake: Lake, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return milliseconds of a batch by phase and stage."""
    batches, watch = Batches(lake, options.spans, options.hot_tier), Stopwatch()
    pipeline = lake.pipeline(runner=InProcess())
    told: dict[str, dict[str, float]] = {name: {} for name in PHASES}

    def phases(some: list[bytes]) -> Iterator[tuple[str, Callable[[], object]]]:
        yield "store", lambda: batches.store(some)
        if options.hot_tier:
            yield "search at once", batches.search
            yield "and again", batches.search
        yield "pipeline", pipeline.run_once
        yield "search after the commit", batches.search
        yield "and again.", batches.search

    with mock.patch.dict(stages.STAGES, STORING | SEARCHING), watch.watching():
        for number in range(WARM + options.batches):
            for name, do in phases(batches.requests(options.requests)):
                watch.start()
                do()
                for stage, seconds in watch.stop().items():
                    if number >= WARM:
                        of_phase = told[name]
                        of_phase[stage] = of_phase.get(stage, 0.0) + seconds * 1e3 / options.batches
    pipeline.close()
    return told


def while_hot(lake: Lake, options: argparse.Namespace) -> None:
    """Print what searches cost while requests are hot."""
    batches, watch, stored = Batches(lake, options.spans, hot=True), Stopwatch(), 0
    sys.stdout.write("| hot requests | first ms | after one | after twenty | of nothing new |\n")
    sys.stdout.write("|--:|--:|--:|--:|--:|\n")
    for hot in options.hot:
        for _ in range(stored, hot, 10):
            batches.store(batches.requests(10))
        stored = max(stored, hot)
        told: list[float] = []
        for more in (1, 1, 20, 0):
            for _ in range(more):
                batches.store(batches.requests(1))
            stored += more
            watch.start()
            batches.search(must=not told)
            told.append(sum(watch.stop().values()) * 1e3)
        sys.stdout.write(f"| {hot:,} | {' | '.join(f'{each:,.0f}' for each in told)} |\n")
        sys.stdout.flush()


def main() -> None:
    """Print a table: a line a stage, a column a phase."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20, help="of a batch")
    parser.add_argument("--spans", type=int, default=10, help="of a request")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--no-hot-tier", dest="hot_tier", action="store_false")
    parser.add_argument("--hot", type=int, nargs="+", help="requests that wait while a search comes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tracelake.init(Path(folder) / "lake") as lake:
        if options.hot:
            while_hot(lake, options)
            return
        told = by_stage(lake, options)
    phases = [name for name in PHASES if told[name]]
    sys.stdout.write(f"| CPU ms a batch | {' | '.join(phases)} |\n|---|{'--:|' * len(phases)}\n")
    for stage in (*STORING, *STAGES, *SEARCHING, REST):
        if any(stage in told[name] for name in phases):
            cells = (f"{told[name].get(stage, 0.0):,.1f}" for name in phases)
            sys.stdout.write(f"| {stage} | {' | '.join(cells)} |\n")
    sums = (f"{sum(told[name].values()):,.1f}" for name in phases)
    sys.stdout.write(f"| in all | {' | '.join(sums)} |\n")


if __name__ == "__main__":
    main()
