"""The protocols with one rule broken at a time: a simulator that does not find them proves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from unittest import mock

from tests.mutants.mutation import Mutation
from tests.simulation.scenarios import (
    BUCKETS,
    BUILD,
    DAMAGED,
    INDEX,
    IndexGarbageScenario,
    IndexScenario,
    JournalScenario,
    ShardScenario,
    StoreScenario,
)
from tracelake._errors import DamageError, NotFoundError
from tracelake.journal.model import JournalRecord
from tracelake.journal.model import to_bytes as to_journal_bytes
from tracelake.journal.store import Journal, TransactionRecord, _validated, record_key
from tracelake.search.analyzers import ENGLISH
from tracelake.search.finalize import (
    _receipts,
    clean_staging,
    finalize,
    published,
    read_manifest,
    write_marker,
    write_parts,
)
from tracelake.search.model import Manifest, manifest_path, part_path
from tracelake.search.protocol import assemble, choose
from tracelake.shards.model import Batch, ShardState, Write, to_bytes
from tracelake.shards.protocol import AlreadyThere, Swap, UpdateFate, UpperMismatch, append, classify
from tracelake.shards.shard import Shard, States
from tracelake.storage import ABSENT, Done, Entry, Indeterminate, KeyValueStore, ObjectStore, Version
from tracelake.testing import Faults, Process, Scenario

# Shards


class _BlindStates(States):
    def swap(self, state: ShardState, version: Version | None) -> bool:
        del version
        self._key_value.set("shards", self._shard, to_bytes(state))
        return True


class BlindOverwrite(Shard):
    """The state is overwritten unconditionally."""

    def __init__(self, name: str, key_value: KeyValueStore, objects: ObjectStore) -> None:
        super().__init__(name, key_value, objects)
        self._states = _BlindStates(name, key_value, objects)


class _TrustingStates(States):
    def swap(self, state: ShardState, version: Version | None) -> bool:
        expected = ABSENT if version is None else version
        outcome = self._key_value.set_if("shards", self._shard, to_bytes(state), expected)
        return isinstance(outcome, Done | Indeterminate)


class NoReadBack(Shard):
    """A lost reply counts as success."""

    def __init__(self, name: str, key_value: KeyValueStore, objects: ObjectStore) -> None:
        super().__init__(name, key_value, objects)
        self._states = _TrustingStates(name, key_value, objects)


class NoWriteId(Shard):
    """The state read back is judged by `upper` alone: our own earlier success looks like another writer's."""

    def compare_and_append(self, batch: Batch, write: Write | None = None) -> UpperMismatch | None:
        ref = self._write_record(batch, 0)
        while True:
            state, version = self._states.read()
            decision = append(state, batch.lower, batch.upper, ref, write=write)
            if isinstance(decision, AlreadyThere):
                decision = UpperMismatch(state.upper)
            if isinstance(decision, UpperMismatch):
                self._objects.delete(ref.path)
                return decision
            assert isinstance(decision, Swap)
            if self._states.swap(decision.state, version):
                return None


class _ForgetfulStates(States):
    def swap(self, state: ShardState, version: Version | None) -> bool:
        expected = ABSENT if version is None else version
        outcome = self._key_value.set_if("shards", self._shard, to_bytes(state), expected)
        return isinstance(outcome, Done)


class DeletedOnUnknown(Shard):
    """The parts are deleted while their publication is unknown."""

    def compare_and_append(self, batch: Batch, write: Write | None = None) -> UpperMismatch | None:
        ref = self._write_record(batch, 0)
        states = _ForgetfulStates(self.name, self._states._key_value, self._objects)
        state, version = states.read()
        decision = append(state, batch.lower, batch.upper, ref, write=write)
        if isinstance(decision, Swap) and states.swap(decision.state, version):
            return None
        self._objects.delete(ref.path)
        return UpperMismatch(state.upper)


class PublishedFirst(Shard):
    """The state names the batch before its record is written."""

    def compare_and_append(self, batch: Batch, write: Write | None = None) -> UpperMismatch | None:
        held: list[tuple[str, bytes]] = []
        objects, writes = self._objects, self._objects.put
        with contextlib.ExitStack() as stack:
            vars(objects)["put"] = lambda path, data: held.append((path, data))
            stack.callback(vars(objects).pop, "put")
            result = super().compare_and_append(batch, write)
        for path, data in held if result is None else []:
            writes(path, data)
        return result


class NotEqualIsNotYet(ShardScenario):
    """Waits for `upper` to equal its time, and so for ever once `upper` has passed it."""

    def classify(self, ts: int, upper: int, input_frontier: int) -> UpdateFate:
        verdict = classify(ts, upper, input_frontier)
        return UpdateFate.HOLD if ts != upper else verdict


# Journal


