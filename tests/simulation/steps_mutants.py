"""Transactions of many steps with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.mutants.mutation import Mutation, rewrite
from tests.simulation.mutants import Mutant
from tests.simulation.steps import WAITS, StepsScenario
from tracelake.journal.protocol import _fed, _start, decide
from tracelake.pipeline.driver import seal
from tracelake.pipeline.input_queue import InputQueue
from tracelake.testing import Faults, Scenario

NONE: Final = Faults()
DELAYS: Final = Faults(delays=8)
KILLS: Final = Faults(kills=2)


def _waiting() -> Scenario:
    return StepsScenario(WAITS)


def _mutant(
    broken: Mutation, faults: Faults, random_max: int = 30, scenario: Callable[[], Scenario] = StepsScenario
) -> Mutant:
    return Mutant(f"steps: {broken.rule}", scenario, faults, None, random_max, words=(broken,))


STEPS_MUTANTS = [
    _mutant(
        Mutation("it is sealed before it is full", decide, rewrite("if not _: ...", "if False: ...")), NONE
    ),
    _mutant(Mutation("it never is full", decide, rewrite("_1 or _ or _2", "_1 or False or _2")), NONE),
    _mutant(
        Mutation("it waits however long it waited", decide, rewrite("_1 or _2 or _", "_1 or _2 or False")),
        NONE,
        scenario=_waiting,
    ),
    _mutant(
        Mutation("only the first step is replayed", _fed, rewrite("if _: ...", "if False: ...", nth=2)), KILLS
    ),
    _mutant(Mutation("a replay begins behind the first step", _start, rewrite("_1[_:]", "_1[1:]")), KILLS),
    _mutant(
        Mutation(
            "who seals does not see a step before it",
            seal,
            rewrite("_1 if _ else _", "_1"),
        ),
        DELAYS,
    ),
    _mutant(
        Mutation(
            "what the open transaction has is taken again",
            InputQueue._exclude_ingested,
            rewrite("(_1.a, _1.b) not in _", "(_1.a, _1.b)"),
        ),
        NONE,
        scenario=_waiting,
    ),
]
