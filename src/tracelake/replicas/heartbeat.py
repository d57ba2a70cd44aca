"""Writes the record of a replica now and then, from a thread of its own, so that no pipeline waits for it.

A record that cannot be written is tried again at the next beat: the pipeline goes on without, and others
see the replica as gone meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from tracelake._errors import DamageError
from tracelake.formats import decode, encode
from tracelake.limits import REPLICA_FORGOTTEN_S, REPLICA_HEARTBEAT_S
from tracelake.replicas.account import ReplicaProgress
from tracelake.replicas.model import FORMAT_VERSION, Replica
from tracelake.storage import ABSENT, Conflict, Done, Entry, KeyValueStore
from tracelake.storage.record_objects import whole_of

PARTITION: Final = "replicas"


def replicas(store: KeyValueStore) -> list[Replica]:
    """Return the records of all replicas, by name. Those that we cannot read are left out."""
    records = (_decode(entry) for entry in whole_of(store.scan, PARTITION))
    return [replica for replica in records if replica is not None]


def _decode(entry: Entry | None) -> Replica | None:
    if entry is None:
        return None
    try:
        return decode(Replica, entry.value, f"the record of replica {entry.key}", FORMAT_VERSION)
    except DamageError:
        return None  # nothing rests on it, so it is no damage that needs mending


class Heartbeat:
    """Keeps the record of one replica up to date while it lives."""

    def __init__(self, store: KeyValueStore, account: ReplicaProgress) -> None:
        self._store = store
        self._account = account
        self._on_namesake: Callable[[str], None] = lambda _: None
        self._version: str | None = None
        self._began = False
        self._met: set[str] = set()
        self._wake = Event()
        self._ending = Event()
        self._thread: Thread | None = None

    def start(self, on_namesake: Callable[[str], None] = lambda _: None) -> None:
        """Begin; calling it twice is allowed.

        `on_namesake` is told, once, of another live process with the same name.
        """
        if self._thread is None:
            self._on_namesake = on_namesake
            self._thread = Thread(target=self._run, name="tracelake-heartbeat", daemon=True)
            self._thread.start()

    def soon(self) -> None:
        """Write the record now rather than at the next beat, without waiting for it."""
        self._wake.set()

    def stop(self) -> None:
        """End, and remove the record: a replica that ended in order is not missed."""
        if self._thread is None:
            return
        self._ending.set()
        self._wake.set()
        self._thread.join(REPLICA_HEARTBEAT_S)
        if not self._thread.is_alive() and self._version is not None:
            with contextlib.suppress(Exception):
                self._store.delete_if(PARTITION, self._account.name, self._version)
        self._thread = None

    def beat(self) -> None:
        """Write the record once, and find out whether somebody else writes it too."""
        for _ in range(2):
            value = encode(self._account.record())
            expected = ABSENT if self._version is None else self._version
            outcome = self._store.set_if(PARTITION, self._account.name, value, expected)
            if isinstance(outcome, Done):
                self._version, self._began = outcome.version, True
                return
            if not isinstance(outcome, Conflict):
                return  # a lost reply: the next beat finds out what became of it
            self._look_at(_decode(outcome.current))
            self._version = None if outcome.current is None else outcome.current.version

    def _look_at(self, recorded: Replica | None) -> None:
        """Notice a namesake: whoever wrote the record after our first beat lives."""
        if not self._began or recorded is None or recorded.instance == self._account.instance:
            return
        namesake = f"process {recorded.pid} on {recorded.host}"
        self._account.met(namesake)
        if recorded.instance not in self._met:
            self._met.add(recorded.instance)
            self._on_namesake(namesake)

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            self._forget()
        while not self._ending.is_set():
            self._wake.clear()
            with contextlib.suppress(Exception):  # whatever it is, the pipeline must not end of it
                self.beat()
            self._wake.wait(REPLICA_HEARTBEAT_S)

    def _forget(self) -> None:
        """Delete the records of replicas that have been gone for long."""
        for entry in whole_of(self._store.scan, PARTITION):
            replica = _decode(entry)
            if replica is not None and time.time() - replica.heartbeat_s > REPLICA_FORGOTTEN_S:
                self._store.delete_if(PARTITION, entry.key, entry.version)
