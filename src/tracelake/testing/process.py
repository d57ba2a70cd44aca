"""One actor as it runs: a greenlet that gives way at each call."""

from __future__ import annotations

import random
import threading
import uuid
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from tracelake._errors import ContentionError, StorageError
from tracelake.storage import Version
from tracelake.testing.calls import Call
from tracelake.testing.crashes import Crashed
from tracelake.testing.scenario import Actor, Violation
from tracelake.testing.simulated import SimulatedKeyValueStore, SimulatedObjectStore

if TYPE_CHECKING:
    from tracelake.testing.simulation import Run


class Process:
    """One actor as it runs: its view of the stores, and what it has seen."""

    def __init__(self, run: Run, index: int, actor: Actor) -> None:
        self.name = actor.name
        self.attempt = 0
        """How often it has been started again."""
        self.finished = False
        self.dead = False
        self.result: object = None
        self.pending: Call | None = None
        self.ready_ms = 0
        self.cut_off_until_ms = 0
        self.seen = 0
        self.key_value = SimulatedKeyValueStore(run.key_value, self)
        self.objects = SimulatedObjectStore(run.objects, self)
        self.notes = run.notes
        """What the scenario remembers of this run, shared by all its actors."""
        self._run = run
        self._index = index
        self._actor = actor
        self._writes = 0
        self._random = random.Random(index)  # noqa: S311  repeatable ids, not secrets
        self._greenlet: greenlet | None = None
        self._thread = threading.get_ident()

    def record(self, what: object) -> None:
        """Add to the history of the run, in the order of things happening."""
        self._run.history.append((self.name, what))

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass; `time.sleep` does the same."""
        wait_ms = round(seconds * 1000)
        self.call(Call(f"sleep {wait_ms} ms", (), lambda: None, wait_ms=wait_ms))

    def call(self, call: Call) -> Any:
        """Wait until the scheduler carries the call out; return or raise what came of it."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                f"{self.name} called from another thread: stand in for what starts one (`Scenario.stand_ins`)"
            )
        if self.dead or not self.is_current():
            raise Crashed(f"{self.name} is dead, and makes no calls")
        self.pending = call
        return self._run.hub.switch()

    def new_version(self) -> Version:
        """Return the identity of this actor's next write."""
        self._writes += 1
        return f"{self.name}-{self._writes}"

    def new_uuid(self) -> uuid.UUID:
        """Return this actor's next random id."""
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def now_s(self) -> float:
        """Return the simulated time in seconds."""
        return self._run.now_ms / 1000

    def is_current(self) -> bool:
        """Whether this actor runs now."""
        return self._greenlet is getcurrent()

    def start(self) -> None:
        """Begin the body, up to its first call."""
        self.dead = False
        self._greenlet = greenlet(self._live, self._run.hub)
        self._greenlet.switch()

    def resume(self, answer: object) -> None:
        """Give the answer to the pending call, an exception to raise included; run up to the next call."""
        assert self._greenlet is not None
        self.pending = None
        if isinstance(answer, BaseException):
            self._greenlet.throw(answer)
        else:
            self._greenlet.switch(answer)

    def kill(self) -> None:
        """End the body where it stands."""
        self.dead = True
        self.pending = None
        if self._greenlet is not None and not self._greenlet.dead:
            self._greenlet.throw(Crashed(f"{self.name} was killed"))

    def _live(self) -> None:
        try:
            self.result = self._actor.body(self)
        except Crashed:
            return
        except Exception as error:  # noqa: BLE001  whatever it is, it is what the simulation looks for
            # A few actors do not lose so many races: contention tells that one of them runs in circles.
            if isinstance(error, StorageError) and not isinstance(error, ContentionError):
                self._run.fail(self._index, error)
                return
            self._run.error = Violation(f"{self.name} stopped: {type(error).__name__}: {error}")
            self._run.error.__cause__ = error
        else:
            self.finished = True
