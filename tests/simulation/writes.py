"""Retried writes with ids to a user's table, from writers that crash, lose replies, and run twice.

The real `publish` runs over a table without a key, whose parts stay as they are, so a repeated write shows. One
actor finishes writes and compacts, and another collects.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from tests.simulation.maintenance import two_alike
from tests.simulation.scenarios import require
from tracelake._errors import ExpiredError
from tracelake.shards.compaction import Collector
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, Part, Write
from tracelake.shards.parts import STAGED, part_path
from tracelake.shards.protocol import next_state, settle_append
from tracelake.shards.shard import Shard
from tracelake.storage import Stores
from tracelake.tables.maintenance import committed_upper
from tracelake.tables.spec import TableSpec, create_spec, make_spec
from tracelake.testing import Actor, Process, Run, Scenario
from tracelake.user_tables.staging import LAST_STANDS, Block, Pieces
from tracelake.user_tables.write import WriteId, finish_writes, publish
from tracelake.versions.repository import Repository

TABLE: Final = "log"
SERIES: Final = [WriteId("series", number) for number in range(2)]
SHARED: Final = WriteId("shared")
NOTHING: Final = WriteId("nothing")


def old_writes() -> list[WriteId]:
    """Return old writes, so many that the state is about to move the older half elsewhere."""
    return [WriteId(f"old {number}") for number in range(Shard.written_max - 2)]


class WritesScenario(Scenario):
    """Two writers make writes of one id each, a series, and one that changes nothing; a killed writer begins again."""

    name = "writes"
    steps_max = 6_000

    def __init__(self, writers: int = 2, rounds: int = 2, old: int = 2) -> None:
        """`old` is the number of old writes that each writer retries. Without rounds, there is one write."""
        self._writers, self._rounds, self._old = writers, rounds, old
        self._shared = (SHARED, *SERIES) if rounds else (SHARED,)

    def actors(self) -> list[Actor]:
        return [
            *(Actor(f"writer-{index}", self._write) for index in range(self._writers)),
            Actor("compactor", self._compact),
            Actor("collector", self._collect),
        ]

    def prepare(self, run: Run) -> None:
        """Make a table that remembers many writes."""
        spec = create_spec(run.direct_objects, _spec())
        written = (Write(SERIES[0].to_write({}).name, -1, {}), *(one.to_write({}) for one in old_writes()))
        Shard(TABLE, run.direct_key_value, run.direct_objects).change(
            lambda state: None if state.written else next_state(state, written=written)
        )
        run.notes.update(spec=spec, acknowledged=set())

    # Writers

    def _write(self, process: Process) -> None:
        for write_id in (*self._shared, *([WriteId(process.name)] if self._rounds else [])):
            self._until_done(process, write_id)
            process.notes["acknowledged"].add(_row(write_id))
        for write_id in old_writes()[: self._old]:
            self._until_done(process, write_id)
        if process.name == "writer-0" and self._rounds:
            self._until_done(process, NOTHING, with_rows=False)
            self._until_done(process, NOTHING)  # not its earlier result: it has happened

    def _until_done(self, process: Process, write_id: WriteId, *, with_rows: bool = True) -> None:
        stores = Stores(process.key_value, process.objects, Path("nowhere"))
        spec: TableSpec = process.notes["spec"]
        while True:
            epoch = Shard(TABLE, process.key_value, process.objects).state().epoch
            block = Block([self._piece(process, write_id, epoch)] if with_rows else [])
            try:
                publish(stores, spec, [Pieces(epoch, 1, LAST_STANDS, [block])], write_id)
                return
            except ExpiredError:  # too slow for the collector: stage it again
                continue

    def _piece(self, process: Process, write_id: WriteId, epoch: int) -> Part:
        row = _row(write_id).encode()
        path = part_path(TABLE, epoch, 0, STAGED)
        process.objects.put(path, row)
        return Part(path, 0, 1, len(row), "", relative=True)

    # Concurrent actors

    def _compact(self, process: Process) -> None:
        """Finish writes and compact, as `tracelake compact` does; parts of a table without a key stay as they are."""
        shard = Shard(TABLE, process.key_value, process.objects)
        for _ in range(self._rounds):
            finish_writes(Stores(process.key_value, process.objects, Path("nowhere")))
            with Lease(shard, process.key_value) as lease:
                committed = committed_upper(Repository(process.key_value, process.objects), TABLE)
                run = two_alike(settle_append(lease.state.batches, committed))
                if run:
                    parts = [part for ref in run for part in shard.batch(ref).parts]
                    merged = Batch(
                        run[0].lower,
                        run[-1].upper,
                        process.new_uuid().hex,
                        tuple(parts),
                        (),
                        {},
                        epoch=lease.state.epoch,
                    )
                    try:
                        shard.replace(run, merged)
                    except ExpiredError:
                        continue
            process.sleep(1)

    def _collect(self, process: Process) -> None:
        for _ in range(self._rounds):
            shard = Shard(TABLE, process.key_value, process.objects)
            collector = Collector(shard, process.key_value, process.objects)
            collector.retired()
            collector.orphans(epoch_min_s=0)
            process.sleep(3600)

    # Rules

    def invariant(self, run: Run) -> None:
        """No write exists twice, no old write reappears, and acknowledged writes are visible."""
        version = run.key_value.get("shards", TABLE), run.key_value.get("branches", "main")
        told = frozenset(run.notes["acknowledged"])
        state = version, told, len(run.objects.objects)
        if run.notes.get("state") == state:
            return
        run.notes["state"] = state
        shard = Shard(TABLE, run.direct_key_value, run.direct_objects)
        upper = committed_upper(Repository(run.direct_key_value, run.direct_objects), TABLE)
        found: Counter[str] = Counter()
        visible: set[str] = set()
        for ref in shard.state().batches:
            for part in shard.batch(ref).parts:
                require(part.path in run.objects.objects, f"the state names {part.path}, which is gone")
                row = run.objects.get(part.path).decode()
                found[row] += 1
                visible |= {row} if ref.upper <= upper else set()
        for row, count in found.items():
            require(count == 1, f"write {row} is there {count} times")
            require(
                row not in {_row(one) for one in (*old_writes(), NOTHING)},
                f"{row} happened before, and is made again",
            )
        require(told <= visible, f"{sorted(told - visible)} acknowledged, and not visible")

    def check(self, run: Run) -> None:
        """All writes exist."""
        wanted = set(map(_row, self._shared))
        wanted |= {f"writer-{number}" for number in range(self._writers) if self._rounds}
        require(run.notes["acknowledged"] == wanted, f"only {run.notes['acknowledged']} were acknowledged")


@cache
def _spec() -> TableSpec:
    return make_spec(TABLE, pa.schema([pa.field("id", pa.string())]), (), 1)


def _row(write_id: WriteId) -> str:
    return write_id.text if write_id.number is None else f"{write_id.text} {write_id.number}"
