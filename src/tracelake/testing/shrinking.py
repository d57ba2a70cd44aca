"""Make a failing schedule short: leave out what it fails without."""

from __future__ import annotations

from collections.abc import Sequence

from tracelake.testing.calls import Choice, Faults
from tracelake.testing.reports import FailedRun
from tracelake.testing.scenario import Scenario
from tracelake.testing.simulation import Run, replay

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
