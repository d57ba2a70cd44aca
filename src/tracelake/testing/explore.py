"""Exploration of a scenario's schedules: exhaustive, random, shrinking of failures, and reports.

`explore` runs every schedule of a small scenario, up to the order of independent calls. It searches depth first, and
replays each schedule from its beginning. Two reductions keep the search small, and both keep every reachable state.
*Sleep sets* (Godefroid 1996) omit schedules that differ from an earlier one only in the order of calls that commute. In
addition, a state that was reached before is not explored again, unless fewer choices slept there.

`search` runs random schedules of larger scenarios. Each run has a separate seed, which replays it byte for byte.
`shrink` shortens a failing schedule by omitting choices that the failure does not need.

`find_contradiction` checks that a history of calls on a key-value store is linearizable (Herlihy & Wing 1990).

Keys are independent, so each is checked separately. The search is that of Wing and Gong (1993). It takes any call
that began before every other remaining call ended, applies it to the model, and continues. It remembers visited
states.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from tracelake.storage import Conflict, Done, Entry, Expected, Indeterminate, KeyValueStore, Outcome, Version
from tracelake.storage.ports import is_at
from tracelake.storage.wrappers import DelegatingKeyValueStore
from tracelake.testing.simulation import Run, Scenario, replay
from tracelake.testing.stores import Choice, Fate, Faults, Touch, commute


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that broke a rule, shrunk to a short schedule."""

    scenario: str
    message: str
    seed: int | None
    """The seed of the random run; None for the exhaustive search."""
    schedule: int
    """Number of the schedule in the search, from 1."""
    choices: tuple[Choice, ...]
    """The shrunk schedule, for `replay`."""
    story: str
    """The shrunk run as a readable interleaving."""

    def __str__(self) -> str:
        """Return a report of the failure with the rule, the seed and the interleaving."""
        how = "exhaustive search" if self.seed is None else f"seed {self.seed}"
        return (
            f"{self.scenario}: {self.message}\n"
            f"found by {how}, schedule {self.schedule}; shrunk to {len(self.choices)} steps:\n{self.story}"
        )


@dataclass(slots=True)
class Report:
    """Totals of a search over the schedules of one or several scenarios."""

    schedules: int = 0
    completed: int = 0
    """Runs in which every actor finished, except those that were killed without a restart."""
    steps: int = 0
    states: int = 0
    """Distinct states: stores, and the observations of each actor."""
    faults: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    """Whether an exhaustive search covered all schedules within its bounds, up to the order of independent calls."""
    failures: list[FailedRun] = field(default_factory=list)

    @property
    def violations(self) -> int:
        """Return the number of reported runs that broke a rule."""
        return len(self.failures)

    def add(self, other: Report) -> None:
        """Add the totals of another search."""
        self.schedules += other.schedules
        self.completed += other.completed
        self.steps += other.steps
        self.states += other.states
        self.faults += other.faults
        self.seconds += other.seconds
        self.failures += other.failures

    def __str__(self) -> str:
        """Return the totals on one line."""
        rate = self.schedules / self.seconds if self.seconds else 0.0
        return (
            f"{self.schedules:,} schedules ({self.completed:,} completed), {self.states:,} distinct states, "
            f"{self.steps:,} calls, {self.faults:,} faults, {self.violations} violations, "
            f"{rate:,.0f} schedules/s"
        )


REPLAYS_MAX = 400
"""Maximum number of replays for one shrinking."""


