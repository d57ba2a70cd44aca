"""Simulate every protocol at random for a while and report the runs: campaign `simulate`.

    python -m tests.simulation.simulate --scenario shard --seed 1234 --schedules 1      # replays one run
    python -m tests.simulation.simulate --complete      # every schedule that is too large for `make test`

Run n of a search with seed S has the seed S + n, which its report names.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator, Sequence

from tests.simulation.archiving import ArchivingScenario
from tests.simulation.clients import ClientsScenario, PlainIngestScenario
from tests.simulation.collecting import CollectScenario
from tests.simulation.deaths import DeathsScenario
from tests.simulation.deleting import DeletingScenario
from tests.simulation.erasing import ErasingScenario
from tests.simulation.expiring import ExpireScenario
from tests.simulation.fitting import FittingScenario
from tests.simulation.index_merging import IndexExpireScenario, IndexMergeScenario
from tests.simulation.kafka import KafkaScenario
from tests.simulation.lifecycle import LifecycleScenario
from tests.simulation.maintenance import MaintenanceScenario, WindowsScenario
from tests.simulation.other_runs import ReleasesScenario, ReshardedScenario
from tests.simulation.outbox import OutboxScenario
from tests.simulation.overlap import OverlapScenario
from tests.simulation.replicas import PipelineScenario
from tests.simulation.scenarios import (
    IndexGarbageScenario,
    IndexScenario,
    JournalScenario,
    ShardScenario,
    StoreScenario,
)
from tests.simulation.setting_aside import SettingAsideScenario
from tests.simulation.sources import SourcesScenario
from tests.simulation.steps import StepsScenario
from tests.simulation.torn_journal import TornJournalScenario
from tests.simulation.trimming import QuarantineTrimmingScenario, TrimmingScenario
from tests.simulation.versions import COMPLETE, RepositoryScenario, RetriesScenario, VersionsScenario, small
from tests.simulation.writes import WritesScenario
from tracelake.testing import Faults, Report, Scenario, explore, search

SCENARIOS: tuple[Scenario, ...] = (
    ShardScenario(3, 3),
    JournalScenario(3, 3),
    RepositoryScenario(replicas=3, rounds=3),
    VersionsScenario(),
    RetriesScenario(),
    IndexScenario(2),
    IndexGarbageScenario(2),
    IndexMergeScenario(),
    IndexExpireScenario(),
    StoreScenario(),
    PipelineScenario(2, 2),
    MaintenanceScenario(),
    WindowsScenario(),
    CollectScenario(1),
    ExpireScenario(2),
    SettingAsideScenario(),
    WritesScenario(),
    DeathsScenario("merge"),
    DeletingScenario(),
    ErasingScenario(),
    LifecycleScenario(),
    FittingScenario(),
    OverlapScenario(),
    StepsScenario(),
    ClientsScenario(),
    PlainIngestScenario(),
    SourcesScenario(),
    KafkaScenario(),
    ReshardedScenario(),
    ReleasesScenario(),
    TornJournalScenario(),
    TrimmingScenario(),
    QuarantineTrimmingScenario(),
    ArchivingScenario(2, rounds=2, traces=2, writes=3, others=("restore", "delete", "sweep")),
    ArchivingScenario(2, rounds=2, traces=2, writes=3, others=("restore", "erase", "sweep"), layout="pack"),
    OutboxScenario(
        [[[(0, 1)], [(1, 0)]], [[(1, 1), (0, 2)]]],
        replicas=2,
        archivers=2,
        restores=True,
        deletes=[0, 1],
        reads=2,
        in_order=False,
    ),
)
FAULTS = Faults(kills=3, lost=6, late=2, delays=3, stalls=1, partitions=1)
"""Maximum faults of each kind in one run; each run draws fewer."""
COMPLETE_MAX = 32_000
"""Maximum schedules of a complete search. Beyond: it fails, because it was incomplete."""


def simulate(
    seed: int, seconds: float, schedules_max: int = sys.maxsize, only: str | None = None
) -> dict[str, Report]:
    """Search each scenario for its share of the time; return the reports by name."""
    scenarios = [scenario for scenario in SCENARIOS if only in (None, scenario.name)]
    share = seconds / len(scenarios)
    return {
        scenario.name: search(scenario, FAULTS, seed=seed, schedules_max=schedules_max, seconds=share)
        for scenario in scenarios
    }


def complete() -> Report:
    """Run every schedule of small configurations, one after the other."""
    total = Report()
    for what, scenario, faults in _small():
        report = explore(scenario, faults, schedules_max=COMPLETE_MAX)
        print(f"{what}, {faults}: {report}{'' if report.is_complete else ', and not all'}", flush=True)
        assert report.failures or report.is_complete, f"more than {COMPLETE_MAX} schedules"
        total.add(report)
    return total


def _small() -> Iterator[tuple[str, Scenario, Faults]]:
    """Yield the completely searched scenarios: versions, the archive, and the outbox with all its users."""
    for patience_polls, faults, actors in COMPLETE:
        yield f"versions {actors}", small(patience_polls, actors), faults
    late, other = [[(0, 1)]], [[(1, 0)]]
    for faults in (Faults(kills=1), Faults(lost=1)):
        yield "archive, two archivers and a writer", ArchivingScenario(2, writes=1), faults
        yield "outbox, a server and a pipeline", OutboxScenario(archivers=0), faults
        yield "outbox, with an archiver", OutboxScenario([late]), faults
        yield (
            "outbox, numbers out of order",
            OutboxScenario([late, other], archivers=0, in_order=False),
            faults,
        )
    deletion = OutboxScenario([late], archivers=0, deletes=[0])
    yield "outbox, a late span and a deletion", deletion, Faults(kills=1)
    yield "outbox, a pass and a deletion", OutboxScenario([late], deletes=[0]), Faults()
    yield "outbox, a late span and a reader", OutboxScenario([late], archivers=0, reads=1), Faults(kills=1)
    yield "outbox, two replicas", OutboxScenario(replicas=2, archivers=0), Faults()
    yield "outbox, two archivers", OutboxScenario(archivers=2), Faults()
    yield "outbox, a late span and a restore", OutboxScenario([late], archivers=0, restores=True), Faults()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(description="Simulate the protocols at random.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="by default, one from the clock")
    parser.add_argument("--schedules", type=int, default=sys.maxsize, help="at most so many of each scenario")
    parser.add_argument("--scenario", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument(
        "--complete",
        action="store_true",
        help="run every schedule of small ones instead; seed and time are not used",
    )
    given = parser.parse_args(arguments)
    if given.complete:
        return told(complete())
    seed = time.time_ns() // 1_000_000 if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    reports = simulate(seed, given.seconds, given.schedules, given.scenario)
    total = Report()
    for name, report in reports.items():
        print(f"{name:<12} {report}")
        total.add(report)
    print(f"{'all':<12} {total}")
    return told(total)


def told(total: Report) -> int:
    """Print the failures; return the exit code."""
    for failure in total.failures:
        print(f"\n{failure}")
    return 1 if total.failures else 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # of stores that fail on purpose
    sys.exit(main())
