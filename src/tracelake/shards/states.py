"""The state record in its stores: small in the key-value store, its beginning rolled up as an object if long."""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

from msgspec.structs import replace

from tracelake._errors import DamageError, NotFoundError
from tracelake.limits import SHARD_READ_TRIES_MAX, SHARD_STATE_INLINE_BATCHES, SHARD_STATE_INLINE_MAX_BYTES
from tracelake.shards.model import (
    Beginning,
    Rolled,
    ShardState,
    from_bytes,
    to_bytes,
)
from tracelake.storage import ABSENT, Done, Indeterminate, KeyValueStore, ObjectStore, Version, settle

PARTITION: Final = "shards"


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
            entry = self._key_value.get(PARTITION, self._shard)
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
        outcome = self._key_value.set_if(PARTITION, self._shard, value, expected)
        settled = settle(self._key_value, PARTITION, self._shard, outcome, is_mine=lambda _: False)
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
