"""One rule of erasures beside retention and archive broken at a time: the simulator must find each."""

from __future__ import annotations

from typing import Final

from tests.simulation.lifecycle import LifecycleScenario
from tests.simulation.mutants import Mutant
from tracelake.testing import Faults


def _mutant(what: str, name: str, wrong: object, most: int = 20) -> Mutant:
    patches = {name: wrong}
    return Mutant(f"lifecycle: {what}", LifecycleScenario, Faults(delays=4), None, most, patches=patches)


LIFECYCLE_MUTANTS: Final = [
    _mutant("a request outlives the erasure", "tracelake.lake.erasure.pending_with", lambda *_: []),
    _mutant("a packed trace stays", "tests.simulation.archiving.SimulatedArchive.packs_with", lambda *_: {}),
]
