"""Check that a history of calls on a key-value store is linearizable (Herlihy & Wing 1990).

Keys are independent, so each is checked separately. The search is that of Wing and Gong (1993). It takes any call
that began before every other remaining call ended, applies it to the model, and continues. It remembers visited
states.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from tracelake.storage import Conflict, Done, Entry, Expected, Indeterminate, KeyValueStore, Outcome, Version
from tracelake.storage.ports import EachAlone, is_at

ResultT = TypeVar("ResultT")
Kind = Literal["get", "set", "set_if", "delete_if"]
_UNKNOWN_VERSION = ""
"""Version of a write whose lost reply named none."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call on one key: its begin, end and result."""

    caller: str
    kind: Kind
    key: tuple[str, str]
    value: bytes
    expected: Expected | None
    result: object
    """The port's return value, or its exception, which counts as an unknown outcome."""
    began: int
    ended: float
    """Infinite if the outcome is unknown: the call may still take effect, or never."""


class RecordingKeyValueStore(EachAlone):
    """A KeyValueStore that records every call on a single key in a history; thread-safe."""

    def __init__(
        self, store: KeyValueStore, history: list[Operation], caller: str, clock: Iterator[int] | None = None
    ) -> None:
        """Record the calls of one caller. All callers of a history share a clock, an `itertools.count()`."""
        self._store = store
        self._history = history
        self._caller = caller
        self._clock = clock or itertools.count()

    def get(self, partition: str, key: str) -> Entry | None:
        """See KeyValueStore."""
        return self._record("get", (partition, key), b"", None, lambda: self._store.get(partition, key))

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """See KeyValueStore; not recorded, because it is no call on a single key."""
        return self._store.scan(partition, start, stop, limit)

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """See KeyValueStore; not recorded, because it is no call on a single key."""
        return self._store.keys(partition, start, stop, limit)

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """See KeyValueStore."""
        return self._record(
            "set", (partition, key), value, None, lambda: self._store.set(partition, key, value)
        )

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """See KeyValueStore."""
        return self._record(
            "set_if",
            (partition, key),
            value,
            expected,
            lambda: self._store.set_if(partition, key, value, expected),
        )

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """See KeyValueStore."""
        return self._record(
            "delete_if",
            (partition, key),
            b"",
            expected,
            lambda: self._store.delete_if(partition, key, expected),
        )

    def note(self, partition: str, key: str, value: bytes) -> None:
        """See KeyValueStore; not recorded, because notes carry no guarantees."""
        self._store.note(partition, key, value)

    def notes(self, partition: str, beginning: str = "") -> list[Entry]:
        """See KeyValueStore; not recorded."""
        return self._store.notes(partition, beginning)

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """See KeyValueStore; not recorded."""
        self._store.forget(partition, keys)

    def erase(self, partition: str, beginning: str) -> None:
        """See KeyValueStore; not recorded, because no process uses such keys any more."""
        self._store.erase(partition, beginning)

    def close(self) -> None:
        """See KeyValueStore."""
        self._store.close()

    def _record(
        self,
        kind: Kind,
        key: tuple[str, str],
        value: bytes,
        expected: Expected | None,
        call: Callable[[], ResultT],
    ) -> ResultT:
        began = next(self._clock)
        try:
            result = call()
        except BaseException as error:
            self._history.append(Operation(self._caller, kind, key, value, expected, error, began, math.inf))
            raise
        ended = math.inf if isinstance(result, Indeterminate) else next(self._clock)
        self._history.append(Operation(self._caller, kind, key, value, expected, result, began, ended))
        return result


def find_contradiction(history: list[Operation]) -> str | None:
    """Return the first key whose calls have no valid order, with its calls; None if the history is linearizable."""
    for key in sorted({operation.key for operation in history}):
        calls = sorted((call for call in history if call.key == key), key=lambda call: call.began)
        if not _explained(calls):
            told = "\n".join(
                f"  {call.began:4}-{call.ended:<4} {call.caller:<12} {call.kind} {call.value!r} "
                f"at {call.expected} → {call.result!r}"
                for call in calls
            )
            return f"no order of the calls on {'/'.join(key)} explains their results:\n{told}"
    return None


def _explained(calls: list[Operation]) -> bool:
    known = frozenset(index for index, call in enumerate(calls) if call.ended != math.inf)
    been: set[tuple[frozenset[int], Entry | None]] = set()
    todo: list[tuple[frozenset[int], Entry | None]] = [(frozenset(), None)]
    while todo:
        place = todo.pop()
        if place in been:
            continue
        been.add(place)
        done, state = place
        if known <= done:
            return True
        left = [index for index in range(len(calls)) if index not in done]
        first_end = min(calls[index].ended for index in left)
        todo += [
            (done | {index}, after)
            for index in left
            if calls[index].began < first_end
            for after in _apply(calls[index], state)
        ]
    return False


def _apply(call: Operation, state: Entry | None) -> list[Entry | None]:
    """Return the possible state after a call; an empty list if this state cannot give the call's result."""
    match call.result:
        case BaseException() | Indeterminate():
            return [_after_unknown(call, state)]
        case Conflict(current):
            refuses = call.expected is not None and not is_at(state, call.expected)
            return [current] if refuses and _same(state, current) else []
        case Done(version):
            if call.expected is None or not is_at(state, call.expected):
                return []
            return [None if call.kind == "delete_if" else Entry(call.key[1], call.value, version)]
        case str(version):
            return [Entry(call.key[1], call.value, version)]
        case None | Entry() as seen:
            return [seen] if _same(state, seen) else []
    raise AssertionError(f"no store returns {call.result!r}")


def _after_unknown(call: Operation, state: Entry | None) -> Entry | None:
    if call.kind == "get":
        return state
    if call.kind != "set" and (call.expected is None or not is_at(state, call.expected)):
        return state
    if call.kind == "delete_if":
        return None
    version = call.result.version if isinstance(call.result, Indeterminate) else _UNKNOWN_VERSION
    return Entry(call.key[1], call.value, version)


def _same(state: Entry | None, seen: Entry | None) -> bool:
    if state is None or seen is None:
        return state is seen
    return state.value == seen.value and state.version in (seen.version, _UNKNOWN_VERSION)
