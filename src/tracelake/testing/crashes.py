"""Stores that stop the caller at a chosen call, as if its process were killed.

    crash = CrashPoint(at=17, after=True)           # the 17th call takes effect, but its caller gets no reply
    objects = CrashingObjectStore(real_objects, crash)
    key_value = CrashingKeyValueStore(real_key_value, crash)

Written data stays in the real stores; a new actor over those is the restarted process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from tracelake.storage import KeyValueStore, ObjectInfo, ObjectStore
from tracelake.storage.wrappers import DelegatingKeyValueStore, DelegatingObjectStore

ResultT = TypeVar("ResultT")


class Crashed(BaseException):
    """The simulated process was killed. Not an Exception, so that no `except Exception` catches it."""


class CrashPoint:
    """Counts calls over several stores, and raises Crashed at one of them, before or after its effect.

    After the crash, each further call raises too, because a dead process makes no calls.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.calls = 0
        self._at = at
        self._after = after

    def pass_through(self, call: Callable[[], ResultT]) -> ResultT:
        """Make a call, or crash at it."""
        self.calls += 1
        if self._at is None or self.calls < self._at:
            return call()
        if self.calls == self._at and self._after:
            call()
        raise Crashed(f"killed {'after' if self._after else 'before'} call {self._at}")


class CrashingObjectStore(DelegatingObjectStore):
    """An ObjectStore whose calls pass a crash point."""

    def __init__(self, store: ObjectStore, crash: CrashPoint) -> None:
        super().__init__(store)
        self._crash = crash

    def _call(self, call: Callable[[], ResultT]) -> ResultT:
        return self._crash.pass_through(call)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See ObjectStore; one call for the whole listing."""
        return self._call(lambda: iter([*self.store.list(prefix)]))


class CrashingKeyValueStore(DelegatingKeyValueStore):
    """A KeyValueStore whose calls pass a crash point."""

    def __init__(self, store: KeyValueStore, crash: CrashPoint) -> None:
        super().__init__(store)
        self._crash = crash

    def _call(self, call: Callable[[], ResultT]) -> ResultT:
        return self._crash.pass_through(call)