def shrink(scenario: Scenario, faults: Faults, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return a shorter schedule that still breaks a rule, possibly another one.

    `replay` skips impossible choices and continues by itself after the end, so any subset of a schedule is valid.
    Pieces of half the length are omitted first, single choices last.
    """
    best = tuple(choices)
    size = max(1, len(best) // 2)
    replays = 0
    while replays < REPLAYS_MAX:
        at, shorter = 0, False
        while at < len(best) and replays < REPLAYS_MAX:
            candidate = best[:at] + best[at + size :]
            replays += 1
            if replay(scenario, faults, candidate).error is not None:
                best, shorter = candidate, True
            else:
                at += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return best


def failure(
    scenario: Scenario, faults: Faults, run: Run, *, seed: int | None, schedule: int, shortens: bool
) -> FailedRun:
    """Describe a run that broke a rule; `shortens` decides whether to shrink it first."""
    choices, again = tuple(run.choices), run
    if shortens:
        shorter = shrink(scenario, faults, choices)
        replayed = replay(scenario, faults, shorter)
        if replayed.error is not None:  # otherwise it depends on the clock: report the original run
            choices, again = shorter, replayed
    return FailedRun(scenario.name, str(again.error), seed, schedule, choices, again.story())


_INSTANT = (Fate.DONE, Fate.LOST_AFTER, Fate.LOST_BEFORE, Fate.REFUSED, Fate.LATE, Fate.KILL)
"""Faults without a duration. Delays, stalls and partitions are omitted, because without a clock they only reorder
calls or lose replies."""

Sleeping = dict[Choice, tuple[Touch, ...]]


@dataclass(slots=True)
class _Node:
    choice: Choice
    todo: list[Choice]
    sleep: Sleeping
    touches: Sleeping = field(default_factory=dict)


def explore(
    scenario: Scenario,
    faults: Faults,
    *,
    schedules_max: int,
    stop_at_first: bool = True,
    shortens: bool = True,
) -> Report:
    """Run all schedules of a scenario, at most `schedules_max`, and report.

    The report's `is_complete` is True if these were all. `check` must depend only on the stores and on each actor's
    observations, because runs that agree on both are treated as one. `shortens` as for `search`.
    """
    report = Report()
    began = time.perf_counter()
    visited: dict[int, list[frozenset[Choice]]] = {}
    path: list[_Node] = []
    while True:
        if report.schedules >= schedules_max:
            break
        run = Run(scenario, faults)
        for node in path:
            run.step(node.choice)
        cut = _extend(run, path, visited)
        if cut:
            run.close()
        else:
            report.schedules += 1
            report.steps += len(run.choices)
            report.faults += run.injected
            run.finish()
            report.completed += all(process.finished for process in run.processes)
            if run.error is not None:
                report.failures.append(
                    failure(scenario, faults, run, seed=None, schedule=report.schedules, shortens=shortens)
                )
                if stop_at_first:
                    break
        if not _back(path):
            report.is_complete = True
            break
    report.states = len(visited)
    report.seconds = time.perf_counter() - began
    return report


def _extend(run: Run, path: list[_Node], visited: dict[int, list[frozenset[Choice]]]) -> bool:
    """Continue with the first choice at each new state. Return True if the continuation was explored before."""
    while run.error is None:
        sleep = _sleep_after(path[-1]) if path else {}
        if not run.active():
            return False
        touches = _choices(run)
        asleep = frozenset(sleep)
        before = visited.setdefault(run.state(), [])
        if any(other <= asleep for other in before):
            return True
        before.append(asleep)
        todo = [choice for choice in touches if choice not in sleep]
        if not todo:
            return True
        node = _Node(todo.pop(0), todo, sleep, touches)
        path.append(node)
        run.step(node.choice)
    return False


def _back(path: list[_Node]) -> bool:
    """Go back to the last state with a choice left, and take it. Otherwise return False."""
    while path:
        node = path[-1]
        if node.todo:
            node.sleep = {**node.sleep, node.choice: node.touches[node.choice]}
            node.choice = node.todo.pop(0)
            return True
        path.pop()
    return False


def _choices(run: Run) -> Sleeping:
    """Return all choices of a state with the keys that they touch, those without a fault first."""
    choices: Sleeping = {}
    for outcome in _INSTANT:
        for index in run.active():
            choice = Choice(index, outcome)
            if run.may(choice):
                pending = run.processes[index].pending
                assert pending is not None
                choices[choice] = () if outcome is Fate.KILL else pending.touches
    for index in run.landing():
        choices[Choice(index, Fate.LAND)] = run.landing_touches(index)
    return choices


def _sleep_after(node: _Node) -> Sleeping:
    """Return the sleep set after a node's choice: sleeping choices that commute with it."""
    chosen = node.choice
    touches = node.touches[chosen]
    return {
        choice: theirs
        for choice, theirs in node.sleep.items()
        if choice.actor != chosen.actor
        and not (_is_fault(choice) and _is_fault(chosen))
        and commute(touches, theirs)
    }


def _is_fault(choice: Choice) -> bool:
    # Faults share a budget, so one may make another impossible; they never commute.
    return choice.fate not in (Fate.DONE, Fate.LAND)


STATES_MAX = 2_000_000
"""Maximum number of distinct states that one search counts."""
_CLOCKED = (Fate.DELAY, Fate.STALL, Fate.PARTITION, Fate.KILL)
_WAITS_MS = (3, 50, 2_000, 10_000)


@dataclass(frozen=True, slots=True)
class _Temper:
    """Random character of one run. Runs differ in kind, so that each shows behaviour that others never do."""

    fault_rate: float
    stay_rate: float
    """Probability that the actor of the last call also makes the next one."""
    favourite: int | None
    """An actor that the scheduler always prefers when it is ready (V3)."""


def _temper(rng: random.Random, actors: int) -> _Temper:
    return _Temper(
        fault_rate=rng.choice((0.0, 0.02, 0.1, 0.3)),
        stay_rate=rng.choice((0.0, 0.5, 0.9)),
        favourite=rng.randrange(actors) if rng.random() < 0.1 else None,
    )


def run_once(scenario: Scenario, faults: Faults, seed: int, seen: set[int] | None = None) -> Run:
    """Run and check a scenario by the schedule of one seed; add its states to `seen`."""
    rng = random.Random(seed)  # noqa: S311  repeatable, not secret
    run = Run(scenario, faults, step_ms=1)
    temper = _temper(rng, len(run.processes))
    # Each kind of fault is disabled in half of the runs, so that rare combinations occur.
    run.budget = [count if rng.random() < 0.5 else 0 for count in run.budget]
    while run.error is None and (active := run.active()):
        run.step(_pick(run, rng, temper, active))
        if seen is not None and len(seen) < STATES_MAX:
            seen.add(run.state())
    run.finish()
    return run


def _pick(run: Run, rng: random.Random, temper: _Temper, active: list[int]) -> Choice:
    landing = run.landing()
    if landing and rng.random() < 0.2:
        return Choice(rng.choice(landing), Fate.LAND)
    actor = _actor(run, rng, temper, active)
    if temper.fault_rate and rng.random() < temper.fault_rate:
        possible = [
            outcome for outcome in Fate if outcome is not Fate.LAND and run.may(Choice(actor, outcome))
        ]
        outcome = rng.choice(possible)
        return Choice(actor, outcome, rng.choice(_WAITS_MS) if outcome in _CLOCKED else 0)
    return Choice(actor)


def _actor(run: Run, rng: random.Random, temper: _Temper, active: list[int]) -> int:
    ready = [index for index in active if run.ready_ms(index) <= run.now_ms]
    if not ready:
        soonest = min(run.ready_ms(index) for index in active)
        ready = [index for index in active if run.ready_ms(index) == soonest]
    if temper.favourite in ready:
        return temper.favourite
    if (last := run.choices[-1].actor if run.choices else -1) in ready and rng.random() < temper.stay_rate:
        return last
    return rng.choice(ready)


def search(
    scenario: Scenario,
    faults: Faults,
    *,
    seed: int,
    schedules_max: int,
    seconds: float = float("inf"),
    stop_at_first: bool = True,
    shortens: bool = True,
) -> Report:
    """Run random schedules with the seeds `seed`, `seed` + 1, … up to one of the limits, and report.

    A run with an unfinished actor, unless it was killed without a restart, is a violation. Without `shortens` a
    failing run is reported as found, which saves hundreds of replays.
    """
    report = Report()
    states: set[int] = set()
    began = time.perf_counter()
    while report.schedules < schedules_max and time.perf_counter() - began < seconds:
        run = run_once(scenario, faults, seed + report.schedules, states)
        report.schedules += 1
        report.steps += len(run.choices)
        report.faults += run.injected
        report.completed += all(process.finished for process in run.processes)
        if run.error is not None:
            this = seed + report.schedules - 1
            report.failures.append(
                failure(scenario, faults, run, seed=this, schedule=report.schedules, shortens=shortens)
            )
            if stop_at_first:
                break
    report.states = len(states)
    report.seconds = time.perf_counter() - began
    return report


ResultT = TypeVar("ResultT")
Kind = Literal["get", "set", "set_if", "delete_if"]
_UNKNOWN_VERSION = ""
"""Version of a write whose lost reply named none."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call on one key: its begin, end and result."""

    caller: str
    kind: Kind
    key: tuple[str, str]
    value: bytes
    expected: Expected | None
    result: object
    """The port's return value, or its exception, which counts as an unknown outcome."""
    began: int
    ended: float
    """Infinite if the outcome is unknown: the call may still take effect, or never."""


class RecordingKeyValueStore(DelegatingKeyValueStore):
    """A KeyValueStore that records every call on a single record in a history; thread-safe."""

    def __init__(
        self, store: KeyValueStore, history: list[Operation], caller: str, clock: Iterator[int] | None = None
    ) -> None:
        """Record the calls of one caller. All callers of a history share a clock, an `itertools.count()`."""
        super().__init__(store)
        self._history = history
        self._caller = caller
        self._clock = clock or itertools.count()

    def get(self, partition: str, key: str) -> Entry | None:
        """See KeyValueStore."""
        return self._record("get", (partition, key), b"", None, lambda: self.store.get(partition, key))

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """See KeyValueStore."""
        return self._record(
            "set", (partition, key), value, None, lambda: self.store.set(partition, key, value)
        )

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """See KeyValueStore."""
        write = partial(self.store.set_if, partition, key, value, expected)
        return self._record("set_if", (partition, key), value, expected, write)

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """See KeyValueStore."""
        delete = partial(self.store.delete_if, partition, key, expected)
        return self._record("delete_if", (partition, key), b"", expected, delete)

    def _record(
        self,
        kind: Kind,
        key: tuple[str, str],
        value: bytes,
        expected: Expected | None,
        call: Callable[[], ResultT],
    ) -> ResultT:
        began = next(self._clock)
        try:
            result = call()
        except BaseException as error:
            self._history.append(Operation(self._caller, kind, key, value, expected, error, began, math.inf))
            raise
        ended = math.inf if isinstance(result, Indeterminate) else next(self._clock)
        self._history.append(Operation(self._caller, kind, key, value, expected, result, began, ended))
        return result


def find_contradiction(history: list[Operation]) -> str | None:
    """Return the first key whose calls have no valid order, with its calls; None if the history is linearizable."""
    for key in sorted({operation.key for operation in history}):
        calls = sorted((call for call in history if call.key == key), key=lambda call: call.began)
        if not _explained(calls):
            listing = "\n".join(
                f"  {call.began:4}-{call.ended:<4} {call.caller:<12} {call.kind} {call.value!r} "
                f"at {call.expected} → {call.result!r}"
                for call in calls
            )
            return f"no order of the calls on {'/'.join(key)} explains their results:\n{listing}"
    return None


def _explained(calls: list[Operation]) -> bool:
    completed = frozenset(index for index, call in enumerate(calls) if call.ended != math.inf)
    been: set[tuple[frozenset[int], Entry | None]] = set()
    todo: list[tuple[frozenset[int], Entry | None]] = [(frozenset(), None)]
    while todo:
        place = todo.pop()
        if place in been:
            continue
        been.add(place)
        applied, state = place
        if completed <= applied:
            return True
        remaining = [index for index in range(len(calls)) if index not in applied]
        first_end = min(calls[index].ended for index in remaining)
        todo += [
            (applied | {index}, after)
            for index in remaining
            if calls[index].began < first_end
            for after in _apply(calls[index], state)
        ]
    return False


def _apply(call: Operation, state: Entry | None) -> list[Entry | None]:
    """Return the possible state after a call; an empty list if this state cannot give the call's result."""
    match call.result:
        case BaseException() | Indeterminate():
            return [_after_unknown(call, state)]
        case Conflict(current):
            refuses = call.expected is not None and not is_at(state, call.expected)
            return [current] if refuses and _same(state, current) else []
        case Done(version):
            if call.expected is None or not is_at(state, call.expected):
                return []
            return [None if call.kind == "delete_if" else Entry(call.key[1], call.value, version)]
        case str(version):
            return [Entry(call.key[1], call.value, version)]
        case None | Entry() as seen:
            return [seen] if _same(state, seen) else []
    raise AssertionError(f"no store returns {call.result!r}")


def _after_unknown(call: Operation, state: Entry | None) -> Entry | None:
    if call.kind == "get":
        return state
    if call.kind != "set" and (call.expected is None or not is_at(state, call.expected)):
        return state
    if call.kind == "delete_if":
        return None
    version = call.result.version if isinstance(call.result, Indeterminate) else _UNKNOWN_VERSION
    return Entry(call.key[1], call.value, version)


def _same(state: Entry | None, observed: Entry | None) -> bool:
    if state is None or observed is None:
        return state is observed
    return state.value == observed.value and state.version in (observed.version, _UNKNOWN_VERSION)
