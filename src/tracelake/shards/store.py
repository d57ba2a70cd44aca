"""The shard in its stores: state by compare-and-set in the key-value store, all else in the object store."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from tracelake._errors import DamageError, LimitError, NotFoundError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.shards.model import (
    Batch,
    BatchRef,
    Part,
    ShardState,
    batch_from_bytes,
    state_from_bytes,
    to_bytes,
)
from tracelake.shards.protocol import AlreadyThere, Swap, UpperMismatch, append, visible
from tracelake.storage import ABSENT, Done, KeyValueStore, ObjectStore, Version, settle

_PARTITION: Final = "shards"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A shard as of one time: its live parts, and the retractions to apply to them."""

    as_of: int
    parts: tuple[Part, ...]
    retractions: tuple[Part, ...]
    rows: int

    def for_buckets(self, buckets: set[int]) -> Snapshot:
        """Return the part of the snapshot that lies in these buckets; `rows` is not known then (-1)."""
        return Snapshot(
            self.as_of,
            tuple(part for part in self.parts if part.bucket in buckets),
            tuple(part for part in self.retractions if part.bucket in buckets),
            rows=-1,
        )


class Shard:
    """One durable collection. Several processes may use the same one at once."""

    def __init__(self, name: str, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self.name = name
        self._key_value = key_value
        self._objects = objects

    @property
    def prefix(self) -> str:
        """Where the shard's objects are."""
        return f"shards/{self.name}/"

    def state(self) -> ShardState:
        """Return the current state; a shard that nobody has written to is empty."""
        return self._read()[0]

    def snapshot(self, as_of: int, state: ShardState | None = None) -> Snapshot:
        """Return parts and retractions as of a time.

        Raises DamageError where the state does not reach it, or a batch record is not readable.
        """
        try:
            refs = visible(state or self.state(), as_of)
        except ValueError as error:
            raise DamageError(
                f"shard {self.name}: its state in the metadata does not reach back or up to what a commit "
                f"names: {error}. Restore it from a backup."
            ) from error
        batches = [self.batch(ref) for ref in refs]
        return Snapshot(
            as_of,
            tuple(part for batch in batches for part in batch.parts),
            tuple(part for batch in batches for part in batch.retractions),
            rows=sum(ref.rows for ref in refs),
        )

    def batch(self, ref: BatchRef) -> Batch:
        """Read a batch record and check it against the state's checksum."""
        try:
            data = self._objects.get(ref.path)
        except NotFoundError as error:
            raise DamageError(f"shard {self.name}: batch record {ref.path} is gone.") from error
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise DamageError(f"shard {self.name}: batch record {ref.path} is not what was written.")
        return batch_from_bytes(data, ref.path)

    def batch_at(self, time: int) -> Batch | None:
        """Return the batch that holds a time, or None where no row changed at it."""
        for ref in self.state().batches:
            if ref.lower <= time < ref.upper:
                return self.batch(ref)
        return None

    def compare_and_append(self, batch: Batch) -> UpperMismatch | None:
        """Append the batch iff the shard's upper is its lower; None means that it is there.

        Its parts must be in the object store already. Trying again with the same batch is safe, whatever
        became of the first try. After a mismatch the caller may delete the parts that it wrote: no state names
        them, nor ever will.
        """
        ref = None if batch.is_empty else self._write_record(batch)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            state, version = self._read()
            decision = append(state, batch.lower, batch.upper, ref)
            if isinstance(decision, AlreadyThere):
                return None
            if isinstance(decision, UpperMismatch):
                if ref is not None:
                    self._objects.delete(ref.path)
                return decision
            if self._swap(decision, version):
                return None
        raise LimitError(
            f"shard {self.name}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
        )

    def _swap(self, decision: Swap, version: Version | None) -> bool:
        value = to_bytes(decision.state)
        expected = ABSENT if version is None else version
        outcome = self._key_value.set_if(_PARTITION, self.name, value, expected)
        # After an unknown outcome the next round reads the state again, and our batch's id in it decides.
        settled = settle(self._key_value, _PARTITION, self.name, outcome, is_mine=lambda _: False)
        return isinstance(settled, Done)

    def _read(self) -> tuple[ShardState, Version | None]:
        entry = self._key_value.get(_PARTITION, self.name)
        if entry is None:
            return ShardState(), None
        return state_from_bytes(entry.value, self.name), entry.version

    def _write_record(self, batch: Batch) -> BatchRef:
        data = to_bytes(batch)
        path = f"{self.prefix}batches/{batch.lower:010d}-{batch.id}.json"
        self._objects.put(path, data)
        came = sum(part.rows for part in batch.parts)
        went = sum(part.rows for part in batch.retractions)
        return BatchRef(
            lower=batch.lower,
            upper=batch.upper,
            id=batch.id,
            path=path,
            sha256=hashlib.sha256(data).hexdigest(),
            rows=came - went,
            parts=len(batch.parts),
            size_bytes=sum(part.size_bytes for part in batch.parts),
        )
