"""Shard and its stores. The state is a record in the key-value store, changed by compare-and-set. Everything else is in
the object store.

The state record stays small: if it grows long, its beginning is moved into an object.

The newest writes with an id are in the state, all others in separate records. The swap that appends the rows of a write
also adds the write to the state. A write gets its separate record before the state drops it. A lookup therefore reads
the state first, then the records, and misses no write.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, ExpiredError, IndeterminateError, NotFoundError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, WRITES_REMEMBERED
from tracelake.limits.input import MIB
from tracelake.shards import model, protocol
from tracelake.shards.parts import ByteLRU, lies_in
from tracelake.storage import (
    ABSENT,
    Done,
    Entry,
    Indeterminate,
    KeyValueStore,
    ObjectStore,
    Stores,
    Version,
    delete_all,
    settle,
)
from tracelake.storage.ports import change_record
from tracelake.storage.wrappers import for_each

SHARD_STATE_INLINE_MAX_BYTES: Final = 64 * 1024
"""State of a shard stored in one record."""
_SHARD_STATE_INLINE_BATCHES: Final = 8
"""Batches that stay in the record then."""
_SHARD_READ_TRIES_MAX: Final = 5
"""Reads of a state whose object was deleted because newer states came."""

SHARDS_PARTITION: Final = "shards"


class States:
    """Reads and writes the state of one shard. Several processes may use it at once."""

    def __init__(self, shard: str, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self._shard = shard
        self._key_value = key_value
        self._objects = objects
        self._cached: tuple[model.Rolled, model.Beginning] | None = None  # last read or written

    def read(self) -> tuple[model.ShardState, Version | None]:
        """Return the complete state and its version. A shard without any write is empty."""
        missing = ""
        for _ in range(_SHARD_READ_TRIES_MAX):
            entry = self._key_value.get(SHARDS_PARTITION, self._shard)
            if entry is None:
                return model.ShardState(), None
            state = model.from_bytes(model.ShardState, entry.value, f"the state of shard {self._shard}")
            if state.rolled is None:
                return state, entry.version
            try:
                beginning = self._beginning(state.rolled)
            except NotFoundError:
                missing = state.rolled.path
                continue  # a newer state names another object, and garbage collection has deleted this one
            batches, retired = (*beginning.batches, *state.batches), (*beginning.retired, *state.retired)
            return replace(state, batches=batches, retired=retired), entry.version
        raise DamageError(
            f"shard {self._shard}: {missing}, which its state references, is missing. Restore it from a "
            "backup."
        )

    def swap(self, state: model.ShardState, version: Version | None) -> bool | None:
        """Replace the state that was read at `version`. Return True if this state was published.

        False means that it was not: the caller must read and decide again. None means the same after a lost reply: the
        state may have been published and replaced by another since.
        """
        expected = ABSENT if version is None else version
        value = model.to_bytes(self._shortened(state))
        outcome = self._key_value.set_if(SHARDS_PARTITION, self._shard, value, expected)
        settled = settle(self._key_value, SHARDS_PARTITION, self._shard, outcome, is_mine=lambda _: False)
        if isinstance(settled, Done):
            return True
        return None if isinstance(outcome, Indeterminate) else False

    def _beginning(self, rolled: model.Rolled) -> model.Beginning:
        cached = self._cached
        if cached is None or cached[0] != rolled:
            data = self._objects.get(rolled.path)
            if hashlib.sha256(data).hexdigest() != rolled.sha256:
                raise DamageError(
                    f"shard {self._shard}: {rolled.path} is damaged: its checksum does not match. Restore it "
                    "from a backup."
                )
            self._cached = cached = rolled, model.from_bytes(model.Beginning, data, rolled.path)
        return cached[1]

    def _shortened(self, state: model.ShardState) -> model.ShardState:
        """Roll up the beginning of a long state into an object, or reuse the last such object."""
        cached = self._cached
        if cached is not None and cached[0] == state.rolled:  # any other object may have been collected
            rolled, beginning = cached
            batches, retired = len(beginning.batches), len(beginning.retired)
            if (state.batches[:batches], state.retired[:retired]) == (beginning.batches, beginning.retired):
                short = replace(
                    state, batches=state.batches[batches:], retired=state.retired[retired:], rolled=rolled
                )
                if len(model.to_bytes(short)) <= SHARD_STATE_INLINE_MAX_BYTES:
                    return short
        if len(model.to_bytes(inline := replace(state, rolled=None))) <= SHARD_STATE_INLINE_MAX_BYTES:
            return inline
        beginning = model.Beginning(state.batches[:-_SHARD_STATE_INLINE_BATCHES], state.retired)
        data = model.to_bytes(beginning)
        path = f"shards/{self._shard}/states/{state.epoch:06d}/{state.seq:010d}-{uuid.uuid4().hex}.json"
        self._objects.put(path, data)
        rolled = model.Rolled(path, hashlib.sha256(data).hexdigest())
        self._cached = rolled, beginning
        return replace(state, batches=state.batches[-_SHARD_STATE_INLINE_BATCHES:], retired=(), rolled=rolled)


WRITES_PARTITION: Final = "writes"


class Writes:
    """Records of the writes with an id of one table. Several processes may use it at once."""

    def __init__(self, table: str, key_value: KeyValueStore) -> None:
        self._table = table
        self._key_value = key_value

    def find(self, state: model.ShardState, name: str, number: int) -> model.Write | None:
        """Return the write with this name, from the given state or from a separate record; None if it is new. The state
        must have been read before."""
        entry = self._key_value.get(WRITES_PARTITION, self._key(name))
        writes = state.written if entry is None else (*state.written, self._decode(entry))
        return next((write for write in writes if protocol.is_written(write, name, number)), None)

    def put_away(self, writes: Iterable[model.Write]) -> None:
        """Write separate records for these writes. An existing record of a later write of the same series is kept."""
        for write in writes:
            self._put_away(write)

    def _put_away(self, write: model.Write) -> None:
        def decide(there: model.Write | None) -> model.Write:
            is_recorded = there is not None and protocol.is_written(there, write.name, write.number)
            return there if there is not None and is_recorded else write

        key = self._key(write.name)
        change_record(self._key_value, WRITES_PARTITION, key, self._decode, model.to_bytes, decide)

    def _key(self, name: str) -> str:
        return f"{self._table}/{name}"

    @staticmethod
    def _decode(entry: Entry) -> model.Write:
        return model.from_bytes(model.Write, entry.value, f"the record of write {entry.key}")


DecisionT = TypeVar("DecisionT")
BatchRecords: TypeAlias = ByteLRU[tuple[str, str], model.Batch]
"""Cache of batch records by path and checksum."""
_BATCH_RECORDS_MAX_BYTES: Final = 64 * MIB
"""Batch records that one cache keeps."""
_PART_ENTRY_BYTES: Final = 4_000
"""Measured memory of a part's entry in a batch record."""

