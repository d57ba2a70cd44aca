"""Transactions of many steps with one rule broken each: what the simulator must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.broken import Broken
from tests.simulation.mutants import Mutant
from tests.simulation.steps import WAITS, StepsScenario
from tracelake.journal.modes import weigh
from tracelake.journal.protocol import _fed, _start, advance
from tracelake.pipeline.driver import _DriverRun
from tracelake.pipeline.sealing import seal
from tracelake.pipeline.taking import Taking
from tracelake.testing import Faults, Scenario

NONE: Final = Faults()
DELAYS: Final = Faults(delays=8)
KILLS: Final = Faults(kills=2)


def _waiting() -> Scenario:
    return StepsScenario(WAITS)


def _mutant(
    broken: Broken, faults: Faults, random_max: int = 30, scenario: Callable[[], Scenario] = StepsScenario
) -> Mutant:
    return Mutant(f"steps: {broken.rule}", scenario, faults, None, random_max, words=(broken,))


STEPS_MUTANTS = [
    _mutant(Broken("it is sealed before it is full", weigh, "if not exhausted:", "if False:"), NONE),
    _mutant(Broken("it never is full", weigh, "opened.rows >= mode.max_rows", "False"), NONE),
    _mutant(
        Broken("it waits however long it waited", weigh, "opened.age_s >= mode.max_delay_s", "False"),
        NONE,
        scenario=_waiting,
    ),
    _mutant(Broken("only the first step is replayed", _fed, "if more:", "if False:"), KILLS),
    _mutant(
        Broken("a replay begins behind the first step", _start, "steps[event.fed :]", "steps[1:]"), KILLS
    ),
    _mutant(
        Broken(
            "a peer's step is not read",
            advance,
            "return Replaying(t, (step,), sealed=False), Feed(step)",
            "return AtBoundary(t, step.number + 1), Weigh(t, step.number + 1)",
        ),
        DELAYS,
    ),
    _mutant(
        Broken(
            "a peer's seal is not seen",
            _DriverRun._append,
            "Sealed() if isinstance(stands, Seal) else Appended(stands, ours, TRANSFORM)",
            "Appended(step, True, TRANSFORM)",
        ),
        DELAYS,
    ),
    _mutant(
        Broken(
            "who seals does not see a step before it",
            seal,
            "Sealed() if isinstance(stands, Seal) else Appended(stands, ours=False, transform=TRANSFORM)",
            "Sealed()",
        ),
        DELAYS,
    ),
    _mutant(
        Broken("what the open transaction has is taken again", Taking._without_taken, "not in in_open", ""),
        NONE,
        scenario=_waiting,
    ),
]
