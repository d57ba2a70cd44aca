"""Changing sources with one rule broken at a time: the simulator must find each (J13).

Rules that depend on a moment between two calls are broken in `tests/pipeline/test_added_sources.py`.
"""

from __future__ import annotations

from typing import Final

from tests.broken import Broken
from tests.simulation.mutants import Mutant
from tests.simulation.sources import SourcesScenario
from tracelake.pipeline.sources.poller import SourcePoller
from tracelake.testing import Faults

DELAYS: Final = Faults(delays=8)


def _mutant(broken: Broken) -> Mutant:
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
        Broken(
            "one that is resumed is not looked at",
            SourcePoller._follow_records,
            '"paused" if record.is_paused else "active"',
            '"paused" if record.is_paused else source.state',
        )
    ),
    _mutant(
        Broken(
            "one that does not answer stops the others",
            SourcePoller._answered,
            "except Exception as error:",
            "except OSError as error:",
        )
    ),
    _mutant(
        Broken(
            "what is added later is not looked at",
            SourcePoller.look,
            "sources = [*self._fixed, *self._of_records.values()]",
            "sources = [*self._fixed]",
        )
    ),
]
