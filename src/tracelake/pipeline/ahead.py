"""Reads the input of the next transaction beside the one that is published; `protocol.py` says when it stands."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

from tracelake._errors import TracelakeError
from tracelake.pipeline.protocol import stands_for
from tracelake.pipeline.rooms import Dependencies
from tracelake.pipeline.sources.port import Input
from tracelake.pipeline.staging import InputReader, ReadInput
from tracelake.pipeline.tries import Tries
from tracelake.tasks.progress import OnProgress, Progress

Beside: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Begins some work, and returns what waits until it is done."""


def in_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Work in a thread; see `Beside`."""
    # A daemon: a process that is told twice to stop does not wait.
    thread = threading.Thread(target=work, name="tracelake-read-ahead", daemon=True)
    thread.start()
    return thread.join


def at_once(work: Callable[[], None]) -> Callable[[], None]:
    """Work before anything else is done, as in a simulation; see `Beside`."""
    work()
    return lambda: None


class ReadAhead:
    """Input that is read beside a transaction, of one transaction at most."""

    def __init__(self, rooms: Dependencies, progress: OnProgress, beside: Beside | None) -> None:
        """Read by `beside`; None: nothing is read ahead."""
        self._beside = beside
        self._progress = progress
        self._reader = InputReader(rooms.objects, rooms.buckets, rooms.runner, self._tell)
        self._rooms = rooms
        self._inputs: tuple[Input, ...] = ()
        self._staged: ReadInput | None = None
        self._wait: Callable[[], None] | None = None
        self._reads_in = 0
        self._is_awaited = False
        self._is_dropped = False

    @cached_property
    def _tries(self) -> Tries:
        """A note of its own: who dies now has died of this input, or of the transaction beside it."""
        return self._rooms.tries.another()

    @property
    def is_on(self) -> bool:
        """Whether anything is read ahead at all."""
        return self._beside is not None

    def begin(self, t: int, inputs: Sequence[Input]) -> None:
        """Begin to read what may become transaction T. Raises what the store of notes raises, or who begins work."""
        assert self._beside is not None
        assert self._wait is None
        assert self._staged is None
        self._inputs, self._is_awaited, self._is_dropped = tuple(inputs), False, False
        try:
            self._tries.begin(t, inputs)
            self._wait = self._beside(self._read)
        except (Exception, KeyboardInterrupt, SystemExit):  # as where no thread can be started
            self._tries.end()
            raise

    def _read(self) -> None:
        self._reads_in = threading.get_ident()
        # Whatever fails here fails again, and counts, when its turn has come.
        with contextlib.suppress(Exception):
            self._staged = self._reader.stage(self._inputs)

    def _tell(self, step: Progress) -> None:
        self._tries.beat()
        if self._is_dropped and threading.get_ident() == self._reads_in:
            raise InterruptedError("nobody wants any more what is read")
        if self._is_awaited:
            self._progress(step)

    def end(self) -> None:
        """Wait until nothing is read beside any more: then what was read has its turn, or is dropped."""
        if self._wait is not None:
            self._is_awaited = not self._is_dropped
            self._wait()
            self._wait = None
            self._tries.end()

    def take(self, inputs: Sequence[Input]) -> ReadInput | None:
        """Return what was read, if it was just these inputs; else it is deleted.

        So it is where one of them was not read whole that time: it is read again as it is now.
        """
        self.end()
        staged = self._staged
        if staged is not None and stands_for(self._inputs, inputs) and staged.is_whole():
            self._staged = None
            return staged
        self.drop()
        return None

    def drop(self) -> None:
        """Delete what was read, as well as it goes: what is left is deleted when it is old."""
        self._is_dropped = True
        self.end()
        staged, self._staged = self._staged, None
        if staged is not None:
            with contextlib.suppress(TracelakeError, OSError):
                self._reader.discard(staged)
