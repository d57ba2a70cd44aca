"""Adaptive batch sizes with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from typing import Final

from tests.broken import Broken
from tests.simulation.fitting import FittingScenario
from tests.simulation.mutants import Mutant
from tracelake.pipeline.batch_sizing import BatchSizer, cut, next_size
from tracelake.testing import Faults

NONE: Final = Faults()


def _mutant(broken: Broken) -> Mutant:
    return Mutant(f"fitting: {broken.rule}", lambda: FittingScenario(1), NONE, None, 1, words=(broken,))


FITTING_MUTANTS = [
    _mutant(Broken("an input too large is never taken", cut, "if number and (", "if (")),
    _mutant(Broken("as many as there are", cut, "number >= size.inputs or room < 0", "room < 0")),
    _mutant(Broken("however large", cut, "number >= size.inputs or room < 0", "number >= size.inputs")),
    _mutant(Broken("one too many", cut, "number >= size.inputs", "number > size.inputs")),
    _mutant(Broken("no bound above", next_size, ", highest))", ", high))")),
    _mutant(
        Broken(
            "a clock is trusted",
            next_size,
            "max(last.seconds, TRANSACTION_AIM_S / 100)",
            "last.seconds",
        )
    ),
    _mutant(
        Broken(
            "the newest first", BatchSizer.cut, "inputs[:end], inputs[end:]", "inputs[-end:], inputs[:-end]"
        )
    ),
    _mutant(Broken("what waits on is lost", BatchSizer.cut, "inputs[end:]", "inputs[end + 1 :]")),
]
