"""The protocols as simulations: real code of several actors, and the sequential model that each must follow."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from tracelake.journal.model import JournalRecord, Seal, Step, WholeFile
from tracelake.journal.protocol import totals
from tracelake.journal.store import Journal
from tracelake.search.analyzers import ENGLISH
from tracelake.search.finalize import collect, finalize, read_manifest, read_parts
from tracelake.search.model import Manifest, Receipt, manifest_path, staged_path
from tracelake.shards.model import Batch, Part, ShardState
from tracelake.shards.model import from_bytes as shard_from_bytes
from tracelake.shards.protocol import UpdateFate, classify
from tracelake.shards.shard import Shard
from tracelake.storage import ABSENT, KeyValueStore, ObjectStore
from tracelake.testing import (
    Actor,
    Process,
    RecordingKeyValueStore,
    Run,
    Scenario,
    Violation,
    find_contradiction,
)


def direct_process(run: Run) -> Any:
    """Return a process after the run, whose calls take effect at once."""
    return SimpleNamespace(
        _run=run,
        call=lambda call: call.effect(),
        key_value=run.direct_key_value,
        objects=run.direct_objects,
        notes=run.notes,
    )


def require(holds: bool, what: str) -> None:
    """Raise Violation unless the condition holds."""
    if not holds:
        raise Violation(what)


def several(acts: Mapping[str, Callable[[Process], None]], counts: Mapping[str, int]) -> list[Actor]:
    """Return names for this many actors of each kind: 2 `adders` are adder-0 and adder-1."""
    assert acts.keys() >= counts.keys(), counts.keys() - acts.keys()
    return [
        Actor(f"{kind.removesuffix('s')}-{index}", acts[kind])
        for kind, count in counts.items()
        for index in range(count)
    ]


class ShardScenario(Scenario):
    """Writers that race for every batch of one shard, as replicas of one pipeline do (S7, S8, S9).

    Each writes its part, then appends; a writer that lost the race deletes its part.
    """

    name = "shard"
    steps_max = 300
    shard = Shard

    def __init__(self, writers: int = 2, times: int = 2) -> None:
        self._writers, self._times = writers, times

    def actors(self) -> list[Actor]:
        return [Actor(f"writer-{index}", self._write) for index in range(self._writers)]

    def _write(self, process: Process) -> None:
        shard = self.shard("spans", process.key_value, process.objects)
        for time in range(self._times):
            while (verdict := self.classify(time, shard.state().upper, time + 1)) is UpdateFate.HOLD:
                process.sleep(1)
            if verdict is UpdateFate.PROCESS:
                self.append(process, shard, time)

    def classify(self, ts: int, upper: int, input_frontier: int) -> UpdateFate:
        """Decide by the protocol's rule; a mutant uses another."""
        return classify(ts, upper, input_frontier)

    def append(self, process: Process, shard: Shard, time: int) -> None:
        """Write a part and append it; delete it if another writer was first."""
        batch_id = process.new_uuid().hex
        part = Part(f"shards/spans/{time}-{batch_id}.parquet", 0, 1, 4, "")
        process.objects.put(part.path, b"rows")
        if shard.compare_and_append(Batch(time, time + 1, batch_id, (part,), (), {})) is None:
            process.record(batch_id)
        else:
            process.objects.delete(part.path)

    def invariant(self, run: Run) -> None:
        """Everything that the state names exists: one batch for each time, its record, its parts."""
        entry = run.key_value.get("shards", "spans")
        if entry is None:
            return
        state = shard_from_bytes(ShardState, entry.value, "spans")
        require(
            [(ref.lower, ref.upper) for ref in state.batches] == [(t, t + 1) for t in range(state.upper)],
            "the batches do not cover the shard exactly once",
        )
        for ref in state.batches:
            require(ref.path in run.objects.objects, f"the state names {ref.path}, which is not there")
            for part in shard_from_bytes(Batch, run.objects.get(ref.path), ref.path).parts:
                require(part.path in run.objects.objects, f"a batch names {part.path}, which is not there")

    def check(self, run: Run) -> None:
        """Each time has one batch, and every acknowledged batch exists once."""
        entry = run.key_value.get("shards", "spans")
        require(entry is not None, "nothing was ever appended")
        assert entry is not None
        state = shard_from_bytes(ShardState, entry.value, "spans")
        require(state.upper == self._times, f"the shard stopped at {state.upper}")
        ids = Counter(ref.id for ref in state.batches)
        for writer, batch_id in run.history:
            require(
                ids[str(batch_id)] == 1,
                f"the batch that {writer} was told is there is there {ids[str(batch_id)]} times",
            )