_records: Final[WeakKeyDictionary[ObjectStore, BatchRecords]] = WeakKeyDictionary()


def batch_records(objects: ObjectStore) -> BatchRecords:
    """Return the cache of batch records of an open store, which all its readers share."""
    records: BatchRecords = ByteLRU(
        lambda batch: _PART_ENTRY_BYTES * (1 + len(batch.objects())), lambda: _BATCH_RECORDS_MAX_BYTES
    )
    return _records.setdefault(objects, records)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Shard as of one time: the parts that contain its rows, and the retractions and history that exclude some of
    them."""

    as_of: int
    parts: tuple[model.Part, ...]
    retractions: tuple[model.Part, ...]
    history: tuple[model.Part, ...] = ()
    rows: int | None = None
    """The number of rows; None if only reading can determine it."""
    swallowed: tuple[tuple[int, model.Part], ...] = ()
    """History that no row of the snapshot needs: parts of `Batch.history`, each with the upper of its batch."""
    only: frozenset[int] | None = None
    """Buckets to which rows of parts of all buckets are restricted; None for no restriction."""

    def narrow(self, keep: Callable[[model.Part], bool]) -> Snapshot:
        """Restrict the snapshot to the parts for which `keep` returns True."""
        parts, retractions, history = (
            tuple(part for part in parts if keep(part))
            for parts in (self.parts, self.retractions, self.history)
        )
        return Snapshot(self.as_of, parts, retractions, history, only=self.only)

    def for_buckets(self, buckets: set[int]) -> Snapshot:
        """Restrict the snapshot to these buckets."""
        narrowed = self.narrow(lambda part: lies_in(part.bucket, buckets))
        return changed(narrowed, only=frozenset(buckets))


EMPTY = Snapshot(as_of=-1, parts=(), retractions=(), rows=0)


class Shard:
    """Durable collection of rows. Several processes may use the same one at once."""

    written_max = WRITES_REMEMBERED

    def __init__(
        self, name: str, key_value: KeyValueStore, objects: ObjectStore, records: BatchRecords | None = None
    ) -> None:
        """Open a shard. Snapshots read each batch record once as long as it is in `records`, because the number of
        batches grows with the number of windows."""
        self.name = name
        self._records = records
        self._objects = objects
        self._states = States(name, key_value, objects)
        self._writes = Writes(name, key_value)

    def find_write(self, state: model.ShardState, name: str, number: int) -> model.Write | None:
        """Return the write with this name; None if no append up to this state had it. The state must have been read
        before."""
        return self._writes.find(state, name, number)

    def state(self) -> model.ShardState:
        """Return the current state. A shard without any write is empty."""
        return self._states.read()[0]

    def snapshot(self, as_of: int, state: model.ShardState | None = None) -> Snapshot:
        """Return parts and retractions as of a time.

        Raises:
            ExpiredError: The time is before the earliest readable one.
            DamageError: The state does not reach that time, or a batch record is unreadable.
        """
        state = state or self.state()
        if 0 <= as_of < state.since or (as_of == -1 and state.since):
            raise ExpiredError(
                f"table {self.name} cannot be read as of transaction {as_of}: its history begins at "
                f"{state.since}. Read a newer commit."
            )
        try:
            refs = protocol.visible(state, as_of)
        except ValueError as error:
            raise DamageError(
                f"shard {self.name}: its state in the metadata does not cover the transaction that a commit "
                f"references: {error}. Restore it from a backup."
            ) from error
        batches = self._batches(refs)
        is_complete = not refs or refs[-1].upper <= as_of + 1
        return Snapshot(
            as_of,
            tuple(part for batch in batches for part in batch.parts),
            tuple(part for batch in batches for part in batch.retractions),
            () if is_complete else batches[-1].history,
            sum(ref.rows for ref in refs) if is_complete else None,
            tuple(
                (batch.upper, part)
                for batch in (batches if is_complete else batches[:-1])
                for part in batch.history
            ),
        )

    def _batches(self, refs: Sequence[model.BatchRef]) -> list[model.Batch]:
        """Read batch records, several at once from a bucket."""
        records, by_path = self._records, dict[str, model.Batch]()
        if records is not None:
            cached = ((ref.path, records.get((ref.path, ref.sha256))) for ref in refs)
            by_path |= {path: batch for path, batch in cached if batch is not None}
        missing = {ref.path: ref for ref in refs if ref.path not in by_path}
        read = for_each(self._objects, lambda path: self.batch(missing[path]), missing)
        for ref, batch in zip(missing.values(), read, strict=True):
            by_path[ref.path] = batch
            if records is not None and ref.level:  # others are few, and soon compacted
                records.put((ref.path, ref.sha256), batch)
        return [by_path[ref.path] for ref in refs]

    def batch(self, ref: model.BatchRef) -> model.Batch:
        """Read a batch record and check it against the checksum in the state."""
        batch = self.batch_if_there(ref)
        if batch is None:
            raise DamageError(
                f"shard {self.name}: batch record {ref.path} is missing. Restore it from a backup."
            )
        return batch

    def batch_if_there(self, ref: model.BatchRef) -> model.Batch | None:
        """Read a batch record like `batch`; return None if the record does not exist, as that of a retired batch may
        not."""
        try:
            data = self._objects.get(ref.path)
        except NotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise DamageError(
                f"shard {self.name}: batch record {ref.path} is damaged: its checksum does not match. Restore "
                "it from a backup."
            )
        return model.from_bytes(model.Batch, data, f"batch {ref.path}")

    def batch_at(self, time: int) -> model.Batch | None:
        """Return the batch that covers a time, or None if no row changed at it."""
        for ref in reversed(self.state().batches):
            if ref.lower <= time < ref.upper:
                return self.batch(ref)
        return None

    def compare_and_append(
        self, batch: model.Batch, write: model.Write | None = None
    ) -> protocol.UpperMismatch | None:
        """Append the batch if the shard's upper is its lower. None means that the batch is in the shard.

        Its parts must already be in the object store. A retry with the same batch is safe, whatever the outcome of
        the first try. After a mismatch the caller may delete the parts that it wrote for this call, because no state
        names them or ever will. `write` is remembered with the batch, for `find_write`.

        Raises:
            ExpiredError: The parts were uploaded too long ago, and may have been collected.
            IndeterminateError: The reply was lost. When the state could be read again, too many other appends had
                followed to determine whether the batch was appended.
        """
        ref = None if batch.is_empty else self._write_record(batch, 0)
        attempted = is_conclusive = False

        def decide(state: model.ShardState) -> protocol.AppendDecision:
            nonlocal attempted, is_conclusive
            is_conclusive = protocol.remembers(state, batch.lower)
            away = protocol.batches_to_roll(state.written, self.written_max) if write is not None else ()
            self._writes.put_away(away)
            decision = protocol.append(state, batch.lower, batch.upper, ref, batch.epoch, write, away)
            if isinstance(decision, protocol.UpperMismatch) and attempted and not is_conclusive:
                raise IndeterminateError(
                    f"shard {self.name}: it is unknown whether the batch at {batch.lower} was appended; read "
                    "the table to find out."
                )
            attempted = attempted or isinstance(decision, protocol.Swap)
            return decision

        decision, _ = self._change(decide)
        if isinstance(decision, protocol.UpperMismatch):
            if ref is not None and is_conclusive:  # otherwise, an earlier call may have appended it
                self._objects.delete(ref.path)
            return decision
        self._refuse_if_late(decision)
        return None

    def replace(
        self, run: Sequence[model.BatchRef], merged: model.Batch, written: Iterable[str] = ()
    ) -> bool:
        """Replace adjacent batches by one that holds the same rows; return False if a peer replaced them first.

        In that case the objects in `written` are deleted, which were made for `merged` and are named by nothing else.
        If a reply was lost on the way, garbage collection deletes them instead.

        Raises ExpiredError like `compare_and_append`.
        """
        ref = self._write_record(merged, max(old.level for old in run) + 1)
        decision, unsure = self._change(partial(protocol.replace, run=run, batch=ref, epoch=merged.epoch))
        self._refuse_if_late(decision)
        if isinstance(decision, protocol.LostAppend) and not unsure:
            delete_all(self._objects, [ref.path, *written])
        return not isinstance(decision, protocol.LostAppend)

    def rewrite(self, rewritten: Mapping[str, model.Batch], epoch: int, written: Iterable[str]) -> bool:
        """Replace batches, by their ids, by batches of the same range of transactions, in one state. An empty batch is
        removed.

        If a peer replaced one of them first, return False and delete the objects in `written`. Raises ExpiredError like
        `compare_and_append`.
        """
        refs = {
            id: None if batch.is_empty else self._write_record(batch, 1) for id, batch in rewritten.items()
        }
        decision, unsure = self._change(partial(protocol.rewrite, rewritten=refs, epoch=epoch))
        self._refuse_if_late(decision)
        lost = isinstance(decision, protocol.LostAppend)
        if lost and not unsure:
            delete_all(self._objects, [*(ref.path for ref in refs.values() if ref is not None), *written])
        return not lost

    def change(self, decide: Callable[[model.ShardState], protocol.Swap | None]) -> None:
        """Apply a decision to the state until it succeeds or is unnecessary."""
        self._change(decide)

    def _change(
        self, decide: Callable[[model.ShardState], DecisionT | protocol.Swap]
    ) -> tuple[DecisionT | protocol.Swap, bool]:
        """Apply a decision until it succeeds; return it, and whether a reply was lost on the way."""
        unsure = False
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            state, version = self._states.read()
            decision = decide(state)
            if isinstance(decision, protocol.Swap):
                # After an unknown outcome, the next round reads the state again and decides on that state.
                swapped = self._states.swap(decision.state, version)
                unsure = unsure or swapped is None
                if not swapped:
                    continue
            return decision, unsure
        raise ContentionError(
            f"shard {self.name}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost to "
            "other writers. Try again."
        )

    def _refuse_if_late(self, decision: object) -> None:
        if isinstance(decision, protocol.TooLate):
            raise ExpiredError(
                f"shard {self.name}: the parts of this batch were uploaded too long ago, and garbage "
                "collection may have deleted them. Nothing was appended; run again to upload new parts."
            )

    def _write_record(self, batch: model.Batch, level: int) -> model.BatchRef:
        data = model.to_bytes(batch)
        sha256 = hashlib.sha256(data).hexdigest()
        # Named by content, not by id: two tries of one write have the same id but different parts.
        path = f"shards/{self.name}/batches/{batch.epoch:06d}/{batch.lower:010d}-{sha256[:32]}.json"
        self._objects.put(path, data)
        inserted = sum(part.rows for part in batch.parts)
        retracted = sum(part.rows for part in batch.retractions)
        return model.BatchRef(
            lower=batch.lower,
            upper=batch.upper,
            id=batch.id,
            path=path,
            sha256=sha256,
            rows=inserted - retracted,
            parts=len(batch.parts),
            size_bytes=sum(part.size_bytes for part in batch.parts),
            weight=sum(part.rows for part in batch.objects()),
            level=level,
            ingested_s=batch.ingested_s,
        )


def open_shard(name: str, stores: Stores) -> Shard:
    """Open a shard that shares batch records with all readers of its open store."""
    return Shard(name, stores.key_value, stores.objects, batch_records(stores.objects))