class KeepsItsOwn(Journal):
    """The loser continues with its own record."""

    def _create(self, transaction: int, number: int, record: JournalRecord) -> tuple[JournalRecord, bool]:
        super()._create(transaction, number, record)
        return record, True


class NoSecondRead(Journal):
    """Reports a gap as damage at first sight, although a peer may record both entries between two reads."""

    def read(self, transaction: int) -> TransactionRecord:
        return _validated(transaction, self._records(transaction))


class CreatedOnce(Journal):
    """Assumes that a record exists after a lost reply."""

    def _create(self, transaction: int, number: int, record: JournalRecord) -> tuple[JournalRecord, bool]:
        key = record_key(transaction, number)
        outcome = self._store.set_if(self._partition, key, to_journal_bytes(record), ABSENT)
        if isinstance(outcome, Indeterminate):
            assert self._store.get(self._partition, key) is not None, "a record is never deleted"
        return super()._create(transaction, number, record)


class BlindRecord(Journal):
    """Records unconditionally."""

    def _create(self, transaction: int, number: int, record: JournalRecord) -> tuple[JournalRecord, bool]:
        self._store.set(self._partition, record_key(transaction, number), to_journal_bytes(record))
        return record, True


# Index


class DeletedBeforeMarker(IndexScenario):
    """The staging is deleted before the marker says that it is not needed."""

    def finalize(self, process: Process) -> Manifest:
        objects, path = process.objects, manifest_path(INDEX, BUILD)
        if (there := published(objects, path)) is not None:
            return there
        chosen = write_parts(objects, INDEX, BUILD, BUCKETS)
        clean_staging(objects, INDEX, BUILD)
        return write_marker(objects, path, assemble(INDEX, BUILD, 1, chosen, None, ENGLISH.fingerprint))


class MarkerFirst(IndexScenario):
    """The marker is written before the parts are in place."""

    def finalize(self, process: Process) -> Manifest:
        objects, path = process.objects, manifest_path(INDEX, BUILD)
        if (there := published(objects, path)) is not None:
            return there
        receipts = [one for one in _receipts(objects, INDEX, BUILD)[0] if one.attempt != DAMAGED]
        chosen = choose(BUILD, receipts, BUCKETS, ENGLISH.fingerprint)
        manifest = write_marker(objects, path, assemble(INDEX, BUILD, 1, chosen, None, ENGLISH.fingerprint))
        write_parts(objects, INDEX, BUILD, BUCKETS)
        return manifest


class BlindMarker(IndexScenario):
    """The marker is put, not created: the second finalizer replaces the first one's."""

    def finalize(self, process: Process) -> Manifest:
        objects, path = process.objects, manifest_path(INDEX, BUILD)
        if (there := published(objects, path)) is not None:
            return there
        chosen = write_parts(objects, INDEX, BUILD, BUCKETS)
        manifest = assemble(INDEX, BUILD, 1, chosen, None, ENGLISH.fingerprint)
        objects.put(path, manifest.to_json(path))
        return manifest


class NoSecondLook(IndexScenario):
    """Staging cleaned by another finalizer is an error, without a second read of the marker (F11)."""

    def finalize(self, process: Process) -> Manifest:
        objects, path = process.objects, manifest_path(INDEX, BUILD)
        if (there := published(objects, path)) is not None:
            return there
        chosen = write_parts(objects, INDEX, BUILD, BUCKETS)
        manifest = write_marker(objects, path, assemble(INDEX, BUILD, 1, chosen, None, ENGLISH.fingerprint))
        clean_staging(objects, INDEX, BUILD)
        return manifest


class CanonicalDeletedFirst(IndexScenario):
    """A canonical part is deleted before it is copied again."""

    def finalize(self, process: Process) -> Manifest:
        objects = process.objects
        if published(objects, manifest_path(INDEX, BUILD)) is None:
            for receipt in _receipts(objects, INDEX, BUILD)[0]:
                objects.delete(f"search/{INDEX}/parts/{BUILD}/{receipt.sha256}.pack")
        return finalize(objects, INDEX, BUILD, 1, BUCKETS, None)[1]


class UncheckedParts(IndexScenario):
    """Staged parts are copied without a check of their checksums."""

    def finalize(self, process: Process) -> Manifest:
        objects, path = process.objects, manifest_path(INDEX, BUILD)
        if (there := published(objects, path)) is not None:
            return there
        try:
            chosen = choose(BUILD, _receipts(objects, INDEX, BUILD)[0], BUCKETS, ENGLISH.fingerprint)
            for receipt in chosen:
                assert receipt.path is not None
                assert receipt.sha256 is not None
                objects.copy(receipt.path, part_path(INDEX, BUILD, receipt.sha256))
        except (DamageError, NotFoundError):
            return read_manifest(objects, path)
        return write_marker(objects, path, assemble(INDEX, BUILD, 1, chosen, None, ENGLISH.fingerprint))


