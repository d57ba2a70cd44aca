"""Recovery of dead runs with one rule broken at a time: the simulator must find each (J10, J12, J15)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.mutants.mutation import Mutation, rewrite
from tests.simulation.mutants import Mutant
from tests.simulation.other_runs import ReleasesScenario, ReshardedScenario
from tests.simulation.torn_journal import TornJournalScenario
from tracelake.journal import store
from tracelake.journal.protocol import _start, advance
from tracelake.pipeline import decode_task
from tracelake.pipeline.driver import _DriverRun
from tracelake.pipeline.quarantine_actions import QuarantineActions
from tracelake.testing import Faults, Scenario

KILLS: Final = Faults(kills=3)
DELAYS: Final = Faults(delays=8)


def _mutant(
    scenario: Callable[[], Scenario],
    faults: Faults,
    broken: Mutation,
    random_max: int = 30,
    first_seed: int = 0,
) -> Mutant:
    name = f"other runs: {broken.rule}"
    return Mutant(name, scenario, faults, None, random_max, first_seed=first_seed, words=(broken,))


OTHER_RUNS_MUTANTS = [
    _mutant(
        ReshardedScenario,
        KILLS,
        Mutation(
            "records are those of all stripes (J10)",
            decode_task._to_range,
            rewrite("sum((_.a for _ in _1))", "_1[0].a", nth=1),
        ),
    ),
    _mutant(
        ReleasesScenario,
        KILLS,
        Mutation(
            "what another release began is refused (J15)",
            _start,
            rewrite("_ != _", "False"),
        ),
    ),
    _mutant(
        ReleasesScenario,
        DELAYS,
        Mutation(
            "what another release records first is refused (J15)",
            advance,
            rewrite("_ != _", "False"),
        ),
    ),
    _mutant(
        ReleasesScenario,
        Faults(kills=3, lost=6, late=2, delays=3, stalls=1, partitions=1),
        Mutation(
            "what is decided of a transaction stands, whatever the next one is (J15)",
            QuarantineActions._quarantine,
            rewrite("_ <= _", "True"),
        ),
        4,
        2512175,
    ),
    _mutant(
        partial(TornJournalScenario, "gone"),
        DELAYS,
        Mutation(
            "a seal has the totals of its steps (J12)",
            store._validated,
            rewrite("not _(...)", "False"),
        ),
        60,
    ),
    _mutant(
        partial(TornJournalScenario, "gone"),
        DELAYS,
        Mutation(
            "what is published is what is sealed (J12)",
            _DriverRun._publish,
            rewrite("_ != _", "False"),
        ),
        12,
        5_040,
    ),
]
