"""The protocols under simulation: every schedule of small configurations, random ones of larger; and mutants."""

from __future__ import annotations

import pytest

from tests.simulation.clients import SILENT, ClientsScenario
from tests.simulation.clients_mutants import CLIENTS_MUTANTS
from tests.simulation.collecting_mutants import COLLECT_MUTANTS
from tests.simulation.deaths import DeathsScenario, Stage
from tests.simulation.deaths_mutants import DEATHS_MUTANTS
from tests.simulation.deleting_mutants import DELETING_MUTANTS
from tests.simulation.erasing_mutants import ERASING_MUTANTS
from tests.simulation.expiring import ExpireScenario
from tests.simulation.expiring_mutants import EXPIRE_MUTANTS
from tests.simulation.fitting_mutants import FITTING_MUTANTS
from tests.simulation.index_merging import IndexExpireScenario
from tests.simulation.index_merging_mutants import INDEX_MERGE_MUTANTS
from tests.simulation.kafka_mutants import KAFKA_MUTANTS
from tests.simulation.lifecycle_mutants import LIFECYCLE_MUTANTS
from tests.simulation.maintenance import MaintenanceScenario
from tests.simulation.maintenance_mutants import MAINTENANCE_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.other_runs import ReleasesScenario, ReshardedScenario
from tests.simulation.other_runs_mutants import OTHER_RUNS_MUTANTS
from tests.simulation.overlap_mutants import OVERLAP_MUTANTS
from tests.simulation.replicas import PipelineScenario
from tests.simulation.scenarios import (
    IndexScenario,
    JournalScenario,
    ShardScenario,
)
from tests.simulation.setting_aside import SettingAsideScenario
from tests.simulation.setting_aside_mutants import SETTING_ASIDE_MUTANTS
from tests.simulation.simulate import FAULTS, SCENARIOS, main
from tests.simulation.sources import SourcesScenario
from tests.simulation.sources_mutants import SOURCES_MUTANTS
from tests.simulation.steps import WAITS, StepsScenario
from tests.simulation.steps_mutants import STEPS_MUTANTS
from tests.simulation.torn_journal import TornJournalScenario
from tests.simulation.trimming import QuarantineTrimmingScenario, TrimmingScenario
from tests.simulation.trimming_mutants import TRIMMING_MUTANTS
from tests.simulation.versions_mutants import VERSIONS_MUTANTS
from tests.simulation.writes import WritesScenario
from tests.simulation.writes_mutants import FEW, WRITES_MUTANTS
from tracelake.testing import Faults, Scenario, explore, run_once, search

SMALL = [ShardScenario(2, 1), JournalScenario(2, 1)]


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize(
    "faults", [Faults(), Faults(lost=1), Faults(kills=1)], ids=["none", "lost", "killed"]
)
def test_every_schedule_of_two_actors(scenario: Scenario, faults: Faults) -> None:
    """S7 to S9, J1 to J3: no order of calls, lost reply or kill breaks a rule; the search is complete."""
    report = explore(scenario, faults, schedules_max=10_000)
    assert report.failures == []
    assert report.is_complete
    assert report.completed == report.schedules


def test_f10_every_order_of_two_finalizers() -> None:
    """F10, F11: no order of two finalizers' calls breaks a rule; the search is complete."""
    report = explore(IndexScenario(2, with_worker=False), Faults(), schedules_max=2_000)
    assert report.failures == []
    assert report.is_complete
    assert report.completed == report.schedules > 50


SLICED = [
    scenario
    for scenario in SCENARIOS
    if scenario.name not in ("writes", "archiving", "archive-erasure", "outbox")
]
SLICES = {
    "versions": 60,
    "index-merge": 26,
    "deaths": 40,
    "deleting": 25,
    "erasing": 25,
    "lifecycle": 15,
    "fitting": 12,
    "overlap": 15,
    "steps": 15,
    "clients": 8,
    "sources": 10,
    "kafka": 6,
    "resharded": 12,
    "releases": 10,
    "torn journal": 15,
    "trimming": 15,
    "trimming aside": 12,
    "setting aside": 30,
    "pipeline": 50,
    "maintenance": 50,
    "maintenance-windows": 50,
    "collect": 100,
    "expire": 40,
}
"""Schedules in the slices of slow scenarios; the others have 300.

Those of index-merge, deaths, quarantine and maintenance are twice as many as any of their mutants needs.
"""


