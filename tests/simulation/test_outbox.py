"""The outbox under simulation: every schedule of the small ones, random ones of all together, and mutants."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import Mutant
from tests.simulation.outbox import OutboxScenario
from tests.simulation.outbox_mutants import LATE, OTHER, OUTBOX_MUTANTS
from tracelake.testing import Faults, explore, search

SMALL = {
    "O1 killed": (OutboxScenario(archivers=0), Faults(kills=1)),
    "O3 out of order": (OutboxScenario([LATE, OTHER], archivers=0, in_order=False), Faults()),
    "A18 beside a pass": (OutboxScenario([LATE]), Faults()),
    "O1 deleted": (OutboxScenario([LATE], archivers=0, deletes=[0]), Faults()),
    "O2 read": (OutboxScenario([LATE], archivers=0, reads=1), Faults()),
}


@pytest.mark.parametrize("small", SMALL)
def test_o1_o3_every_schedule(small: str) -> None:
    """No order of steps and no kill loses a span or takes it twice; campaign `simulate-all` runs more schedules."""
    report = explore(*SMALL[small], schedules_max=500)
    assert report.failures == []
    assert report.is_complete
    assert report.completed == report.schedules > 10


def test_o1_o2_o4_random_schedules_of_all_actors() -> None:
    """Replicas, servers, archivers, a restore, a deletion and a reader keep the rules under kills, lost replies and
    refusals."""
    scenario = OutboxScenario(
        [[LATE[0], OTHER[0]], [[(1, 1), (0, 2)]]], 2, 2, restores=True, deletes=[1], reads=2, in_order=False
    )
    report = search(scenario, Faults(kills=3, lost=4, late=2), seed=5, schedules_max=8)
    assert report.failures == []
    assert report.completed == report.schedules == 8


@pytest.mark.parametrize("mutant", OUTBOX_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    """The outbox with one rule broken fails within the stated number of schedules."""
    with mutant.broken():
        report = explore(mutant.scenario(), mutant.faults, schedules_max=60, shortens=False)
    assert report.violations == 1