class JournalScenario(Scenario):
    """Pipelines of one name that race to record each transaction: the loser adopts the winner's (§2)."""

    name = "journal"
    journal = Journal

    def __init__(self, pipelines: int = 2, transactions: int = 2) -> None:
        self._pipelines, self._transactions = pipelines, transactions

    def actors(self) -> list[Actor]:
        return [Actor(f"pipeline-{index}", self._run) for index in range(self._pipelines)]

    def _run(self, process: Process) -> None:
        journal = self.journal(process.key_value, "main")
        for t in range(self._transactions):
            recorded = journal.read(t)
            step = recorded.step
            if step is None:
                checksum = f"{int(process.name[-1]) + 1:032x}"
                taken = WholeFile(
                    process.name, size_bytes=1, sha256="0" * 64, records=1, checksum=checksum, spans=1
                )
                stands, _ = journal.append_step(Step(t, {"files": (taken,)}, "1"))
                assert isinstance(stands, Step)
                step = stands
            seal: JournalRecord | None = recorded.seal
            if seal is None:
                records, checksum = totals(step.sources)
                seal = journal.append_seal(Seal(t, records, checksum, f"{process.name} at {process.attempt}"))
            process.record((t, step, seal))

    def check(self, run: Run) -> None:
        """All adopted the same record of each transaction, and it is the stored one."""
        for name, adopted in run.history:
            assert isinstance(adopted, tuple)
            t, step, seal = adopted
            stands = Journal(run.direct_key_value, "main").read(t)
            require((stands.step, stands.seal) == (step, seal), f"{name} goes on with another record of {t}")
        for t in range(self._transactions):
            require(
                sum(adopted[0] == t for _, adopted in run.history if isinstance(adopted, tuple))
                >= self._pipelines,
                f"not everyone got to transaction {t}",
            )


INDEX, BUILD, BUCKETS = "spans", "b0", 2
DAMAGED = "0"
"""The attempt whose part does not match its receipt; it sorts before all others."""


class IndexScenario(Scenario):
    """Finalizers publish a build while a worker stages one more attempt of a range (F3 to F11)."""

    name = "index"

    def __init__(self, finalizers: int = 2, *, with_worker: bool = True) -> None:
        self._finalizers, self._with_worker = finalizers, with_worker

    def actors(self) -> list[Actor]:
        finalizers = [Actor(f"finalizer-{index}", self._run) for index in range(self._finalizers)]
        return [*finalizers, Actor("worker", self.stage)] if self._with_worker else finalizers

    def prepare(self, run: Run) -> None:
        """Stage both buckets, the first by two attempts and a damaged one."""
        for bucket, attempt in ((0, DAMAGED), (0, "a"), (0, "b"), (1, "b")):
            _stage(run.direct_objects, bucket, attempt)

    def stage(self, process: Process) -> None:
        """Stage an attempt that is chosen before the existing ones."""
        _stage(process.objects, 1, "a")

    def finalize(self, process: Process) -> Manifest:
        """Finalize as this actor; mutants override it."""
        return finalize(process.objects, INDEX, BUILD, 1, BUCKETS, None)[1]

    def _run(self, process: Process) -> None:
        process.record(self.finalize(process))

    def invariant(self, run: Run) -> None:
        """Once the marker exists, everything that it names exists and is intact."""
        path = manifest_path(INDEX, BUILD)
        if path not in run.objects.objects:
            return
        for part in read_parts(run.direct_objects, read_manifest(run.direct_objects, path)):
            data = run.objects.objects.get(part.path, (b"", 0.0))[0]
            require(
                hashlib.sha256(data).hexdigest() == part.sha256,
                f"the marker names {part.path}, which is not whole",
            )

    def check(self, run: Run) -> None:
        """One index of both buckets exists, and every finalizer returned it."""
        manifest = read_manifest(run.direct_objects, manifest_path(INDEX, BUILD))
        parts = read_parts(run.direct_objects, manifest)
        require([(part.lo, part.hi) for part in parts] == [(0, 1), (1, 2)], "the cover is not exact")
        for name, told in run.history:
            require(told == manifest, f"{name} was told another index")
        require(len({name for name, _ in run.history}) == self._finalizers, "not everyone was told")


