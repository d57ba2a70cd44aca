"""Every schedule of a small scenario, up to the order of independent calls.

Depth first, each schedule replayed from its beginning. Two reductions keep it small, and both keep every
reachable state: *sleep sets* (Godefroid 1996) leave out a schedule that differs from one already run only in the
order of calls that commute; and a state that was reached before is not gone into again, unless fewer
choices slept there.

Random schedules of larger scenarios. Each run has a seed of its own, which replays it byte for byte.

Make a failing schedule short: leave out what it fails without.

What simulations found, counted and told.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracelake.testing.simulation import Run, Scenario, replay
from tracelake.testing.stores import Choice, Fate, Faults, Touch, commute


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that broke a rule, shrunk to a short schedule."""

    scenario: str
    message: str
    seed: int | None
    """The seed of the random run; None where it was found by exhaustive search."""
    schedule: int
    """Which schedule of the search it was, from 1."""
    choices: tuple[Choice, ...]
    """The shrunk schedule, for `replay`."""
    story: str
    """The shrunk run as a readable interleaving."""

    def __str__(self) -> str:
        """Return everything that a person needs to see it happen."""
        how = "exhaustive search" if self.seed is None else f"seed {self.seed}"
        return (
            f"{self.scenario}: {self.message}\n"
            f"found by {how}, schedule {self.schedule}; shrunk to {len(self.choices)} steps:\n{self.story}"
        )


@dataclass(slots=True)
class Report:
    """Totals of a search over the schedules of one scenario, or of several."""

    schedules: int = 0
    completed: int = 0
    """Runs in which every actor that was not killed for good finished its work."""
    steps: int = 0
    states: int = 0
    """Distinct states: stores, and what each actor has seen."""
    faults: int = 0
    seconds: float = 0.0
    is_complete: bool = False
    """Whether an exhaustive search saw all schedules within its bounds, up to the order of independent calls."""
    failures: list[FailedRun] = field(default_factory=list)

    @property
    def violations(self) -> int:
        """The number of runs that broke a rule and were reported."""
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
"""Replays that one shrinking may take."""


def shrink(scenario: Scenario, faults: Faults, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """Return a shorter schedule that still breaks a rule, perhaps another one.

    `replay` leaves out what is not possible and goes on by itself after the end, so that any subset of a
    schedule is one. Pieces of half its length are left out first, single choices last.
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
    """Tell a run that broke a rule; `shortens` says whether to shrink it before."""
    choices, again = tuple(run.choices), run
    if shortens:
        shorter = shrink(scenario, faults, choices)
        replayed = replay(scenario, faults, shorter)
        if replayed.error is not None:  # a schedule that fails only by its clock is told as it was
            choices, again = shorter, replayed
    return FailedRun(scenario.name, str(again.error), seed, schedule, choices, again.story())


_INSTANT = (Fate.DONE, Fate.LOST_AFTER, Fate.LOST_BEFORE, Fate.REFUSED, Fate.LATE, Fate.KILL)
"""Delays, stalls and partitions are left out: without a clock they are orders of calls, and lost replies."""

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
    """Run all schedules of a scenario, `schedules_max` at most, and report.

    `is_complete` of the report says whether that were all. What `check` asks of a run must depend on the stores
    and on what each actor saw only, for runs that agree on both are taken for one. `shortens` as for `search`.
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
    """Go on by the first choice at each new state. True where what follows has been run before."""
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
    """Go back to the last state with a choice left, and take it. False where there is none."""
    while path:
        node = path[-1]
        if node.todo:
            node.sleep = {**node.sleep, node.choice: node.touches[node.choice]}
            node.choice = node.todo.pop(0)
            return True
        path.pop()
    return False


def _choices(run: Run) -> Sleeping:
    """Return all choices of a state with what they touch, those without a fault first."""
    choices: Sleeping = {}
    for fate in _INSTANT:
        for index in run.active():
            choice = Choice(index, fate)
            if run.may(choice):
                pending = run.processes[index].pending
                assert pending is not None
                choices[choice] = () if fate is Fate.KILL else pending.touches
    for index in run.landing():
        choices[Choice(index, Fate.LAND)] = run.landing_touches(index)
    return choices


def _sleep_after(node: _Node) -> Sleeping:
    """Return what sleeps after a node's choice: what slept before it and commutes with it."""
    taken = node.choice
    touches = node.touches[taken]
    return {
        choice: theirs
        for choice, theirs in node.sleep.items()
        if choice.actor != taken.actor
        and not (_is_fault(choice) and _is_fault(taken))
        and commute(touches, theirs)
    }


def _is_fault(choice: Choice) -> bool:
    # Faults share a budget: one may make another impossible, so they never commute.
    return choice.fate not in (Fate.DONE, Fate.LAND)


STATES_MAX = 2_000_000
"""Distinct states that one search remembers to count them."""
_CLOCKED = (Fate.DELAY, Fate.STALL, Fate.PARTITION, Fate.KILL)
_WAITS_MS = (3, 50, 2_000, 10_000)


@dataclass(frozen=True, slots=True)
class _Temper:
    """How one run behaves. Runs differ in kind, not only in detail: what never comes up in one does in another."""

    fault_rate: float
    stay_rate: float
    """How often the actor that made the last call makes the next one, too."""
    favourite: int | None
    """An actor that the scheduler always lets run when it can (V3)."""


def _temper(rng: random.Random, actors: int) -> _Temper:
    return _Temper(
        fault_rate=rng.choice((0.0, 0.02, 0.1, 0.3)),
        stay_rate=rng.choice((0.0, 0.5, 0.9)),
        favourite=rng.randrange(actors) if rng.random() < 0.1 else None,
    )


def run_once(scenario: Scenario, faults: Faults, seed: int, seen: set[int] | None = None) -> Run:
    """Run a scenario by the schedule of one seed, and check it; add its states to `seen`."""
    rng = random.Random(seed)  # noqa: S311  repeatable, not secret
    run = Run(scenario, faults, step_ms=1)
    temper = _temper(rng, len(run.processes))
    # Each kind of fault is left out of half of the runs, so that rare mixtures come up.
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
        possible = [fate for fate in Fate if fate is not Fate.LAND and run.may(Choice(actor, fate))]
        fate = rng.choice(possible)
        return Choice(actor, fate, rng.choice(_WAITS_MS) if fate in _CLOCKED else 0)
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
    """Run random schedules with the seeds `seed`, `seed` + 1, …, until one of the limits is reached, and report.

    A run in which not every actor finished, where none was killed for good, is a violation by itself. Who asks
    only whether there is one, leaves it as long as it was found: `shortens` takes hundreds of replays.
    """
    report = Report()
    seen: set[int] = set()
    began = time.perf_counter()
    while report.schedules < schedules_max and time.perf_counter() - began < seconds:
        run = run_once(scenario, faults, seed + report.schedules, seen)
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
    report.states = len(seen)
    report.seconds = time.perf_counter() - began
    return report
