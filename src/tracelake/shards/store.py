"""The shard in its stores: state by compare-and-set in the key-value store, all else in the object store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import TypeVar

from tracelake._errors import ContentionError, DamageError, ExpiredError, IndeterminateError, NotFoundError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, WRITES_REMEMBERED
from tracelake.shards.buckets import lies_in
from tracelake.shards.model import Batch, BatchRef, Part, ShardState, Write, from_bytes, to_bytes
from tracelake.shards.protocol import (
    AppendDecision,
    Lost,
    Swap,
    TooLate,
    UpperMismatch,
    append,
    remembers,
    replace,
    to_put_away,
    visible,
)
from tracelake.shards.states import States
from tracelake.shards.writes import Writes
from tracelake.storage import KeyValueStore, ObjectStore, delete_all

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
            away = to_put_away(state.written, self.written_max) if write is not None else ()
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
        decision, unsure = self._change(partial(replace, run=run, batch=ref, epoch=merged.epoch))
        self._refuse_if_late(decision)
        if isinstance(decision, Lost) and not unsure:
            delete_all(self._objects, [ref.path, *written])
        return not isinstance(decision, Lost)

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
