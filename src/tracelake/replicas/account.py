"""What a replica knows of its own work. The main loop writes it, and the heartbeat reads it."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from tracelake._errors import UnreadInputsError
from tracelake.limits import ERROR_MAX_CHARS, REPLICA_GONE_S
from tracelake.replicas import protocol
from tracelake.replicas.model import Replica, SourceAccount
from tracelake.replicas.protocol import Advance


@dataclass(frozen=True, slots=True)
class Waiting:
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
        self._waiting: Sequence[Waiting] = ()
        self._left: Sequence[Waiting] = ()
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

    def look(self, frontier: int, waiting: Sequence[Waiting]) -> None:
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

    def leave(self, waiting: Sequence[Waiting]) -> None:
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
