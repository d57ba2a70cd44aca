"""Prefetch with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutation import Mutation, drop, rewrite
from tests.simulation.mutants import Mutant
from tests.simulation.overlap import OverlapScenario
from tracelake.pipeline.input_queue import Prefetcher
from tracelake.pipeline.protocol import matches_prefetch
from tracelake.testing import Faults

DELAYS: Final = Faults(delays=8)


def _mutant(broken: Mutation, faults: Faults, random_max: int, first_seed: int = 0) -> Mutant:
    return Mutant(
        f"overlap: {broken.rule}",
        OverlapScenario,
        faults,
        None,
        random_max,
        first_seed=first_seed,
        words=(broken,),
    )


OVERLAP_MUTANTS = [
    _mutant(
        Mutation("it stands whatever is to be read", matches_prefetch, rewrite("return _", "return True")),
        DELAYS,
        10,
        186,
    ),
    _mutant(
        Mutation("what was dropped is left", Prefetcher.drop, drop("_(_)")),
        Faults(),
        30,
    ),
]
