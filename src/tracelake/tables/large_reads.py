"""Turns of requests that read traces whose rows take much memory, which are few at a time in one process.

Rows become objects of Python and a document: what a trace of 450 MB takes for its answer is eight times as much, and
three of them at once took 8 GB. So one of them is made at a time, and few wait to be sent, however slow who reads them
is. Who waits has a thread that others need, so few do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock, Semaphore
from typing import Final

from tracelake import limits
from tracelake._errors import BackPressureError

_TOO_MANY: Final = "other large traces take too long to be read; read this one again later"


class Turns:
    """So many at a time, and few who wait for them; others are told why. Threads may share it."""

    def __init__(self, at_once: int, refusal: str = _TOO_MANY) -> None:
        self._refusal = refusal
        self._free = Semaphore(at_once)
        self._lock = Lock()
        self._waiting = 0

    def begin(self) -> None:
        """Wait for a turn, which `end` ends, in any thread. Raises BackPressureError."""
        if self._free.acquire(blocking=False):
            return
        with self._lock:
            if self._waiting >= limits.LARGE_TRACES_WAITING_MAX:
                raise BackPressureError(self._refusal)
            self._waiting += 1
        try:
            if not self._free.acquire(timeout=limits.HOT_TRACE_WAIT_S):
                raise BackPressureError(self._refusal)
        finally:
            with self._lock:
                self._waiting -= 1

    def end(self) -> None:
        """End a turn."""
        self._free.release()


class LargeReads:
    """What one request takes of the turns of its process."""

    def __init__(self, answers: Turns, making: Turns) -> None:
        self._answers, self._making = answers, making
        self._is_answered = self._is_made = False

    def begin(self) -> None:
        """Wait until what is large may be made for this request, unless it may be by now. Raises BackPressureError."""
        if not self._is_answered:
            self._answers.begin()
            self._is_answered = True
        if not self._is_made:
            self._making.begin()
            self._is_made = True

    def made(self) -> None:
        """Say that the answer is made: what is left of it are its bytes."""
        if self._is_made:
            self._is_made = False
            self._making.end()

    def sent(self) -> None:
        """Say that nothing is left of it."""
        self.made()
        if self._is_answered:
            self._is_answered = False
            self._answers.end()


_ANSWERS: Final = Turns(limits.LARGE_TRACES_ANSWERED_MAX)
_MAKING: Final = Turns(1)
_OF_REQUEST: Final[ContextVar[LargeReads | None]] = ContextVar("tracelake_large_reads", default=None)


@contextmanager
def large_reads(answers: Turns = _ANSWERS, making: Turns = _MAKING) -> Iterator[LargeReads]:
    """Bound what is read here, and in threads that are begun from here: it is one request until the end of this."""
    reads = LargeReads(answers, making)
    token = _OF_REQUEST.set(reads)
    try:
        yield reads
    finally:
        _OF_REQUEST.reset(token)
        reads.sent()


def begin_large_read() -> None:
    """Wait for a turn where a request is answered. Raises BackPressureError."""
    if (reads := _OF_REQUEST.get()) is not None:
        reads.begin()
