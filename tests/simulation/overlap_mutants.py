"""Prefetch with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from typing import Final

from tests.broken import Broken
from tests.simulation.mutants import Mutant
from tests.simulation.overlap import OverlapScenario
from tracelake.pipeline.input_queue import Prefetcher
from tracelake.pipeline.protocol import matches_prefetch
from tracelake.testing import Faults

DELAYS: Final = Faults(delays=8)


def _mutant(broken: Broken, faults: Faults, random_max: int, first_seed: int = 0) -> Mutant:
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
        Broken(
            "it stands whatever is to be read", matches_prefetch, "tuple(prefetched) == tuple(inputs)", "True"
        ),
        DELAYS,
        10,
        158,
    ),
    _mutant(
        Broken("what was dropped is left", Prefetcher.drop, "self._reader.discard(staged)", "pass"),
        Faults(),
        30,
    ),
]
