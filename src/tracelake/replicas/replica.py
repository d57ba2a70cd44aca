"""What a replica knows of its own work. The main loop writes it, and the heartbeat reads it.

Writes the record of a replica now and then, from a thread of its own, so that no pipeline waits for it.

A record that cannot be written is tried again at the next beat: the pipeline goes on without, and others
see the replica as gone meanwhile.

Records of replicas as the public API shows them.

Reading back what replicas tell of themselves, for `tracelake verify`.
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
from threading import Event, Lock, Thread
from typing import Final

from tracelake._errors import DamageError, UnreadInputsError
from tracelake.formats import decode, encode
from tracelake.limits import ERROR_MAX_CHARS, REPLICA_FORGOTTEN_S, REPLICA_GONE_S, REPLICA_HEARTBEAT_S
from tracelake.replicas import protocol
from tracelake.replicas.protocol import (
    FORMAT_VERSION,
    Advance,
    Replica,
    SourceAccount,
    oldest_age_s,
    status,
    transactions_behind,
)
from tracelake.results import Finding, ReplicaInfo
from tracelake.storage import ABSENT, Conflict, Done, Entry, KeyValueStore
from tracelake.storage.object_records import whole_of
from tracelake.storage.verify import check_records


@dataclass(frozen=True, slots=True)
class BacklogEntry:
    """One input that no transaction holds yet, and when it came (seconds since 1970)."""

    path: str
    size_bytes: int
    since_s: float


@dataclass(slots=True)
class BatchCounts:
    """What became of the batches that a replica wrote; the publishing thread alone changes it."""

    won: int = 0
    rows_dropped: int = 0


def default_name() -> str:
    """Return a name that no other process has: host and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


class ReplicaProgress:
    """The account of one replica.

    Only the main loop's own calls count as progress: however long the heartbeat goes on reading the account,
    a loop that hangs moves nothing in it.
    """

    def __init__(self, name: str, tally: BatchCounts, tables: int) -> None:
        self._lock = Lock()
        self._tally = tally
        self._tables = tables
        self._moves = Advance()
        self._steps = 0
        self._first: int | None = None
        self._frontier = 0
        self._waiting: Sequence[BacklogEntry] = ()
        self._left: Sequence[BacklogEntry] = ()
        self._sources: tuple[SourceAccount, ...] = ()
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
        """How often the replica went on to something else, though it be tried again: of one that hangs it stays."""
        return self._steps

    def begin(self, doing: str) -> None:
        """Note what begins; that alone is no progress."""
        with self._lock:
            self._go_on_to(doing)

    def look(self, frontier: int, waiting: Sequence[BacklogEntry]) -> None:
        """Note the next transaction and what waits for it, the oldest first."""
        with self._lock:
            self._pass_to(frontier)
            self._waiting, self._left = waiting, ()
            oldest = waiting[0].path if waiting else None
            self._moves, moved = protocol.on_look(self._moves, frontier, oldest)
            self._note(moved)

    def sources(self, accounts: tuple[SourceAccount, ...]) -> None:
        """Note how the sources are."""
        with self._lock:
            self._sources = accounts

    def reach(self, transaction: int | None, stage: int, done: int, doing: str) -> None:
        """Note that a transaction (None: the next one) has come to a stage."""
        with self._lock:
            self._go_on_to(doing)
            at = self._frontier if transaction is None else transaction
            self._moves, moved = protocol.on_stage(self._moves, at, stage, done)
            self._note(moved)

    def committed(self, transaction: int) -> None:
        """Note that we have published a transaction: more may be left to do, and nothing hinders us."""
        with self._lock:
            self._pass_to(transaction + 1)
            self._moves, _ = protocol.on_success(self._moves)
            self._note(moved=True)

    def failed(self, error: BaseException) -> None:
        """Note that a run failed."""
        with self._lock:
            self._failures += 1
            text = str(error) or type(error).__name__
            if isinstance(error, UnreadInputsError):  # all else is in
                self._moves, _ = protocol.on_success(self._moves)
                self._waits_for = text[:ERROR_MAX_CHARS]
                self._note(moved=True)
            else:
                self._moves = protocol.on_failure(self._moves)
                self._waits_for = None
            self._last_error, self._last_error_s = text[:ERROR_MAX_CHARS], time.time()
            self._go_on_to(None)

    def leave(self, waiting: Sequence[BacklogEntry]) -> None:
        """Note what a run leaves to the next look, the oldest first."""
        with self._lock:
            self._left = waiting

    def went_well(self) -> bool:
        """Note that a run came to its end, and that what waited at the last look is taken, or left to the next.

        Return whether others should know soon: it took something, or failed before.
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
        """Note that another live process uses the same name."""
        with self._lock:
            self._namesake = (namesake, time.time())

    def record(self) -> Replica:
        """Return the account as it stands, to be written now."""
        with self._lock:
            waiting, met, now_s = self._waiting, self._namesake, time.time()
            first = self._frontier if self._first is None else self._first
            return Replica(
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


def describe_all(store: KeyValueStore, upper: int) -> list[ReplicaInfo]:
    """Return all replicas as they are now, by name, the tables being at `upper`."""
    return [describe(replica, upper, time.time()) for replica in replicas(store)]


def describe(replica: Replica, upper: int, now_s: float) -> ReplicaInfo:
    """Return what a record says at a time, the tables being at `upper`."""
    answer = status(replica, now_s)
    return ReplicaInfo(
        name=replica.name,
        status=answer.word,
        reason=answer.reason,
        frontier=replica.frontier,
        transactions_behind=transactions_behind(replica, upper),
        waiting_inputs=replica.waiting_inputs,
        waiting_bytes=replica.waiting_bytes,
        oldest_waiting_s=oldest_age_s(replica, now_s),
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
    """Yield the records of replicas that are not whole."""
    return check_records(key_value, [PARTITION])
