"""How a conditional write is decided, and how one whose reply was lost is settled (PROTOCOLS §0)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from tracelake import limits
from tracelake._errors import IndeterminateError, StorageError
from tracelake.storage.ports import (
    ABSENT,
    Conflict,
    Done,
    Entry,
    Expected,
    Indeterminate,
    KeyValueStore,
    Outcome,
    Version,
)


def new_version() -> Version:
    """Return the identity of a new write: random, so that no two writes of any process share one."""
    return uuid.uuid4().hex


def is_at(current: Entry | None, expected: Expected) -> bool:
    """Tell whether a record is as a conditional write expects it."""
    if current is None:
        return expected is ABSENT
    return current.version == expected


def settle(
    store: KeyValueStore,
    partition: str,
    key: str,
    outcome: Outcome,
    is_mine: Callable[[Entry], bool],
    *,
    pause: Callable[[float], None] | None = None,
) -> Done | Conflict:
    """Turn the outcome of `set_if` or `delete_if` on (partition, key) into a decision; read back if needed.

    `is_mine(entry)` tells whether the record as read shows that the write happened, by an identity in
    its value; it matters where another writer may have built on ours before we read back. Return False
    where the value holds none: the version alone then decides.

    Done means that the write happened, and names *its* version, even if the record has moved on since:
    a next write that expects it then loses, as it must. Conflict after a lost reply means that the record
    does not show our write: it never happened, or it did and was replaced by one that does not carry our
    identity. Either way the caller decides anew from `current`. After `delete_if`, Conflict(None) means
    that the record is gone, whoever deleted it.

    Assumption: a write whose reply was lost does not land after the read. SQLite's store holds to it
    (see `sqlite.py`). On a store across a network a late write can still land while the record stays at
    what it expected, so nothing may be destroyed on a Conflict that was read back before a later
    conditional write on the same record has succeeded.

    `pause` waits between reads that fail, in seconds; `time.sleep` where it is None. Raises
    IndeterminateError where `SETTLE_READ_TRIES_MAX` reads fail.
    """
    if not isinstance(outcome, Indeterminate):
        return outcome
    failure: StorageError | None = None
    for attempt in range(limits.SETTLE_READ_TRIES_MAX):
        if attempt:
            (pause or time.sleep)(limits.STORE_PAUSE_FIRST_S * 2**attempt)
        try:
            current = store.get(partition, key)
        except StorageError as error:
            failure = error
            continue
        if current is not None and (current.version == outcome.version or is_mine(current)):
            return Done(outcome.version)
        return Conflict(current)
    raise IndeterminateError(
        f"the write of {partition!r} / {key!r} may or may not have happened ({outcome.reason}), and "
        f"reading it back failed {limits.SETTLE_READ_TRIES_MAX} times ({failure}); "
        "repair the store, then try again"
    ) from failure
