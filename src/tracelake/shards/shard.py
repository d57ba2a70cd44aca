"""The shard in its stores: state by compare-and-set in the key-value store, all else in the object store.

The state record in its stores: small in the key-value store, its beginning rolled up as an object if long.

Writes with an id that happened: the newest stand in the state of their table, all others in records of their own.

The state remembers a write by the same swap that appends its rows. Before it forgets one, that one gets a record;
so a write is found in the state, or else in the records: who looks reads them in this order.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, ExpiredError, IndeterminateError, NotFoundError
from tracelake.limits import (
    CONDITIONAL_WRITE_TRIES_MAX,
    SHARD_READ_TRIES_MAX,
    SHARD_STATE_INLINE_BATCHES,
    SHARD_STATE_INLINE_MAX_BYTES,
    WRITES_REMEMBERED,
)
from tracelake.shards.model import (
    Batch,
    BatchRef,
    Beginning,
    Part,
    Rolled,
    ShardState,
    Write,
    from_bytes,
    to_bytes,
)
from tracelake.shards.partitioning import lies_in
from tracelake.shards.protocol import (
    AppendDecision,
    LostAppend,
    Swap,
    TooLate,
    UpperMismatch,
    append,
    batches_to_roll,
    is_written,
    remembers,
    visible,
)
from tracelake.shards.protocol import replace as replace_run
from tracelake.storage import (
    ABSENT,
    Done,
    Entry,
    Indeterminate,
    KeyValueStore,
    ObjectStore,
    Version,
    delete_all,
    settle,
)

SHARDS_PARTITION: Final = "shards"


class States:
    """Reads and swaps the state of one shard. Several processes may do so at once."""

    def __init__(self, shard: str, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self._shard = shard
        self._key_value = key_value
        self._objects = objects
        self._known: tuple[Rolled, Beginning] | None = None  # read or written last; replaced as a whole

    def read(self) -> tuple[ShardState, Version | None]:
        """Return the whole state and its version; a shard that nobody has written to is empty."""
        missing = ""
        for _ in range(SHARD_READ_TRIES_MAX):
            entry = self._key_value.get(SHARDS_PARTITION, self._shard)
            if entry is None:
                return ShardState(), None
            state = from_bytes(ShardState, entry.value, f"the state of shard {self._shard}")
            if state.rolled is None:
                return state, entry.version
            try:
                beginning = self._beginning(state.rolled)
            except NotFoundError:
                missing = state.rolled.path
                continue  # a newer state names another, and garbage collection was faster than we
            batches, retired = (*beginning.batches, *state.batches), (*beginning.retired, *state.retired)
            return replace(state, batches=batches, retired=retired), entry.version
        raise DamageError(
            f"shard {self._shard}: {missing}, which its state names, is gone. Restore it from a backup."
        )

    def swap(self, state: ShardState, version: Version | None) -> bool | None:
        """Publish a state in the place of the one read at `version`.

        False means that it is not there: read again and decide anew. None means the same after a lost reply:
        it may have been there, and have been followed by another.
        """
        expected = ABSENT if version is None else version
        value = to_bytes(self._shortened(state))
        outcome = self._key_value.set_if(SHARDS_PARTITION, self._shard, value, expected)
        settled = settle(self._key_value, SHARDS_PARTITION, self._shard, outcome, is_mine=lambda _: False)
        if isinstance(settled, Done):
            return True
        return None if isinstance(outcome, Indeterminate) else False

    def _beginning(self, rolled: Rolled) -> Beginning:
        known = self._known
        if known is None or known[0] != rolled:
            data = self._objects.get(rolled.path)
            if hashlib.sha256(data).hexdigest() != rolled.sha256:
                raise DamageError(f"shard {self._shard}: {rolled.path} is not what was written.")
            self._known = known = rolled, from_bytes(Beginning, data, rolled.path)
        return known[1]

    def _shortened(self, state: ShardState) -> ShardState:
        """Return the state with its beginning in an object, where it is long; the last one serves again."""
        known = self._known
        if known is not None and known[0] == state.rolled:  # no other: garbage collection may have it by now
            rolled, beginning = known
            batches, retired = len(beginning.batches), len(beginning.retired)
            if (state.batches[:batches], state.retired[:retired]) == (beginning.batches, beginning.retired):
                short = replace(
                    state, batches=state.batches[batches:], retired=state.retired[retired:], rolled=rolled
                )
                if len(to_bytes(short)) <= SHARD_STATE_INLINE_MAX_BYTES:
                    return short
        if len(to_bytes(whole := replace(state, rolled=None))) <= SHARD_STATE_INLINE_MAX_BYTES:
            return whole
        beginning = Beginning(state.batches[:-SHARD_STATE_INLINE_BATCHES], state.retired)
        data = to_bytes(beginning)
        path = f"shards/{self._shard}/states/{state.epoch:06d}/{state.seq:010d}-{uuid.uuid4().hex}.json"
        self._objects.put(path, data)
        rolled = Rolled(path, hashlib.sha256(data).hexdigest())
        self._known = rolled, beginning
        return replace(state, batches=state.batches[-SHARD_STATE_INLINE_BATCHES:], retired=(), rolled=rolled)


WRITES_PARTITION: Final = "writes"


class Writes:
    """The writes of one table. Several processes may use them at once."""

    def __init__(self, table: str, key_value: KeyValueStore) -> None:
        self._table = table
        self._key_value = key_value

    def find(self, state: ShardState, name: str, number: int) -> Write | None:
        """Return the write of this name that a state, read before, tells of, or a record; None for a new one."""
        recorded = self._record(self._key_value.get(WRITES_PARTITION, self._key(name)))
        known = state.written if recorded is None else (*state.written, recorded)
        return next((write for write in known if is_written(write, name, number)), None)

    def put_away(self, writes: Iterable[Write]) -> None:
        """Give writes records of their own; a record of a later one of the series stays."""
        for write in writes:
            self._put_away(write)

    def _put_away(self, write: Write) -> None:
        key = self._key(write.name)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._key_value.get(WRITES_PARTITION, key)
            there = self._record(entry)
            if there is not None and is_written(there, write.name, write.number):
                return
            expected = ABSENT if entry is None else entry.version
            outcome = self._key_value.set_if(WRITES_PARTITION, key, to_bytes(write), expected)
            settled = settle(self._key_value, WRITES_PARTITION, key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return
        raise ContentionError(
            f"table {self._table}: {CONDITIONAL_WRITE_TRIES_MAX} writes of {WRITES_PARTITION}/{key} in a row were lost."
        )

    def _key(self, name: str) -> str:
        return f"{self._table}/{name}"

    def _record(self, entry: Entry | None) -> Write | None:
        return None if entry is None else from_bytes(Write, entry.value, f"the record of write {entry.key}")


DecisionT = TypeVar("DecisionT")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A shard as of one time: the parts that hold its rows, and what to leave out of them.

    Rows that were inserted after `as_of` are to be left out, those whose row id a retraction up to `as_of` names, and
    those in `history` that were gone by then; `shards.rows` does so.
    """

    as_of: int
    parts: tuple[Part, ...]
    retractions: tuple[Part, ...]
    history: tuple[Part, ...] = ()
    rows: int | None = None
    """How many rows there are, None where only reading tells."""
    swallowed: tuple[tuple[int, Part], ...] = ()
    """Rows of which only history tells: parts of `Batch.history`, each with the upper of its batch. No reader of rows
    needs them."""
    only: frozenset[int] | None = None
    """Rows of other buckets are to be left out of parts that have some of all; None: there are none to leave out."""

    def narrow(self, keep: Callable[[Part], bool]) -> Snapshot:
        """Return the snapshot with these parts of it only."""
        parts, retractions, history = (
            tuple(part for part in parts if keep(part))
            for parts in (self.parts, self.retractions, self.history)
        )
        return Snapshot(self.as_of, parts, retractions, history, only=self.only)

    def for_buckets(self, buckets: set[int]) -> Snapshot:
        """Return the part of the snapshot that lies in these buckets."""
        narrowed = self.narrow(lambda part: lies_in(part.bucket, buckets))
        return changed(narrowed, only=frozenset(buckets))