class IndexGarbageScenario(IndexScenario):
    """The same with a repeated garbage collector, which never deletes present or future contents of a marker."""

    name = "index-garbage"

    def actors(self) -> list[Actor]:
        return [*super().actors(), Actor("collector", self._collect)]

    def collect(self, process: Process) -> None:
        """Collect as this actor; mutants override it."""
        collect(process.objects, INDEX, (), lambda _: False)

    def _collect(self, process: Process) -> None:
        for _ in range(3):
            self.collect(process)

    def check(self, run: Run) -> None:
        """Once all are done, one more collection leaves exactly the index."""
        super().check(run)
        collect(run.direct_objects, INDEX, (), lambda _: False)
        manifest = read_manifest(run.direct_objects, manifest_path(INDEX, BUILD))
        named = {part.path for part in read_parts(run.direct_objects, manifest)}
        require(
            set(run.objects.objects) == {manifest_path(INDEX, BUILD), *named},
            "garbage is left, or too much went",
        )


def _content(bucket: int, attempt: str) -> bytes:
    return f"part {bucket} {attempt}".encode()


def _stage(objects: ObjectStore, bucket: int, attempt: str) -> None:
    receipt, path = receipt_of(bucket, attempt)
    assert receipt.path is not None
    objects.put(receipt.path, b"altered" if attempt == DAMAGED else _content(bucket, attempt))
    objects.put(path, receipt.to_json(path))


def receipt_of(bucket: int, attempt: str) -> tuple[Receipt, str]:
    data = _content(bucket, attempt)

    def path(suffix: str) -> str:
        return staged_path(INDEX, BUILD, lo=bucket, hi=bucket + 1, attempt=attempt, suffix=suffix)

    receipt = Receipt(
        build=BUILD,
        lo=bucket,
        hi=bucket + 1,
        attempt=attempt,
        documents=1,
        fingerprint=ENGLISH.fingerprint,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        path=path("pack"),
    )
    return receipt, path("receipt")


class StoreScenario(Scenario):
    """Clients that read and write two keys freely: only the order of calls is checked, not their meaning.

    The check depends on when calls began and ended, so it is for random search only.
    """

    name = "store"

    def __init__(self, clients: int = 3, rounds: int = 4) -> None:
        self._clients, self._rounds = clients, rounds

    def actors(self) -> list[Actor]:
        return [Actor(f"client-{index}", self._run) for index in range(self._clients)]

    def store(self, process: Process) -> KeyValueStore:
        """Return the store that a client uses; a mutant returns another."""
        return process.key_value

    def _run(self, process: Process) -> None:
        clock = process.notes.setdefault("clock", itertools.count())
        history = process.notes.setdefault("calls", [])
        store = RecordingKeyValueStore(self.store(process), history, process.name, clock)
        use(store, random.Random(f"{process.name} {process.attempt}"), process.name, self._rounds)

    def check(self, run: Run) -> None:
        """One order of all calls explains all their results."""
        contradiction = find_contradiction(run.notes["calls"])
        require(contradiction is None, contradiction or "")
        require(len(run.notes["calls"]) >= self._clients * self._rounds * 2, "not everyone got through")


def use(store: KeyValueStore, rng: random.Random, name: str, rounds: int) -> None:
    """Read a key and write it conditionally, or delete it, or overwrite it, a few times."""
    for turn in range(rounds):
        key, value = rng.choice("ab"), f"{name} {turn}".encode()
        entry = store.get("p", key)
        dice = rng.random()
        if entry is not None and dice < 0.2:
            store.delete_if("p", key, entry.version)
        elif dice < 0.3:
            store.set("p", key, value)
        else:
            store.set_if("p", key, value, ABSENT if entry is None else entry.version)
