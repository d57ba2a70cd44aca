"""Random schedules of larger scenarios. Each run has a seed of its own, which replays it byte for byte."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from tracelake.testing.calls import Choice, Fate, Faults
from tracelake.testing.reports import Report
from tracelake.testing.scenario import Scenario
from tracelake.testing.shrinking import failure
from tracelake.testing.simulation import Run

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
