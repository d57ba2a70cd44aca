"""A replica's progress account and heartbeat. The main loop updates the account; a heartbeat thread writes it as a
record.

A separate thread writes the record, so that the pipeline never waits for the store. A failed write is retried at the
next beat. Until then the pipeline continues, but other processes may see the replica as gone. The module also converts
the records for the public API, and checks them for `tracelake verify`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from tracelake._errors import DamageError, UnreadInputsError
from tracelake.formats import decode, encode
from tracelake.limits import ERROR_MAX_CHARS, REPLICA_GONE_S
from tracelake.replicas import protocol
from tracelake.results import Finding, ReplicaInfo
from tracelake.storage import ABSENT, Conflict, Done, Entry, KeyValueStore
from tracelake.storage.ports import check_records, whole_of
from tracelake.tasks.backoff import PeriodicThread

REPLICA_HEARTBEAT_S: Final = 3.0
"""Heartbeat interval of a replica, which also writes after each transaction."""
REPLICA_FORGOTTEN_S: Final = 24 * 3600.0
"""Retention of a gone replica's record."""


@dataclass(frozen=True, slots=True)
class BacklogEntry:
    """One pending input that no transaction contains, with its arrival time (seconds since 1970)."""

    path: str
    size_bytes: int
    since_s: float


@dataclass(slots=True)
class BatchCounts:
    """Counts of a replica's own batches. Only the publishing thread changes them."""

    won: int = 0
    rows_dropped: int = 0