EMPTY = Snapshot(as_of=-1, parts=(), retractions=(), rows=0)


class Shard:
    """One durable collection. Several processes may use the same one at once."""

    written_max = WRITES_REMEMBERED

    def __init__(self, name: str, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self.name = name
        self._objects = objects
        self._states = States(name, key_value, objects)
        self._writes = Writes(name, key_value)

    def find_write(self, state: ShardState, name: str, number: int) -> Write | None:
        """Return the write of this name, None where no append up to a state, read before, was that one."""
        return self._writes.find(state, name, number)

    def state(self) -> ShardState:
        """Return the current state; a shard that nobody has written to is empty."""
        return self._states.read()[0]

    def snapshot(self, as_of: int, state: ShardState | None = None) -> Snapshot:
        """Return parts and retractions as of a time.

        Raises ExpiredError where compaction was told to forget it, DamageError where the state does not reach
        it, or a batch record is not readable.
        """
        state = state or self.state()
        if 0 <= as_of < state.since or (as_of == -1 and state.since):
            raise ExpiredError(
                f"table {self.name} as of transaction {as_of} is forgotten: it can be read from "
                f"{state.since} on. Read a newer commit."
            )
        try:
            refs = visible(state, as_of)
        except ValueError as error:
            raise DamageError(
                f"shard {self.name}: its state in the metadata does not reach back or up to what a commit "
                f"names: {error}. Restore it from a backup."
            ) from error
        batches = [self.batch(ref) for ref in refs]
        whole = not refs or refs[-1].upper <= as_of + 1
        return Snapshot(
            as_of,
            tuple(part for batch in batches for part in batch.parts),
            tuple(part for batch in batches for part in batch.retractions),
            () if whole else batches[-1].history,
            sum(ref.rows for ref in refs) if whole else None,
            tuple(
                (batch.upper, part)
                for batch in (batches if whole else batches[:-1])
                for part in batch.history
            ),
        )

    def batch(self, ref: BatchRef) -> Batch:
        """Read a batch record and check it against the state's checksum."""
        batch = self.batch_if_there(ref)
        if batch is None:
            raise DamageError(f"shard {self.name}: batch record {ref.path} is gone.")
        return batch

    def batch_if_there(self, ref: BatchRef) -> Batch | None:
        """Do the same, but return None where the record is gone, as that of a retired batch may be."""
        try:
            data = self._objects.get(ref.path)
        except NotFoundError:
            return None
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise DamageError(f"shard {self.name}: batch record {ref.path} is not what was written.")
        return from_bytes(Batch, data, f"batch {ref.path}")

    def batch_at(self, time: int) -> Batch | None:
        """Return the batch that holds a time, or None where no row changed at it."""
        for ref in reversed(self.state().batches):
            if ref.lower <= time < ref.upper:
                return self.batch(ref)
        return None

    def compare_and_append(self, batch: Batch, write: Write | None = None) -> UpperMismatch | None:
        """Append the batch iff the shard's upper is its lower; None means that it is there.

        Its parts must be in the object store already. Trying again with the same batch is safe, whatever
        became of the first try. After a mismatch the caller may delete the parts that it wrote for this call: no
        state names them, nor ever will. `write` is remembered with it, for `find_write`.

        Raises:
            ExpiredError: the parts were uploaded so long ago that they may have been collected.
            IndeterminateError: the reply was lost, and by the time the state could be read again others had
                appended too much to tell whether our batch is there.
        """
        ref = None if batch.is_empty else self._write_record(batch, 0)
        attempted = told = False

        def decide(state: ShardState) -> AppendDecision:
            nonlocal attempted, told
            told = remembers(state, batch.lower)
            away = batches_to_roll(state.written, self.written_max) if write is not None else ()
            self._writes.put_away(away)
            decision = append(state, batch.lower, batch.upper, ref, batch.epoch, write, away)
            if isinstance(decision, UpperMismatch) and attempted and not told:
                raise IndeterminateError(
                    f"shard {self.name}: nobody can tell whether the batch at {batch.lower} was appended; "
                    "read the table to see."
                )
            attempted = attempted or isinstance(decision, Swap)
            return decision

        decision, _ = self._change(decide)
        if isinstance(decision, UpperMismatch):
            if ref is not None and told:  # else an earlier call may have appended it
                self._objects.delete(ref.path)
            return decision
        self._refuse_if_late(decision)
        return None

    def replace(self, run: Sequence[BatchRef], merged: Batch, written: Iterable[str] = ()) -> bool:
        """Put a batch that holds the same rows in the place of adjacent ones; False where a peer did so first.

        On False, `written`, the objects that were made for `merged` and that nothing else names, are deleted; unless
        a reply was lost on the way: then they are left to garbage collection.

        Raises ExpiredError as `compare_and_append`.
        """
        ref = self._write_record(merged, max(old.level for old in run) + 1)
        decision, unsure = self._change(partial(replace_run, run=run, batch=ref, epoch=merged.epoch))
        self._refuse_if_late(decision)
        if isinstance(decision, LostAppend) and not unsure:
            delete_all(self._objects, [ref.path, *written])
        return not isinstance(decision, LostAppend)

    def change(self, decide: Callable[[ShardState], Swap | None]) -> None:
        """Carry out a decision on the state until it is done or not needed."""
        self._change(decide)

    def _change(self, decide: Callable[[ShardState], DecisionT | Swap]) -> tuple[DecisionT | Swap, bool]:
        """Carry out a decision until it is done; return it, and whether a reply was lost on the way."""
        unsure = False
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            state, version = self._states.read()
            decision = decide(state)
            if isinstance(decision, Swap):
                # After an unknown outcome the next round reads the state again, and decides on what it finds.
                swapped = self._states.swap(decision.state, version)
                unsure = unsure or swapped is None
                if not swapped:
                    continue
            return decision, unsure
        raise ContentionError(
            f"shard {self.name}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
        )

    def _refuse_if_late(self, decision: object) -> None:
        if isinstance(decision, TooLate):
            raise ExpiredError(
                f"shard {self.name}: the parts of this batch were uploaded too long ago, and may have been "
                "collected since. Nothing was appended; run again, which uploads them anew."
            )

    def _write_record(self, batch: Batch, level: int) -> BatchRef:
        data = to_bytes(batch)
        sha256 = hashlib.sha256(data).hexdigest()
        # Named by content, not by id: two tries of one write have one id, and other parts each.
        path = f"shards/{self.name}/batches/{batch.epoch:06d}/{batch.lower:010d}-{sha256[:32]}.json"
        self._objects.put(path, data)
        inserted = sum(part.rows for part in batch.parts)
        retracted = sum(part.rows for part in batch.retractions)
        return BatchRef(
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
        )
