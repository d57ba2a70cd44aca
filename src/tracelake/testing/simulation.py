"""Deterministic simulation of actors over simulated stores, one step per call, on one thread.

A run is a function of its choices. The stores, the clock and all ids belong to the run, so the same choices give the
same run, byte for byte, and `fingerprint` proves it. Actors are greenlets that yield at each call. A `Scenario`
defines the actors, the initial stores, and the rules that must hold during and after a run. Inside a run, `time` and
`uuid` return simulated values to actors, and real ones to all other code.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from greenlet import getcurrent, greenlet

from tracelake._errors import ContentionError, StorageError
from tracelake.storage import Version
from tracelake.testing import stores
from tracelake.testing.stores import Crashed

StandIn: TypeAlias = tuple[Any, str, Callable[..., Any]]
"""(a module, the name of a function in it, the replacement that actors call)."""
Body: TypeAlias = "Callable[[Process], object]"
"""The code of an actor; called again, from the beginning, after a restart. Its return value is its result."""


class Violation(AssertionError):  # noqa: N818  what the literature calls it
    """A run broke a rule. The message names the rule."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A process of the simulation."""

    name: str
    body: Body


class Scenario:
    """Actors over shared stores. It keeps no state between runs; subclasses define the rest.

    If an actor's body raises a StorageError, its process counts as failed and is restarted. Any other exception is a
    violation.
    """

    name = "scenario"
    steps_max = 1_000
    """Number of calls after which a run counts as endless."""

    def actors(self) -> list[Actor]:
        """Return the actors, the same at each call."""
        raise NotImplementedError

    def prepare(self, run: Run) -> None:
        """Fill the stores of a run before it begins."""

    def wall_s(self, who: str, now_s: float) -> float:
        """Return the wall-clock time of an actor's machine, which may be wrong; correct by default."""
        del who
        return now_s

    def steady_s(self, who: str, now_s: float) -> float:
        """Return the monotonic time of an actor's machine, which may have any origin."""
        del who
        return now_s

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Return replacements for functions that call other systems; only actors get them.

        `run.current()` is the process of the calling actor.
        """
        del run
        return ()

    def invariant(self, run: Run) -> None:
        """Raise Violation if the stores are in a forbidden state; called after each write."""

    def check(self, run: Run) -> None:
        """Raise Violation if a run, with all actors finished, ended in a wrong state."""


class Process:
    """A running actor: its view of the stores, and its observations."""

    def __init__(self, run: Run, index: int, actor: Actor) -> None:
        self.name = actor.name
        self.attempt = 0
        """Number of restarts."""
        self.finished = False
        self.dead = False
        self.result: object = None
        self.pending: stores.Call | None = None
        self.ready_ms = 0
        self.cut_off_until_ms = 0
        self.observations = 0
        self.key_value = stores.SimulatedKeyValueStore(run.key_value, self)
        self.objects = stores.SimulatedObjectStore(run.objects, self)
        self.notes = run.notes
        """The scenario's memory of this run, shared by all actors."""
        self._run = run
        self._index = index
        self._actor = actor
        self._writes = 0
        self._random = random.Random(index)  # noqa: S311  repeatable ids, not secrets
        self._greenlet: greenlet | None = None
        self._thread = threading.get_ident()

    def record(self, what: object) -> None:
        """Append to the history of the run, in order of events."""
        self._run.history.append((self.name, what))

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass; `time.sleep` does the same."""
        wait_ms = round(seconds * 1000)
        self.call(stores.Call(f"sleep {wait_ms} ms", (), lambda: None, wait_ms=wait_ms))

    def call(self, call: stores.Call) -> Any:
        """Wait until the scheduler makes the call; return or raise its result."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                f"{self.name} called from another thread: stand in for what starts one (`Scenario.stand_ins`)"
            )
        if self.dead or not self.is_current():
            raise Crashed(f"{self.name} is dead, and makes no calls")
        self.pending = call
        return self._run.hub.switch()

    def new_version(self) -> Version:
        """Return the version of this actor's next write."""
        self._writes += 1
        return f"{self.name}-{self._writes}"

    def new_uuid(self) -> uuid.UUID:
        """Return this actor's next random id."""
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def now_s(self) -> float:
        """Return the simulated time in seconds."""
        return self._run.now_ms / 1000

    def is_current(self) -> bool:
        """Return whether this actor is running now."""
        return self._greenlet is getcurrent()

    def start(self) -> None:
        """Run the body up to its first call."""
        self.dead = False
        self._greenlet = greenlet(self._live, self._run.hub)
        self._greenlet.switch()

    def resume(self, answer: object) -> None:
        """Answer the pending call, by raising if the answer is an exception; run up to the next call."""
        assert self._greenlet is not None
        self.pending = None
        if isinstance(answer, BaseException):
            self._greenlet.throw(answer)
        else:
            self._greenlet.switch(answer)

    def kill(self) -> None:
        """End the body at its pending call."""
        self.dead = True
        self.pending = None
        if self._greenlet is not None and not self._greenlet.dead:
            self._greenlet.throw(Crashed(f"{self.name} was killed"))

    def _live(self) -> None:
        try:
            self.result = self._actor.body(self)
        except Crashed:
            return
        except Exception as error:  # noqa: BLE001  the simulation searches for any failure
            # A few actors cannot lose so many races, so contention means that one of them makes no progress.
            if isinstance(error, StorageError) and not isinstance(error, ContentionError):
                self._run.fail(self._index, error)
                return
            self._run.error = Violation(f"{self.name} stopped: {type(error).__name__}: {error}")
            self._run.error.__cause__ = error
        else:
            self.finished = True