def default_name() -> str:
    """Return a name that is unique to this process: host and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


class ReplicaProgress:
    """The progress account of one replica.

    Only calls of the main loop change the account. If the loop hangs, the account stays the same, although the
    heartbeat continues to write it.
    """

    def __init__(self, name: str, tally: BatchCounts, tables: int) -> None:
        self._lock = Lock()
        self._tally = tally
        self._tables = tables
        self._moves = protocol.Advance()
        self._steps = 0
        self._first: int | None = None
        self._frontier = 0
        self._waiting: Sequence[BacklogEntry] = ()
        self._left: Sequence[BacklogEntry] = ()
        self._sources: tuple[protocol.SourceAccount, ...] = ()
        self._doing: str | None = None
        self._failures = 0
        self._waits_for: str | None = None
        self._last_error: str | None = None
        self._last_error_s: float | None = None
        self._namesake: tuple[str, float] | None = None
        self._started_s = self._moved_s = time.time()
        self.name = name
        self.instance: Final = uuid.uuid4().hex

    @property
    def frontier(self) -> int:
        """The transaction that the replica works on, or waits to begin."""
        return self._frontier

    @property
    def steps(self) -> int:
        """The number of activity changes, retries included. It stays constant if the replica hangs."""
        return self._steps

    def begin(self, doing: str) -> None:
        """Record the start of an activity, which alone is not progress."""
        with self._lock:
            self._go_on_to(doing)

    def look(self, frontier: int, waiting: Sequence[BacklogEntry]) -> None:
        """Record the next transaction and its pending inputs, the oldest first."""
        with self._lock:
            self._pass_to(frontier)
            self._waiting, self._left = waiting, ()
            oldest = waiting[0].path if waiting else None
            self._moves, moved = protocol.on_look(self._moves, frontier, oldest)
            self._note(moved)

    def sources(self, accounts: tuple[protocol.SourceAccount, ...]) -> None:
        """Record the state of the sources."""
        with self._lock:
            self._sources = accounts

    def reach(self, transaction: int | None, stage: int, completed: int, doing: str) -> None:
        """Record that a transaction (None: the next one) reached a stage."""
        with self._lock:
            self._go_on_to(doing)
            at = self._frontier if transaction is None else transaction
            self._moves, moved = protocol.on_stage(self._moves, at, stage, completed)
            self._note(moved)

    def committed(self, transaction: int) -> None:
        """Record that this replica published a transaction. It clears a failure, although more work may be left."""
        with self._lock:
            self._pass_to(transaction + 1)
            self._moves, _ = protocol.on_success(self._moves)
            self._note(moved=True)

    def failed(self, error: BaseException) -> None:
        """Record a failed run."""
        with self._lock:
            self._failures += 1
            text = str(error) or type(error).__name__
            if isinstance(error, UnreadInputsError):  # all other inputs are ingested
                self._moves, _ = protocol.on_success(self._moves)
                self._waits_for = text[:ERROR_MAX_CHARS]
                self._note(moved=True)
            else:
                self._moves = protocol.on_failure(self._moves)
                self._waits_for = None
            self._last_error, self._last_error_s = text[:ERROR_MAX_CHARS], time.time()
            self._go_on_to(None)

    def leave(self, waiting: Sequence[BacklogEntry]) -> None:
        """Record the inputs that a run leaves to the next poll, the oldest first."""
        with self._lock:
            self._left = waiting

    def succeeded(self) -> bool:
        """Record a successful run: all inputs of the last poll are ingested, or left to the next poll.

        Return whether to write the record soon, because the run took input or ended a failure.
        """
        with self._lock:
            was_failing = self._moves.failing or self._waits_for is not None
            news, self._waiting = bool(self._waiting) or was_failing, self._left
            self._moves, moved = protocol.on_success(self._moves)
            self._waits_for = None
            self._go_on_to(None)
            self._note(moved)
            return news

    def met(self, namesake: str) -> None:
        """Record that another live process uses the same name."""
        with self._lock:
            self._namesake = (namesake, time.time())

    def record(self) -> protocol.Replica:
        """Return the account as a heartbeat record."""
        with self._lock:
            waiting, met, now_s = self._waiting, self._namesake, time.time()
            first = self._frontier if self._first is None else self._first
            return protocol.Replica(
                name=self.name,
                instance=self.instance,
                host=socket.gethostname(),
                pid=os.getpid(),
                started_s=self._started_s,
                heartbeat_s=now_s,
                frontier=self._frontier,
                waiting_inputs=len(waiting),
                waiting_bytes=sum(item.size_bytes for item in waiting),
                oldest_waiting_s=waiting[0].since_s if waiting else None,
                batches_won=self._tally.won,
                batches_of_peers=protocol.batches_of_peers(
                    first, self._frontier, self._tally.won, self._tables
                ),
                rows_dropped=self._tally.rows_dropped,
                moved_s=self._moved_s,
                doing=self._doing,
                failing=self._moves.failing,
                waits_for=self._waits_for,
                failures=self._failures,
                last_error=self._last_error,
                last_error_s=self._last_error_s,
                sources=self._sources,
                namesake=met[0] if met is not None and now_s - met[1] <= REPLICA_GONE_S else None,
            )

    def _pass_to(self, frontier: int) -> None:
        if self._first is None:
            self._first = frontier
        self._frontier = max(self._frontier, frontier)

    def _go_on_to(self, doing: str | None) -> None:
        if doing != self._doing:
            self._doing = doing
            self._steps += 1

    def _note(self, moved: bool) -> None:
        if moved:
            self._moved_s = time.time()


PARTITION: Final = "replicas"


def replicas(store: KeyValueStore) -> list[protocol.Replica]:
    """Return the records of all replicas, by name. Unreadable records are omitted."""
    records = (_decode(entry) for entry in whole_of(store.scan, PARTITION))
    return [replica for replica in records if replica is not None]


def _decode(entry: Entry | None) -> protocol.Replica | None:
    if entry is None:
        return None
    try:
        return decode(
            protocol.Replica, entry.value, f"the record of replica {entry.key}", protocol.FORMAT_VERSION
        )
    except DamageError:
        return None  # nothing depends on the record, so its damage needs no repair


class Heartbeat:
    """Keeps the record of a live replica up to date."""

    def __init__(self, store: KeyValueStore, account: ReplicaProgress) -> None:
        self._store = store
        self._account = account
        self._on_namesake: Callable[[str], None] = lambda _: None
        self._version: str | None = None
        self._began = False
        self._met: set[str] = set()
        self._has_cleaned = False
        self._thread: PeriodicThread | None = None

    def start(self, on_namesake: Callable[[str], None] = lambda _: None) -> None:
        """Start the thread. Idempotent.

        The callback `on_namesake` is called once for each other live process with the same name.
        """
        if self._thread is None:
            self._on_namesake = on_namesake
            self._thread = PeriodicThread("tracelake-heartbeat", self._step)
            self._thread.start()

    def soon(self) -> None:
        """Trigger a write of the record before the next beat, without waiting for it."""
        if self._thread is not None:
            self._thread.wake()

    def stop(self) -> None:
        """Stop, and remove the record, so that a cleanly stopped replica is not reported as gone."""
        if self._thread is None:
            return
        if self._thread.stop(REPLICA_HEARTBEAT_S) and self._version is not None:
            with contextlib.suppress(Exception):
                self._store.delete_if(PARTITION, self._account.name, self._version)
        self._thread = None

    def beat(self) -> None:
        """Write the record once, and detect other processes that write it too."""
        for _ in range(2):
            value = encode(self._account.record())
            expected = ABSENT if self._version is None else self._version
            outcome = self._store.set_if(PARTITION, self._account.name, value, expected)
            if isinstance(outcome, Done):
                self._version, self._began = outcome.version, True
                return
            if not isinstance(outcome, Conflict):
                return  # a lost reply: the next beat discovers the outcome
            self._look_at(_decode(outcome.current))
            self._version = None if outcome.current is None else outcome.current.version

    def _look_at(self, recorded: protocol.Replica | None) -> None:
        """Detect a namesake: a process that wrote the record after our first beat is alive."""
        if not self._began or recorded is None or recorded.instance == self._account.instance:
            return
        namesake = f"process {recorded.pid} on {recorded.host}"
        self._account.met(namesake)
        if recorded.instance not in self._met:
            self._met.add(recorded.instance)
            self._on_namesake(namesake)

    def _step(self) -> float:
        for call in (self.beat,) if self._has_cleaned else (self._forget, self.beat):
            with contextlib.suppress(Exception):  # no heartbeat error may stop the pipeline
                call()
        self._has_cleaned = True
        return REPLICA_HEARTBEAT_S

    def _forget(self) -> None:
        """Delete the records of replicas that have been gone for long."""
        for entry in whole_of(self._store.scan, PARTITION):
            replica = _decode(entry)
            if replica is not None and time.time() - replica.heartbeat_s > REPLICA_FORGOTTEN_S:
                self._store.delete_if(PARTITION, entry.key, entry.version)


def describe(replica: protocol.Replica, upper: int, now_s: float) -> ReplicaInfo:
    """Describe a replica at a time, from its record. `upper` is that of the tables."""
    answer = protocol.status(replica, now_s)
    return ReplicaInfo(
        name=replica.name,
        status=answer.word,
        reason=answer.reason,
        frontier=replica.frontier,
        transactions_behind=protocol.transactions_behind(replica, upper),
        waiting_inputs=replica.waiting_inputs,
        waiting_bytes=replica.waiting_bytes,
        oldest_waiting_s=protocol.oldest_age_s(replica, now_s),
        batches_won=replica.batches_won,
        batches_of_peers=replica.batches_of_peers,
        rows_dropped=replica.rows_dropped,
        doing=replica.doing,
        moved_at=_iso(replica.moved_s),
        failures=replica.failures,
        last_error=replica.last_error,
        last_error_at=None if replica.last_error_s is None else _iso(replica.last_error_s),
        instance=replica.instance,
        host=replica.host,
        pid=replica.pid,
        started_at=_iso(replica.started_s),
        heartbeat_at=_iso(replica.heartbeat_s),
        namesake=replica.namesake,
    )


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")


def check_heartbeats(key_value: KeyValueStore) -> Iterator[Finding]:
    """Yield the damaged records of replicas."""
    return check_records(key_value, [PARTITION])
