"""Adaptive batch sizes with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutation import Mutation, rewrite
from tests.simulation.fitting import FittingScenario
from tests.simulation.mutants import Mutant
from tracelake.pipeline.batch_sizing import BatchSizer, cut, next_size
from tracelake.testing import Faults

NONE: Final = Faults()


def _mutant(broken: Mutation) -> Mutant:
    return Mutant(f"fitting: {broken.rule}", lambda: FittingScenario(1), NONE, None, 1, words=(broken,))


FITTING_MUTANTS = [
    _mutant(Mutation("an input too large is never taken", cut, rewrite("_ and _1", "_1"))),
    _mutant(Mutation("as many as there are", cut, rewrite("_ or _1", "_1"))),
    _mutant(Mutation("however large", cut, rewrite("_1 or _", "_1"))),
    _mutant(Mutation("one too many", cut, rewrite("_1 >= _2", "_1 > _2"))),
    _mutant(
        Mutation(
            "no bound above", next_size, rewrite("min(max(_1, _2(_3, _4)), _)", "_2(max(_1, _2(_3, _4)), _4)")
        )
    ),
    _mutant(
        Mutation(
            "a clock is trusted",
            next_size,
            rewrite("_1 / _(_2, _)", "_1 / _2"),
        )
    ),
    _mutant(
        Mutation("the newest first", BatchSizer.cut, rewrite("(_1[:_2], _1[_2:])", "(_1[-_2:], _1[:-_2])"))
    ),
    _mutant(Mutation("what waits on is lost", BatchSizer.cut, rewrite("_1[_2:]", "_1[_2 + 1:]"))),
]
