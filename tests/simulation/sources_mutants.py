"""Sources that come and go, with one rule broken each: what the simulator must find (J13)."""

from __future__ import annotations

from typing import Final

from tests.broken import Broken
from tests.simulation.mutants import Mutant
from tests.simulation.sources import SourcesScenario
from tracelake.pipeline.sources.looks import Looks
from tracelake.pipeline.sources.protocol import counts
from tracelake.testing import Faults

DELAYS: Final = Faults(delays=8)


def _mutant(broken: Broken, first_seed: int) -> Mutant:
    return Mutant(
        f"sources: {broken.rule}",
        SourcesScenario,
        DELAYS,
        None,
        random_max=10,
        first_seed=first_seed,
        words=(broken,),
    )


SOURCES_MUTANTS = [
    _mutant(
        Broken(
            "what was seen counts by the records as they were before",
            Looks.look,
            "if any(each.waiting for each in self._of_records.values()):",
            "if False:",
        ),
        80,
    ),
    _mutant(Broken("one that is paused meanwhile counts", counts, "and not is_paused", ""), 80),
    _mutant(
        Broken(
            "one that is removed meanwhile counts", counts, "now == looked_at", "now in (None, looked_at)"
        ),
        100,
    ),
    _mutant(
        Broken(
            "one that is resumed is not looked at",
            Looks._follow_records,
            '"paused" if record.is_paused else "active"',
            '"paused" if record.is_paused else looked.state',
        ),
        0,
    ),
    _mutant(
        Broken(
            "one that does not answer stops the others",
            Looks._look_at,
            "except (StorageError, UsageError, OSError) as error:",
            "except UsageError as error:",
        ),
        0,
    ),
]
