"""Tries at a transaction that ended with their process: what runs died of while they did it.

A task that fails says so, and is counted in its run. A process that is killed, as for want of memory, says nothing:
so a note that T is being done stands from before it is begun until it is done, or has failed. Who finds one of a
process that lives no more counts it. It is for this machine: whether a process of another one lives cannot be told.
"""

from __future__ import annotations

import os
import socket
import uuid

import msgspec

from tracelake._errors import DamageError
from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION
from tracelake.storage import KeyValueStore

PROCESS = uuid.uuid4().hex
"""This process, whatever its number: in a container each has the same."""
PID = os.getpid()
"""Its number."""


class _Try(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a process of this machine died at a transaction, and the process that does it now, if any."""

    transaction: int
    deaths: int
    process: str = ""
    pid: int = 0
    version: int = FORMAT_VERSION


class Tries:
    """The notes of one pipeline on this machine."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"tries/{pipeline}"
        self._host = socket.gethostname()

    def begin(self, t: int) -> int:
        """Note that a transaction is begun; return how often a process died while it did it.

        Where another of this machine does it, too, the note is its own.
        """
        key = self._key(t)
        deaths = 0
        done = []
        for entry in self._store.notes(self._partition):
            if entry.key < f"{t:016d}":
                done.append(entry.key)
            elif entry.key == key:
                found = self._decode(key, entry.value)
                if _lives(found):
                    return found.deaths
                deaths = found.deaths + bool(found.process)
        self._store.forget(self._partition, done)
        self._store.note(self._partition, key, encode(_Try(t, deaths, PROCESS, PID)))
        return deaths

    def failed(self, t: int, deaths: int) -> None:
        """Note that a try has ended by a failure that was told: no death."""
        if deaths:
            self._store.note(self._partition, self._key(t), encode(_Try(t, deaths)))
        else:
            self.done(t)

    def done(self, t: int) -> None:
        """Forget a transaction that is done, or whose tries count from the beginning."""
        self._store.forget(self._partition, [self._key(t)])

    def _decode(self, key: str, value: bytes) -> _Try:
        try:
            return decode(_Try, value, f"note {self._partition}/{key}", FORMAT_VERSION)
        except DamageError:
            return _Try(0, 0)  # it says nothing

    def _key(self, t: int) -> str:
        return f"{t:016d}-{self._host}"


def _lives(found: _Try) -> bool:
    """Whether the process of a note may live: this one does, and whatever has the number of another may be it."""
    if found.process == PROCESS:
        return True
    if not found.process or found.pid == PID:
        return False
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
