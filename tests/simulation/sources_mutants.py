"""Changing sources with one rule broken at a time: the simulator must find each (J13).

Rules that depend on a moment between two calls are broken in `tests/pipeline/test_added_sources.py`.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.mutation import Mutation, rewrite
from tests.simulation.mutants import Mutant
from tests.simulation.sources import SourcesScenario
from tracelake.pipeline.sources.poller import SourcePoller
from tracelake.testing import Faults

DELAYS: Final = Faults(delays=8)


def _mutant(broken: Mutation) -> Mutant:
    return Mutant(
        f"sources: {broken.rule}",
        SourcesScenario,
        DELAYS,
        None,
        random_max=10,
        words=(broken,),
    )


SOURCES_MUTANTS = [
    _mutant(
        Mutation(
            "one that is resumed is not looked at",
            SourcePoller._follow_records,
            rewrite("_1 = _\nif _2: ...", "_1 = 'paused' if _2 else _1\nif _2: ..."),
        )
    ),
    _mutant(
        Mutation(
            "one that does not answer stops the others",
            SourcePoller._answered,
            rewrite("Exception", "OSError"),
        )
    ),
    _mutant(
        Mutation(
            "what is added later is not looked at",
            SourcePoller.look,
            rewrite("[_1, _]", "[_1]"),
        )
    ),
]
