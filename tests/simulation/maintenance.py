"""A shard with concurrent writes, commits, compaction, collection and reads (S4, S7 to S10), under clocks that
jump.

Real code over tiny parts of JSON.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from tests.simulation.scenarios import require
from tracelake._errors import DamageError, ExpiredError, NotFoundError, TracelakeError
from tracelake.batching import DAY_S, Windows
from tracelake.limits import LEASE_S
from tracelake.shards.compaction import Collector
from tracelake.shards.leases import Lease
from tracelake.shards.model import Batch, BatchRef, Part
from tracelake.shards.protocol import UpdateFate, classify, due, forget, settle_append
from tracelake.shards.rows import first_row_id
from tracelake.shards.shard import Shard, Snapshot
from tracelake.storage import ABSENT, KeyValueStore, ObjectStore
from tracelake.testing import Actor, Process, Run, Scenario, Violation

Rows: TypeAlias = dict[str, str]
Json: TypeAlias = list[Any]

UPDATES: Final[Sequence[dict[str, str | None]]] = (
    {"a": "a0", "b": "b0"},
    {"a": "a1"},
    {"b": None, "c": "c2"},  # a tombstone
    {"b": "b3", "c": "c2"},  # an insert after a delete (S4), and an identical upsert (S6)
)
"""Values that each transaction puts under some keys."""


def two_alike(batches: Sequence[BatchRef]) -> Sequence[BatchRef]:
    """Return the oldest neighbours with equally many compactions, because their few rows hardly make any due."""
    return next((pair for pair in pairwise(batches) if pair[0].level == pair[1].level), ())


def table_as_of(as_of: int) -> Rows:
    """Return the rows by the sequential model."""
    rows: Rows = {}
    for updates in UPDATES[: as_of + 1]:
        for key, value in updates.items():
            rows.pop(key, None) if value is None else rows.update({key: value})
    return rows


class Stores:
    """One actor's stores, and its naming of objects."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, who: str, number: int | None = None
    ) -> None:
        self.key_value = key_value
        self.objects = objects
        self._who = who
        self._number = number

    def new_id(self) -> str:
        """Return a unique id: from the run's random numbers, or from a counter before the run begins."""
        if self._number is None:
            return uuid.uuid4().hex[:8]
        self._number += 1
        return f"{self._number:08d}"

    def put(self, epoch: int, rows: Json) -> Part:
        """Write rows, which begin with their ids, as a part."""
        data = json.dumps(rows).encode()
        path = f"shards/t/parts/{epoch:06d}/{self._who}-{self.new_id()}.json"
        self.objects.put(path, data)
        ids = [row[0] for row in rows]
        return Part(path, 0, len(rows), len(data), "", first_row_id=min(ids), last_row_id=max(ids))


