"""What a table costs as its transactions add up, with compaction and without: SQLite and files, tasks in process.

    python benchmarks/growth.py                       # 10, 100, 1,000 and 10,000 transactions of 8 rows
    python benchmarks/growth.py --transactions 1000 --json

Each transaction replaces half of its rows, appends to the shard, and maintains it, as a pipeline does. A line
tells how things stand after so many transactions; times are over those since the line before.

- record: bytes of the state in SQLite; state: with its beginning, where that is rolled up as an object.
- batches, objects: what the state names, and the Parquet objects that those name.
- append: from the batch's record to the swap of the state, parts being there; maintain: beside it, each time.
- open: what a reader pays before it reads rows: state and batch records.
- written: bytes that compaction wrote for each byte of parts that was appended.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tracelake.shards.model import Batch, Part
from tracelake.shards.parts import by_bucket, write_part
from tracelake.shards.rows import RETRACTIONS, ROW_ID, retractions_by_bucket, with_row_ids
from tracelake.shards.shard import SHARDS_PARTITION, Shard
from tracelake.storage import open_key_value, open_objects
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks.runners import InProcess

ROWS = 8
BUCKETS = 2
KEYS = 100_000


@dataclass(frozen=True)
class Line:
    """How things stand after so many transactions."""

    compaction: bool
    transactions: int
    record_bytes: int
    state_bytes: int
    batches: int
    objects: int
    append_p50_ms: float
    append_p99_ms: float
    maintain_p50_ms: float
    maintain_p99_ms: float
    maintain_max_ms: float
    open_ms: float
    written_per_byte: float


@dataclass
class Growth:
    """One shard that grows."""

    folder: Path
    compaction: bool
    ids: dict[str, int] = field(default_factory=dict)
    appended: int = 0
    written: int = 0

    def __post_init__(self) -> None:
        self.key_value = open_key_value(f"sqlite://{self.folder}/metadata.db")
        self.objects = open_objects(self.folder.as_uri())
        self.shard = Shard("s", self.key_value, self.objects)
        self.maintainer = Maintainer(self.key_value, self.objects, InProcess(), self._upper)
        self.chance = random.Random(7)

    def _upper(self, _: str) -> int:
        return self.shard.state().upper

    def run(self, transactions: int) -> Iterator[Line]:
        """Append so many, and yield a line at each power of ten."""
        appends: list[float] = []
        maintains: list[float] = []
        for time_ in range(transactions):
            parts, gone = self._upload(time_)
            batch = Batch(time_, time_ + 1, uuid.uuid4().hex, tuple(parts), tuple(gone), {"new": ROWS})
            self.appended += sum(part.size_bytes for part in (*parts, *gone))
            started = time.perf_counter()
            assert self.shard.compare_and_append(batch) is None
            appended = time.perf_counter()
            if self.compaction:
                reports = self.maintainer.maintain(self.shard, ("key",))
                self.written += sum(report.written_bytes for report in reports)
            appends.append(appended - started)
            maintains.append(time.perf_counter() - appended)
            if time_ + 1 in {10**power for power in range(1, 9)} | {transactions}:
                yield self._line(time_ + 1, appends, maintains)
                appends, maintains = [], []

    def _upload(self, time_: int) -> tuple[list[Part], list[Part]]:
        known = list(self.ids)[-4_000:]
        keys = {f"{self.chance.randrange(KEYS):08x}" for _ in range(ROWS // 2)}
        keys |= set(self.chance.sample(known, min(len(known), ROWS // 2)))
        table = pa.table({"key": sorted(keys), "text": [self.chance.randbytes(40).hex() for _ in keys]})
        gone = sorted(self.ids.pop(key) for key in keys if key in self.ids)
        parts = []
        for bucket, rows in by_bucket(table, "key", BUCKETS):
            numbered = with_row_ids(rows, time_, bucket, BUCKETS)
            self.ids.update((str(row["key"]), int(row[ROW_ID.name])) for row in numbered.to_pylist())
            parts.append(write_part(self.objects, "s", 0, bucket, numbered, "key"))
        went = pa.table({"row_id": gone, "time": [time_] * len(gone)}, schema=RETRACTIONS)
        retractions = [
            write_part(self.objects, "s", 0, bucket, rows, None)
            for bucket, rows in retractions_by_bucket(went, BUCKETS)
        ]
        return parts, retractions

    def _line(self, transactions: int, appends: list[float], maintains: list[float]) -> Line:
        entry = self.key_value.get(SHARDS_PARTITION, "s")
        assert entry is not None
        state = self.shard.state()
        rolled = 0 if state.rolled is None else len(self.objects.get(state.rolled.path))
        started = time.perf_counter()
        cold = Shard("s", self.key_value, self.objects)
        snapshot = cold.snapshot(transactions - 1)
        opened = time.perf_counter() - started
        assert snapshot.rows in (None, len(self.ids))
        return Line(
            self.compaction,
            transactions,
            len(entry.value),
            len(entry.value) + rolled,
            len(state.batches),
            len(snapshot.parts) + len(snapshot.retractions) + len(snapshot.history),
            round(1000 * at(appends, 0.5), 2),
            round(1000 * at(appends, 0.99), 2),
            round(1000 * at(maintains, 0.5), 2),
            round(1000 * at(maintains, 0.99), 2),
            round(1000 * at(maintains, 1.0), 2),
            round(1000 * opened, 1),
            round(self.written / self.appended, 2),
        )


def at(values: list[float], share: float) -> float:
    """Return a quantile."""
    if share == 0.5:
        return statistics.median(values)
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main() -> None:
    """Run both, and print the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    lines = []
    for compaction in (True, False):
        with tempfile.TemporaryDirectory(prefix="tracelake-growth-") as name:
            for line in Growth(Path(name), compaction).run(arguments.transactions):
                lines.append(line)
                if arguments.json:
                    print(json.dumps(asdict(line)), flush=True)
    if not arguments.json:
        table = Table(*(name.replace("_", " ") for name in asdict(lines[0])))
        for line in lines:
            table.add_row(*map(str, asdict(line).values()))
        Console().print(table)


if __name__ == "__main__":
    main()
