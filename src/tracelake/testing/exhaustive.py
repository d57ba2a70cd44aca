"""Every schedule of a small scenario, up to the order of independent calls.

Depth first, each schedule replayed from its beginning. Two reductions keep it small, and both keep every
reachable state: *sleep sets* (Godefroid 1996) leave out a schedule that differs from one already run only in the
order of calls that commute; and a state that was reached before is not gone into again, unless fewer
choices slept there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tracelake.testing.calls import Choice, Fate, Faults, Touch, commute
from tracelake.testing.reports import Report
from tracelake.testing.scenario import Scenario
from tracelake.testing.shrinking import failure
from tracelake.testing.simulation import Run

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