class MaintenanceScenario(Scenario):
    """Two writers render and commit the same transactions, while a compactor, a collector and a reader work."""

    name = "maintenance"
    steps_max = 4_000
    shard = Shard
    lease = Lease
    collector = Collector
    orphans = True
    """Whether the collector also looks for orphans."""
    rests = True
    """Whether compactor and collector rest between their rounds."""
    collects_every_s = LEASE_S * 0.6

    def __init__(self, writers: int = 2, times: int = 3, rounds: int = 2) -> None:
        self._writers, self._times, self._rounds = writers, times, rounds

    def actors(self) -> list[Actor]:
        return [
            *(Actor(f"writer-{index}", self._write) for index in range(self._writers)),
            Actor("compactor", self._compact),
            Actor("collector", self._collect),
            Actor("reader", self._read),
        ]

    def _open(self, process: Process) -> Shard:
        return self.shard("t", process.key_value, process.objects)

    def wall_s(self, who: str, now_s: float) -> float:
        """Whether each machine's clock is hours off and jumps each second."""
        return now_s + 3 * 3600 * ((int(now_s) + len(who)) % 3)

    def steady_s(self, who: str, now_s: float) -> float:
        """Whether steady clocks start at arbitrary times."""
        return now_s + 7 * 3600 * len(who)

    # Writers

    def _write(self, process: Process) -> None:
        shard = self._open(process)
        for t in range(self._times):
            while classify(t, shard.state().upper, t + 1) is UpdateFate.PROCESS:
                try:
                    self._append(Stores(process.key_value, process.objects, process.name), shard, t)
                except ExpiredError:  # too slow for the collector: upload everything again
                    continue
            self._commit(process.key_value, shard, t)

    def _commit(self, key_value: KeyValueStore, shard: Shard, t: int) -> None:
        """Commit a transaction from its batch's record, as any process may, and as `CommitOutput.counts` does."""
        while True:
            failure = None
            try:
                batch = shard.batch_at(t)
            except DamageError as error:
                batch, failure = None, error
            entry = key_value.get("commits", "main")
            if entry is not None and int(entry.value) > t:
                return
            require(failure is None, f"the batch at {t} is not committed, and gone: {failure}")
            require(
                batch is None or batch.counts == {"t": t}, f"the batch at {t} was compacted before its commit"
            )
            expected = ABSENT if entry is None else entry.version
            key_value.set_if("commits", "main", str(t + 1).encode(), expected)

    def committed(self, key_value: KeyValueStore, shard: Shard) -> int:
        """Return the committed upper, at which compaction stops."""
        del shard
        entry = key_value.get("commits", "main")
        return 0 if entry is None else int(entry.value)

    def abort(self, stores: Stores, batch: Batch) -> None:
        """Do nothing, as a writer whose append or commit raised, because the state may name its objects."""

    def _append(self, stores: Stores, shard: Shard, t: int) -> None:
        with self.lease(shard, stores.key_value) as lease:
            if lease.state.upper != t:
                return
            epoch = lease.state.epoch
            stored = self.rows(stores.objects, shard.snapshot(t - 1, lease.state))
            came: Json = []
            went: Json = []
            for key, value in UPDATES[t].items():
                old = stored.get(key)
                if old is not None and old[1] == value:
                    continue
                if old is not None:
                    went.append([old[0], t])
                if value is not None:
                    came.append([first_row_id(t) + len(came), key, value])
            parts = [stores.put(epoch, came)] if came else []
            gone = [stores.put(epoch, went)] if went else []
        batch = Batch(
            t,
            t + 1,
            stores.new_id(),
            tuple(parts),
            tuple(gone),
            {"t": t},
            epoch=epoch,
            ingested_s=self.ingested_s(t),
        )
        try:
            lost = shard.compare_and_append(batch) is not None
            self._commit(stores.key_value, shard, t)
        except TracelakeError:
            self.abort(stores, batch)
            raise
        if lost:
            for part in batch.objects():  # a peer appended the same rows
                stores.objects.delete(part.path)

    # Compaction, as shards.compaction does it on Parquet

    def _compact(self, process: Process) -> None:
        shard = self._open(process)
        for number in range(self._rounds):
            with self.lease(shard, process.key_value) as lease:
                run = self.choose(lease.state.batches, self.committed(process.key_value, shard))
                if run:
                    batches = [shard.batch(ref) for ref in run]
                    stores = Stores(process.key_value, process.objects, process.name)
                    merged = self.merge(stores, batches, lease.state.since, lease.state.epoch)
                    self.replace(process, shard, run, merged)
            if number == 0 and shard.state().upper > 1:
                shard.change(partial(forget, since=1))
            self._rest(process)

    def choose(self, batches: Sequence[BatchRef], committed: int) -> Sequence[BatchRef]:
        """Return the committed batches to compact now."""
        return two_alike(settle_append(batches, committed))

    def ingested_s(self, t: int) -> int:
        """Return the time of a transaction; here unknown, as in old lakes."""
        del t
        return 0

    def _rest(self, process: Process) -> None:
        if self.rests:
            process.sleep(1)

    def replace(self, process: Process, shard: Shard, run: Sequence[BatchRef], merged: Batch) -> None:
        """Publish a compaction; drop one that is too late."""
        del process
        try:
            shard.replace(run, merged)
        except ExpiredError:
            return

    def merge(self, stores: Stores, batches: Sequence[Batch], since: int, epoch: int) -> Batch:
        """Merge the rows of adjacent batches; a part that lost none stays unchanged."""
        border = first_row_id(batches[0].lower)
        retractions = [row for batch in batches for row in self._all(stores.objects, batch.retractions)]
        gone = {row: at for row, at in retractions if row >= border}
        history = [row for batch in batches for row in self._all(stores.objects, batch.history)]
        live: Json = []
        kept: list[Part] = []
        for part in (part for batch in batches for part in batch.parts):
            rows = self._all(stores.objects, [part])
            if not any(row[0] in gone for row in rows):
                kept.append(part)
                continue
            live += [row for row in rows if row[0] not in gone]
            history += [[*row, gone[row[0]]] for row in rows if row[0] in gone]
        history = [row for row in history if self.remembered(row[3], since)]
        older = [row for row in retractions if row[0] < border]
        return Batch(
            batches[0].lower,
            batches[-1].upper,
            stores.new_id(),
            (*kept, *([stores.put(epoch, live)] if live else [])),
            (stores.put(epoch, older),) if older else (),
            {},
            history=(stores.put(epoch, history),) if history else (),
            epoch=epoch,
        )

    def remembered(self, gone: int, since: int) -> bool:
        """Return whether a row deleted at `gone` may still be read."""
        return gone > since

    # Collection

    def _collect(self, process: Process) -> None:
        shard = self._open(process)
        for _ in range(self._rounds + 1):
            collector = self.collector(shard, process.key_value, process.objects)
            collector.retired()
            if self.orphans:
                collector.orphans(epoch_min_s=0)
            if self.rests:
                process.sleep(self.collects_every_s)

    # Reading

    def _read(self, process: Process) -> None:
        shard = self._open(process)
        for number in range(self._rounds + 1):
            taken_s = process.now_s()
            try:
                with self.lease(shard, process.key_value) as lease:
                    state = lease.state
                    as_of = state.upper - 1 if number % 2 else max(state.since, state.upper - 2)
                    if state.upper == 0:
                        continue
                    found = self.rows(process.objects, shard.snapshot(as_of, state))
            except ExpiredError as error:  # S10: no rows are returned
                require(process.now_s() > taken_s + LEASE_S, f"a lease ended too soon: {error}")
                continue
            except (NotFoundError, DamageError) as error:
                raise Violation(f"a leased part is gone: {error}") from error
            self._compare(process.name, as_of, found)
            process.sleep(1)

    def _compare(self, who: str, as_of: int, found: dict[str, tuple[int, str]]) -> None:
        rows = {key: value for key, (_, value) in found.items()}
        require(rows == table_as_of(as_of), f"{who} sees {rows} as of {as_of}, not {table_as_of(as_of)}")

    def rows(self, objects: ObjectStore, snapshot: Snapshot) -> dict[str, tuple[int, str]]:
        """Return (row id, value) by key, as `shards.rows` reads Parquet. Raises Violation for a repeated key."""
        t = snapshot.as_of
        gone = {row for row, at in self._all(objects, snapshot.retractions) if at <= t}
        live = [row for row in self._all(objects, snapshot.parts) if row[0] not in gone]
        live += [row for row in self._all(objects, snapshot.history) if row[3] > t and row[0] not in gone]
        found: dict[str, tuple[int, str]] = {}
        for row in live:
            if row[0] < first_row_id(t + 1):
                require(row[1] not in found, f"key {row[1]} is there twice as of {t}")
                found[row[1]] = row[0], row[2]
        return found

    @staticmethod
    def _all(objects: ObjectStore, parts: Sequence[Part]) -> Json:
        return [row for part in parts for row in json.loads(objects.get(part.path))]

    # Rules

    def invariant(self, run: Run) -> None:
        """Everything that the state names exists and gives the rows of the model."""
        shard = Shard("t", run.direct_key_value, run.direct_objects)
        try:
            state = shard.state()
            if state.upper == 0:
                return
            for batch in map(shard.batch, state.batches):
                for part in batch.objects():
                    require(part.path in run.objects.objects, f"the state names {part.path}, which is gone")
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"the state cannot be read: {error}") from error
        for as_of in range(state.since, state.upper):
            self._compare("a look", as_of, self.rows(run.direct_objects, shard.snapshot(as_of, state)))

    def check(self, run: Run) -> None:
        """Every transaction exists."""
        shard = Shard("t", run.direct_key_value, run.direct_objects)
        upper = shard.state().upper
        require(upper == self._times, f"the shard stopped at {upper}")
        require(self.committed(run.direct_key_value, shard) == upper, "not all is committed")