class TimeSource(Protocol):
    """Source of time and ids for actors."""

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""

    def now_s(self) -> float:
        """Return the simulated time in seconds."""

    def new_uuid(self) -> uuid.UUID:
        """Return an id that is the same in every run of the same schedule."""

    def is_inside(self) -> bool:
        """Return whether the caller is an actor."""


class Simulated:
    """Replaces `time.sleep`, `time.time`, `time.monotonic` and `uuid.uuid4` for actors while entered.

    Code must call them through their modules, as `time.sleep(1)`. One object serves a run, and is entered for each
    step.
    """

    def __init__(
        self,
        source: TimeSource,
        wall_s: Callable[[], float] | None = None,
        steady_s: Callable[[], float] | None = None,
        others: Sequence[tuple[Any, str, Callable[..., Any]]] = (),
    ) -> None:
        """Use the current functions for all other callers.

        `wall_s` and `steady_s` replace `time.time` and `time.monotonic` if their clocks differ from the run's.
        `others` are functions of other modules, each with its replacement for actors.
        """
        ours: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
            (time, "sleep", source.sleep),
            (time, "time", wall_s or source.now_s),
            (time, "monotonic", steady_s or source.now_s),
            (uuid, "uuid4", source.new_uuid),
            *others,
        )
        self._before = [(module, name, getattr(module, name)) for module, name, _ in ours]
        self._either = [
            (module, name, _either(source, inside, getattr(module, name))) for module, name, inside in ours
        ]

    def __enter__(self) -> None:
        for module, name, function in self._either:
            setattr(module, name, function)

    def __exit__(self, *_: object) -> None:
        for module, name, function in self._before:
            setattr(module, name, function)


def _either(
    source: TimeSource, inside: Callable[..., Any], outside: Callable[..., Any]
) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return inside(*args, **kwargs) if source.is_inside() else outside(*args, **kwargs)

    return answer


TIMEOUT_MS = 1_000
"""Time after which a partitioned actor's call times out."""