class StagingIsGarbage(IndexGarbageScenario):
    """Staged parts are deleted whether the build is published or not."""

    def collect(self, process: Process) -> None:
        clean_staging(process.objects, INDEX, BUILD)


class UnnamedIsGarbage(IndexGarbageScenario):
    """A part that no marker names is deleted even before any marker exists."""

    def collect(self, process: Process) -> None:
        objects, path = process.objects, manifest_path(INDEX, BUILD)
        marker = published(objects, path)
        named = {part.path for part in marker.newest} if marker is not None else set()
        for info in list(objects.list(f"search/{INDEX}/parts/")):
            if info.path not in named:
                objects.delete(info.path)


NONE = Faults()
LOST = Faults(lost=1)


# Stores


class StaleReads(StoreScenario):
    """A client keeps returning its first read."""

    def store(self, process: Process) -> KeyValueStore:
        seen: dict[str, Entry | None] = {}
        store, read = process.key_value, process.key_value.get
        vars(store)["get"] = lambda partition, key: seen.setdefault(key, read(partition, key))
        return store


class ForgetsExpected(StoreScenario):
    """A conditional write ignores its condition."""

    def store(self, process: Process) -> KeyValueStore:
        store = process.key_value
        vars(store)["set_if"] = lambda partition, key, value, _: Done(store.set(partition, key, value))
        return store


class ForgetsWrites(StoreScenario):
    """A conditional write is acknowledged but never carried out."""

    def store(self, process: Process) -> KeyValueStore:
        store = process.key_value
        vars(store)["set_if"] = lambda *_: Done(process.new_version())
        return store


@dataclass(frozen=True)
class Mutant:
    """A broken protocol, the faults that reveal it, and the schedules in which it is usually found."""

    name: str
    scenario: Callable[[], Scenario]
    faults: Faults = NONE
    exhaustive_max: int | None = 50
    """None if the state space is too large to search, or if time decides."""
    random_max: int = 100
    patches: Mapping[str, object] = field(default_factory=dict)
    """Replacements of package names, for code that no class of the scenario can replace."""
    first_seed: int = 0
    """First seed of the random search: shortly before a seed that shows a rare failure."""

    words: Sequence[Mutation] = ()
    """Rules that a few replaced words in the package's source break."""

    @property
    def schedules_max(self) -> int:
        """Bound the random search, with room for changes that give a seed another schedule."""
        return 10 * self.random_max

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """Apply the patches within the block."""
        with contextlib.ExitStack() as stack:
            for name, wrong in self.patches.items():
                stack.enter_context(mock.patch(name, wrong))
            for broken in self.words:
                stack.enter_context(broken.applied())
            yield


def _shard(shard: type[Shard]) -> Callable[[], Scenario]:
    return lambda: _with(ShardScenario(2, 2), "shard", shard)


def _journal(journal: type[Journal]) -> Callable[[], Scenario]:
    return lambda: _with(JournalScenario(2, 1), "journal", journal)


def _with(scenario: Scenario, name: str, implementation: type) -> Scenario:
    setattr(scenario, name, implementation)
    return scenario


MUTANTS = [
    Mutant("shard: blind overwrite", _shard(BlindOverwrite)),
    Mutant("shard: no read-back", _shard(NoReadBack), LOST, random_max=250),
    Mutant("shard: no write id", _shard(NoWriteId), Faults(lost=3), exhaustive_max=None, random_max=800),
    Mutant("shard: deleted on unknown", _shard(DeletedOnUnknown), LOST, random_max=400),
    Mutant("shard: published first", _shard(PublishedFirst)),
    Mutant("shard: not equal is not yet", lambda: NotEqualIsNotYet(2, 1)),
    Mutant("journal: keeps its own", _journal(KeepsItsOwn)),
    Mutant("journal: no second read", _journal(NoSecondRead)),
    Mutant("journal: created once", _journal(CreatedOnce), LOST),
    Mutant("journal: blind record", _journal(BlindRecord)),
    Mutant("index: deleted before marker", DeletedBeforeMarker, Faults(kills=1)),
    Mutant("index: marker first", MarkerFirst),
    Mutant("index: blind marker", BlindMarker),
    Mutant("index: no second look", NoSecondLook),
    Mutant("index: canonical deleted first", CanonicalDeletedFirst),
    Mutant("index: unchecked parts", UncheckedParts),
    Mutant("index: staging is garbage", StagingIsGarbage, exhaustive_max=None),
    Mutant("index: unnamed is garbage", UnnamedIsGarbage, exhaustive_max=None),
    Mutant("store: stale reads", StaleReads, exhaustive_max=None),
    Mutant("store: forgets what is expected", ForgetsExpected, exhaustive_max=None),
    Mutant("store: forgets writes", ForgetsWrites, exhaustive_max=None),
]