def test_a_slice_of_writes_that_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write exists once, whatever faults its writer met and however many writes followed, although the state
    remembers few."""
    for name, few in FEW.items():
        monkeypatch.setattr(name, few)
    report = search(WritesScenario(), FAULTS, seed=1, schedules_max=12)
    assert report.failures == []
    assert report.completed == report.schedules == 12


@pytest.mark.parametrize("scenario", SLICED, ids=lambda scenario: scenario.name)
def test_a_slice_of_random_schedules(scenario: Scenario) -> None:
    """With every kind of fault at once no rule is broken, and every actor of every run finishes."""
    count = SLICES.get(scenario.name, 300)
    report = search(scenario, FAULTS, seed=1, schedules_max=count)
    assert report.failures == []
    assert report.completed == report.schedules == count
    assert report.faults > count


def test_rows_that_a_replica_read_for_one_transaction_are_not_taken_for_the_next() -> None:
    """A peer commits T while we read its input, and all but the commit of T+1: T+1 needs no rows (found by seed
    37)."""
    assert run_once(PipelineScenario(2, 2), Faults(), seed=37).error is None


@pytest.mark.parametrize(
    "stages",
    [("merge", None), ("read", None), ("merge", "merge"), ("read", "merge")],
    ids=lambda stages: "-".join(map(str, stages)),
)
@pytest.mark.parametrize("waits", [False, True])
def test_one_sets_aside_what_a_peer_may_publish(stages: tuple[str | None, ...], *, waits: bool) -> None:
    """No good span is lost or doubled, all agree on each transaction, and one record names the input that is in no
    table."""
    report = search(SettingAsideScenario(stages, waits=waits), FAULTS, seed=1, schedules_max=25)
    assert report.failures == []
    assert report.completed == report.schedules == 25


@pytest.mark.parametrize("stage", ["read", "merge"])
def test_what_kills_all_replicas_is_set_aside_alone(stage: Stage) -> None:
    """An input that kills each replica, on a separate machine, is named in the end, and all other inputs are in."""
    report = search(DeathsScenario(stage), FAULTS, seed=1, schedules_max=20)
    assert report.failures == []
    assert report.completed == report.schedules == 20


def test_replicas_that_are_slow_are_not_counted_as_dead() -> None:
    """More slow replicas than the death limit work long on the same input, and nothing is quarantined."""
    report = search(DeathsScenario(replicas=5), Faults(delays=3), seed=1, schedules_max=20)
    assert report.failures == []
    assert report.completed == report.schedules == 20


def test_j9_what_waits_for_more_over_runs() -> None:
    """J9: replicas keep a transaction open over many runs, die, and continue: each segment is in one, once."""
    report = search(StepsScenario(WAITS), FAULTS, seed=1, schedules_max=8)
    assert report.failures == []
    assert report.completed == report.schedules == 8


def test_j12_a_record_that_is_gone() -> None:
    """J12: a missing record, even one read before, is reported; nothing is lost or doubled."""
    report = search(TornJournalScenario("gone"), FAULTS, seed=1, schedules_max=12)
    assert report.failures == []
    assert report.completed == report.schedules == 12


def test_clients_that_are_silent_are_spoken_for() -> None:
    """The transaction of a silent client is sealed or discarded as configured; under any death it is one
    transaction or none."""
    for when_gone in ("seal", "discard"):
        scenario = ClientsScenario(("abort", "commit"), when_gone, SILENT)
        report = search(scenario, FAULTS, seed=1, schedules_max=2)
        assert report.failures == []
        assert report.completed == report.schedules == 2


def test_j13_sources_come_and_go() -> None:
    """J13: sources are added, paused, resumed and removed at any step; input of an unwatched source is not taken."""
    report = search(SourcesScenario(), Faults(delays=8), seed=1, schedules_max=10)
    assert report.failures == []
    assert report.completed == report.schedules == 10


def test_who_reads_late_of_a_transaction_that_is_trimmed_goes_on() -> None:
    """A late reader of a trimmed transaction finds nothing, or a peer's late record: neither is damage or its
    input."""
    report = search(TrimmingScenario("reads"), FAULTS, seed=1, schedules_max=12)
    assert report.failures == []
    assert report.completed == report.schedules == 12


def test_a_transaction_finds_its_base_after_a_slow_collection() -> None:
    """Transactions that commit while a collection reads the names do not lose the commits that they build on."""
    scenario = IndexExpireScenario(5, pipelines=1, collectors=1)
    report = search(scenario, Faults(delays=8), seed=1, schedules_max=40)
    assert report.failures == []
    assert report.completed == report.schedules == 40


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (909, "a batch that was compacted before its lost reply was read back is still known for ours"),
        (1774, "a record that a late deletion takes while it is read is passed over"),
    ],
)
def test_maintenance_seeds_that_failed_once(seed: int, what: str) -> None:
    """Runs that once showed a fault now pass."""
    assert run_once(MaintenanceScenario(), Faults(lost=8, late=3, delays=4), seed=seed).error is None, what


@pytest.mark.parametrize(
    ("scenario", "seed", "what"),
    [
        (
            ReleasesScenario(),
            2511308,
            "a decision stands, whatever release began the next transaction meanwhile",
        ),
        (QuarantineTrimmingScenario(), 2511272, "who decides reads inputs of a transaction that is open"),
        (ReshardedScenario(), 31337172, "an input that two died of, and one was silent about, is set aside"),
        (ClientsScenario(), 77001121, "replicas end when all has arrived"),
        (
            ClientsScenario(),
            77001226,
            "of a client's transaction that was set aside few inputs are taken at a time",
        ),
        (
            StepsScenario(),
            31337328,
            "inputs of a transaction that was set aside are taken by fewer at a time",
        ),
        (
            IndexExpireScenario(),
            17,
            "a kept index keeps the parts of builds whose own commits expired before",
        ),
        (ExpireScenario(2), 271139, "a head that has expired is reported as expired, not as damage"),
        (ExpireScenario(2), 271211, "an expiry is decided only once its proposal is written"),
        (ExpireScenario(2), 5000272, "a walk finds the end of a gap that begins behind it"),
        (ExpireScenario(2), 8001244, "a transaction whose commit has expired is reported as expired"),
        (ExpireScenario(2), 10000070, "it is, also if nothing had expired when the walk began"),
        (ExpireScenario(2), 9000100, "a branch whose commit has expired counts as the same branch"),
    ],
)
def test_seeds_that_failed_once(scenario: Scenario, seed: int, what: str) -> None:
    """Runs that once showed a fault of Tracelake or of the scenario now pass."""
    run = run_once(scenario, FAULTS, seed=seed)
    assert run.error is None, what
    assert all(process.finished for process in run.processes), what


@pytest.mark.parametrize(
    "mutant",
    [
        *MUTANTS,
        *MAINTENANCE_MUTANTS,
        *VERSIONS_MUTANTS,
        *COLLECT_MUTANTS,
        *EXPIRE_MUTANTS,
        *INDEX_MERGE_MUTANTS,
        *SETTING_ASIDE_MUTANTS,
        *WRITES_MUTANTS,
        *DEATHS_MUTANTS,
        *DELETING_MUTANTS,
        *ERASING_MUTANTS,
        *LIFECYCLE_MUTANTS,
        *FITTING_MUTANTS,
        *OVERLAP_MUTANTS,
        *TRIMMING_MUTANTS,
        *STEPS_MUTANTS,
        *CLIENTS_MUTANTS,
        *SOURCES_MUTANTS,
        *KAFKA_MUTANTS,
        *OTHER_RUNS_MUTANTS,
    ],
    ids=lambda mutant: mutant.name,
)
def test_a_mutant_is_found_by_random_search(mutant: Mutant) -> None:
    """A protocol with one rule broken fails within a bounded number of random schedules."""
    first, most = mutant.first_seed, mutant.schedules_max
    with mutant.broken():
        report = search(mutant.scenario(), mutant.faults, seed=first, schedules_max=most, shortens=False)
    assert report.violations == 1


@pytest.mark.parametrize(
    "mutant",
    [mutant for mutant in (*MUTANTS, *VERSIONS_MUTANTS) if mutant.exhaustive_max],
    ids=lambda mutant: mutant.name,
)
def test_a_mutant_is_found_by_exhaustive_search(mutant: Mutant) -> None:
    """A protocol with one rule broken fails within the stated number of schedules of the exhaustive search."""
    assert mutant.exhaustive_max is not None
    with mutant.broken():
        report = explore(
            mutant.scenario(), mutant.faults, schedules_max=mutant.exhaustive_max, shortens=False
        )
    assert report.violations == 1


def test_the_command_reports_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    """Campaign `simulate` names its seed, and counts schedules, states, faults and violations."""
    assert main(["--seed", "7", "--schedules", "5", "--seconds", "6000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "seed 7"
    count = 5 * len(SCENARIOS)
    assert lines[-1].startswith(f"all          {count} schedules ({count} completed), ")
    assert " 0 violations, " in lines[-1]