class FilledScenario(MaintenanceScenario):
    """The shard is filled in advance; then a compactor, a collector and readers run."""

    name = "maintenance-filled"

    def __init__(self, readers: int = 1, rounds: int = 2, filled: int = len(UPDATES)) -> None:
        super().__init__(writers=0, times=len(UPDATES), rounds=rounds)
        self._readers, self._filled = readers, filled

    def prepare(self, run: Run) -> None:
        """Append the first transactions, one batch each."""
        shard = Shard("t", run.direct_key_value, run.direct_objects)
        for t in range(self._filled):
            self._append(Stores(run.direct_key_value, run.direct_objects, "before", number=t * 100), shard, t)

    def actors(self) -> list[Actor]:
        return [
            Actor("compactor", self._compact),
            Actor("collector", self._collect),
            *(Actor(f"reader-{index}", self._read) for index in range(self._readers)),
        ]


PER_DAY: Final = 2
"""Transactions of a day."""


class WindowsScenario(FilledScenario):
    """Two compactors work on windows of a day while a writer appends; a second of the run is a day of the clock."""

    name = "maintenance-windows"

    def __init__(self, compactors: int = 2, rounds: int = 3) -> None:
        super().__init__(readers=1, rounds=rounds, filled=PER_DAY)
        self._compactors = compactors

    def actors(self) -> list[Actor]:
        return [
            Actor("writer", self._write),
            *(Actor(f"compactor-{index}", self._compact) for index in range(self._compactors)),
            Actor("collector", self._collect),
            Actor("reader-0", self._read),
        ]

    def wall_s(self, who: str, now_s: float) -> float:
        """Return the time of day, which differs between machines by less than a window needs to settle."""
        return DAY_S * (1 + now_s) + 600 * (len(who) % 3)

    def ingested_s(self, t: int) -> int:
        return DAY_S * (1 + t // PER_DAY) + t

    def choose(self, batches: Sequence[BatchRef], committed: int) -> Sequence[BatchRef]:
        return due(batches, committed, windows=Windows(DAY_S, time.time()))

    def merge(self, stores: Stores, batches: Sequence[Batch], since: int, epoch: int) -> Batch:
        windows = Windows(DAY_S, time.time())
        merged = super().merge(stores, batches, since, epoch)
        return replace(merged, ingested_s=windows.time_of([batch.ingested_s for batch in batches]))

    def invariant(self, run: Run) -> None:
        """No batch has rows of two days, and no day is compacted twice."""
        super().invariant(run)
        for ref in Shard("t", run.direct_key_value, run.direct_objects).state().batches:
            days = {t // PER_DAY for t in range(ref.lower, ref.upper)}
            require(len(days) == 1, f"[{ref.lower}, {ref.upper}) has the days {days}")
            require(ref.level <= 1, f"[{ref.lower}, {ref.upper}) was compacted {ref.level} times")
            run.notes["settled"] = run.notes.get("settled", 0) + ref.level