class Run:
    """The stores, the processes and the clock of one run. `step` executes one choice."""

    def __init__(self, scenario: Scenario, faults: stores.Faults, *, step_ms: int = 0) -> None:
        self.scenario = scenario
        self.key_value = stores.KeyValueModel()
        self.objects = stores.ObjectModel()
        observer = stores.Observer()
        self.direct_key_value = stores.SimulatedKeyValueStore(self.key_value, observer)
        """The store without the scheduler, for `prepare` and the checks; `direct_objects` likewise."""
        self.direct_objects = stores.SimulatedObjectStore(self.objects, observer)
        self.history: list[tuple[str, object]] = []
        """Records of the actors: (actor, object)."""
        self.notes: dict[str, Any] = {}
        """The scenario's memory of this run, such as the last state that its invariant saw."""
        self.now_ms = 0
        self.stalled_until_ms = 0
        self.budget = [getattr(faults, kind) for kind in stores.BUDGETS]
        self.injected = 0
        self.choices: list[stores.Choice] = []
        self.trace: list[tuple[int, str, stores.Fate, str, object]] = []
        self.error: Violation | None = None
        self.hub = getcurrent()
        self._restart = faults.restart
        self._step_ms = step_ms
        self._to_start: list[int] = []
        self._in_flight: list[tuple[int, stores.Call]] = []
        self.processes = [Process(self, index, actor) for index, actor in enumerate(scenario.actors())]
        scenario.prepare(self)
        self._simulated = Simulated(self, self.wall_s, self.steady_s, scenario.stand_ins(self))
        with self._simulated:
            for process in self.processes:
                process.start()

    def active(self) -> list[int]:
        """Return the actors with a pending call."""
        return [index for index, process in enumerate(self.processes) if process.pending is not None]

    def landing(self) -> list[int]:
        """Return the actors with a late write: its caller got an unknown outcome, and the write may still take
        effect."""
        return sorted({index for index, _ in self._in_flight})

    def landing_touches(self, index: int) -> tuple[stores.Touch, ...]:
        """Return the keys that an actor's next late write touches."""
        return next(call.touches for owner, call in self._in_flight if owner == index)

    def ready_ms(self, index: int) -> int:
        """Return the earliest simulated time of the next call of actor number `index`."""
        process = self.processes[index]
        waits = process.pending is not None and process.pending.touches
        return max(process.ready_ms, self.stalled_until_ms) if waits else process.ready_ms

    def may(self, choice: stores.Choice) -> bool:
        """Return whether a choice is possible now."""
        index, outcome = choice.actor, choice.fate
        if outcome is stores.Fate.LAND:
            return any(owner == index for owner, _ in self._in_flight)
        call = self.processes[index].pending if index < len(self.processes) else None
        if call is None:
            return False
        if outcome is stores.Fate.DONE:
            return True
        if self.budget[stores.BUDGET_OF[outcome]] <= 0:
            return False
        return outcome >= stores.Fate.KILL or outcome in call.outcomes

    def step(self, choice: stores.Choice) -> None:
        """Execute a possible choice, and check the invariant after a write."""
        self.choices.append(choice)
        if choice.fate not in (stores.Fate.DONE, stores.Fate.LAND):
            self.budget[stores.BUDGET_OF[choice.fate]] -= 1
            self.injected += 1
        before = (self.key_value.digest, self.objects.digest)
        with self._simulated:
            self._carry_out(choice)
            while self._to_start:
                self.processes[self._to_start.pop()].start()
        if self.error is None and before != (self.key_value.digest, self.objects.digest):
            self._judge(self.scenario.invariant)
        if len(self.choices) > self.scenario.steps_max and self.error is None:
            self.error = Violation(
                f"no end after {self.scenario.steps_max} calls: the actors make no progress"
            )

    def finish(self) -> None:
        """Let late writes land, and check the final state."""
        while self._in_flight and self.error is None:
            self.step(stores.Choice(self._in_flight[0][0], stores.Fate.LAND))
        for process in self.processes:
            if self.error is None and not process.finished and not process.dead:
                self.error = Violation(f"{process.name} neither finished nor died")
        if self.error is None:
            self._judge(self.scenario.check)
        self.close()

    def close(self) -> None:
        """End all actors; calling it twice is allowed."""
        for process in self.processes:
            process.kill()

    def state(self) -> int:
        """Return a hash of everything that determines the future: stores, actors' observations, remaining faults."""
        in_flight = tuple((owner, call.text) for owner, call in self._in_flight)
        observations = tuple(process.observations for process in self.processes)
        return hash((self.key_value.digest, self.objects.digest, observations, tuple(self.budget), in_flight))

    def fingerprint(self) -> str:
        """Return a hash of the whole trace: equal for equal runs, in any process."""
        return hashlib.sha256("\n".join(map(repr, self.trace)).encode()).hexdigest()

    def story(self) -> str:
        """Return the run as a readable interleaving, one line per step."""
        return "\n".join(
            f"{number:4} {clock / 1000:9.3f} s  {name:<12} {text}  {stores.MEANING[outcome] or _brief(result)}"
            for number, (clock, name, outcome, text, result) in enumerate(self.trace, 1)
        )

    def fail(self, index: int, error: StorageError) -> None:
        """Record that a store failure ended an actor's body, which restarts from the beginning."""
        process = self.processes[index]
        process.attempt += 1
        process.observations = hash((process.observations, str(error)))
        self._to_start.append(index)

    # The methods that `Simulated` calls for an actor.
    def is_inside(self) -> bool:
        """Return whether an actor is running now, not the scheduler."""
        return getcurrent() is not self.hub

    def now_s(self) -> float:
        """Return the simulated time in seconds."""
        return self.now_ms / 1000

    def wall_s(self) -> float:
        """Return the wall-clock time of the calling actor's machine."""
        return self.scenario.wall_s(self.current().name, self.now_s())

    def steady_s(self) -> float:
        """Return the monotonic time of the calling actor's machine."""
        return self.scenario.steady_s(self.current().name, self.now_s())

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass for the calling actor."""
        self.current().sleep(seconds)

    def new_uuid(self) -> uuid.UUID:
        """Return the next random id of the calling actor."""
        return self.current().new_uuid()

    def current(self) -> Process:
        """Return the process of the running actor."""
        return next(process for process in self.processes if process.is_current())

    def _carry_out(self, choice: stores.Choice) -> None:
        index, outcome, wait_ms = choice
        process = self.processes[index]
        if outcome is stores.Fate.LAND:
            position = next(at for at, (owner, _) in enumerate(self._in_flight) if owner == index)
            _, call = self._in_flight.pop(position)
            self._note(process, outcome, call.text, _effect(call))
            return
        pending = process.pending
        assert pending is not None, choice
        self.now_ms = max(self.now_ms + self._step_ms, self.ready_ms(index))
        if outcome is stores.Fate.KILL:
            self._note(process, outcome, pending.text, None)
            process.kill()
            process.observations = hash((process.observations, "killed"))
            if self._restart:
                process.attempt += 1
                process.ready_ms = self.now_ms + wait_ms
                self._to_start.append(index)
        elif outcome in (stores.Fate.DELAY, stores.Fate.STALL, stores.Fate.PARTITION):
            self._note(process, outcome, f"{wait_ms} ms at {pending.text}", None)
            until = self.now_ms + wait_ms
            if outcome is stores.Fate.DELAY:
                process.ready_ms = until
            elif outcome is stores.Fate.STALL:
                self.stalled_until_ms = until
            else:
                process.cut_off_until_ms = until
        else:
            self._answer(process, index, pending, outcome)

    def _answer(self, process: Process, index: int, call: stores.Call, outcome: stores.Fate) -> None:
        if call.touches and self.now_ms < process.cut_off_until_ms and outcome is stores.Fate.DONE:
            outcome = stores.Fate.LOST_BEFORE
            process.ready_ms = self.now_ms + TIMEOUT_MS
        happened = _effect(call) if outcome in (stores.Fate.DONE, stores.Fate.LOST_AFTER) else None
        if outcome is stores.Fate.DONE:
            answer = happened
        elif outcome is stores.Fate.REFUSED:
            answer = StorageError(f"simulated: the store refused {call.text}")
        else:
            answer = call.answer_unknown()
        if outcome is stores.Fate.LATE:
            self._in_flight.append((index, call))
        process.ready_ms = max(process.ready_ms, self.now_ms + call.wait_ms)
        self._note(process, outcome, call.text, answer)
        process.observations = hash((process.observations, call.text, _frozen(answer)))
        process.resume(answer)

    def _note(self, process: Process, outcome: stores.Fate, text: str, result: object) -> None:
        self.trace.append((self.now_ms, process.name, outcome, text, _frozen(result)))

    def _judge(self, rule: Any) -> None:
        try:
            rule(self)
        except Violation as violation:
            self.error = violation
        except Exception as error:  # noqa: BLE001  a store that cannot be read any more is a violation, too
            self.error = Violation(f"{type(error).__name__}: {error}")
            self.error.__cause__ = error


def _effect(call: stores.Call) -> object:
    try:
        return call.effect()
    except Exception as error:  # noqa: BLE001  a port may raise, as NotFoundError: the answer is the error
        return error


def _frozen(answer: object) -> object:
    """Return an answer as a hashable object that prints the same in every process."""
    if isinstance(answer, BaseException):
        return f"{type(answer).__name__}: {answer}"
    return tuple(answer) if isinstance(answer, list) else answer


def _brief(result: object) -> str:
    text = repr(result)
    return "→ " + (text if len(text) <= 100 else text[:99] + "…")


def replay(
    scenario: Scenario, faults: stores.Faults, choices: Sequence[stores.Choice], *, step_ms: int = 0
) -> Run:
    """Run a schedule to its end, skipping impossible choices.

    After the schedule, the last actor continues, then the next, without faults.
    """
    run = Run(scenario, faults, step_ms=step_ms)
    for choice in choices:
        if run.error is not None:
            break
        if run.may(choice):
            run.step(choice)
    last = run.choices[-1].actor if run.choices else 0
    while run.error is None and (active := run.active()):
        last = last if last in active else active[0]
        run.step(stores.Choice(last))
    run.finish()
    return run
