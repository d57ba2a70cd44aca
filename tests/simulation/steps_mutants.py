"""Transactions of many steps with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.broken import Broken
from tests.simulation.mutants import Mutant
from tests.simulation.steps import WAITS, StepsScenario
from tracelake.journal.protocol import _fed, _start, advance, decide
from tracelake.pipeline.driver import _DriverRun, seal
from tracelake.pipeline.input_queue import InputQueue
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
    _mutant(Broken("it is sealed before it is full", decide, "if not exhausted:", "if False:"), NONE),
    _mutant(Broken("it never is full", decide, "opened.rows >= mode.max_rows", "False"), NONE),
    _mutant(
        Broken("it waits however long it waited", decide, "opened.age_s >= mode.max_delay_s", "False"),
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
            "return AtBoundary(t, step.number + 1), Decide(t, step.number + 1)",
        ),
        DELAYS,
    ),
    _mutant(
        Broken(
            "a peer's seal is not seen",
            _DriverRun._append,
            "Sealed() if isinstance(current, Seal) else Appended(current, ours, TRANSFORM)",
            "Appended(step, True, TRANSFORM)",
        ),
        DELAYS,
    ),
    _mutant(
        Broken(
            "who seals does not see a step before it",
            seal,
            "Sealed() if isinstance(recorded, Seal) else Appended(recorded, ours=False, transform=TRANSFORM)",
            "Sealed()",
        ),
        DELAYS,
    ),
    _mutant(
        Broken(
            "what the open transaction has is taken again",
            InputQueue._exclude_ingested,
            "not in open_inputs",
            "",
        ),
        NONE,
        scenario=_waiting,
    ),
]
