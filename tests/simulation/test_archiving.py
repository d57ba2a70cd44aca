"""The archive under simulation: every schedule of two archivers and a writer, random ones of all, and mutants."""

from __future__ import annotations

import pytest

from tests.simulation.archiving import ArchivingScenario
from tests.simulation.archiving_mutants import ARCHIVE_MUTANTS
from tests.simulation.mutants import Mutant
from tracelake.testing import Faults, explore, search

ALL = ("restore", "delete", "sweep")
ERASING = ("restore", "erase", "sweep")
FAULTS = Faults(kills=3, lost=4, late=2)


def test_a1_a5_a12_every_schedule_of_two_archivers_and_a_writer() -> None:
    """A1, A2, A5, A12, A13: no order of their steps loses a span, archives twice, or deletes another actor's
    object."""
    report = explore(ArchivingScenario(2, writes=1), Faults(), schedules_max=1_000)
    assert report.failures == []
    assert report.is_complete
    assert report.completed == report.schedules > 50


@pytest.mark.parametrize(
    ("faults", "others"),
    [(Faults(kills=1), ()), (Faults(lost=1), ()), (Faults(kills=1), ("sweep",))],
    ids=["killed beside a writer", "lost beside a writer", "killed beside a sweep"],
)
def test_a4_every_schedule_with_a_fault(faults: Faults, others: tuple[str, ...]) -> None:
    """A4: a pass killed at any step or with a lost reply is safe next to a writer, and so is a sweep."""
    report = explore(
        ArchivingScenario(1, writes=0 if others else 1, others=others), faults, schedules_max=2_000
    )
    assert report.failures == []
    assert report.is_complete
    assert report.completed == report.schedules > 20


@pytest.mark.parametrize("layout", ["trace", "pack"])
@pytest.mark.parametrize("seed", [1, 1_000])
@pytest.mark.parametrize("others", [ALL, ERASING], ids=["delete", "erase"])
def test_a4_a10_random_schedules_of_all_actors(layout: str, seed: int, others: tuple[str, ...]) -> None:
    """A4, A10, A12: archivers, writer, restore, delete, erase and sweep keep the rules under kills, lost replies and
    late writes. No object keeps an erased trace."""
    scenario = ArchivingScenario(
        2, rounds=2, traces=2, writes=3, others=others, layout="pack" if layout == "pack" else "trace"
    )
    report = search(scenario, FAULTS, seed=seed, schedules_max=25)
    assert report.failures == []
    assert report.completed == report.schedules == 25


@pytest.mark.parametrize("mutant", ARCHIVE_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    """The archive with one rule broken fails within the stated number of schedules, or of all where that is given."""
    with mutant.broken():
        report = search(
            mutant.scenario(), mutant.faults, seed=0, schedules_max=mutant.schedules_max, shortens=False
        )
    assert report.violations == 1
    if mutant.exhaustive_max is not None:
        with mutant.broken():
            report = explore(
                mutant.scenario(), mutant.faults, schedules_max=mutant.exhaustive_max, shortens=False
            )
        assert report.violations == 1
