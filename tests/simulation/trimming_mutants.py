"""Trimming of the journal with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.mutants.mutation import Mutation, drop, rewrite
from tests.simulation.mutants import Mutant
from tests.simulation.trimming import QuarantineTrimmingScenario, TrimmingScenario
from tracelake.journal.protocol import floor_above
from tracelake.journal.store import Journal, _follow, check_transactions, trim
from tracelake.pipeline.driver import _DriverRun
from tracelake.pipeline.publish import Outputs
from tracelake.testing import Faults, Scenario

DELAYS: Final = Faults(delays=8)


def _mutant(
    broken: Mutation,
    random_max: int,
    scenario: Callable[[], Scenario] = TrimmingScenario,
    first_seed: int = 0,
) -> Mutant:
    return Mutant(
        f"trimming: {broken.rule}",
        scenario,
        DELAYS,
        None,
        random_max,
        first_seed=first_seed,
        words=(broken,),
    )


def _late_reads() -> Scenario:
    return TrimmingScenario("reads")


def _forget(run: _DriverRun) -> None:
    run._read = None


TRIMMING_MUTANTS = [
    _mutant(Mutation("what is read counts, whatever the floor", Journal.read, drop("_(_)")), 20, _late_reads),
    _mutant(
        Mutation(
            "the floor is read first",
            Journal.read,
            rewrite("_1 = _2\nif _: ...\n_3", "_3\n_1 = _2\nif not follow(_1): ...", follow=_follow),
        ),
        20,
        _late_reads,
    ),
    _mutant(
        Mutation(
            "who records a step too late goes on",
            Journal.append_step,
            drop("_(_)"),
        ),
        60,
    ),
    _mutant(
        Mutation("what is not set aside any more never was", Journal.quarantine_record, drop("_(_)")),
        60,
        QuarantineTrimmingScenario,
        30,
    ),
    _mutant(Mutation("not even the newest is kept", floor_above, rewrite("_(1, _)", "0")), 60),
    _mutant(
        Mutation(
            "erased first",
            trim,
            rewrite("_1\n_2", "_2\n_1"),
        ),
        60,
    ),
    _mutant(
        Mutation("more is erased than is below", trim, rewrite("_1(_2)\n_3(_2)", "_1(_2)\n_3(_2 + 1)")), 60
    ),
    _mutant(
        Mutation(
            "who is late leaves what it has read",
            _DriverRun._passed,
            rewrite("self.a()", "forget(self)", forget=_forget),
        ),
        60,
    ),
    _mutant(
        Mutation(
            "who is late takes that for damage",
            Outputs.require_committed,
            rewrite("if _: ...", "if True: ..."),
        ),
        60,
        _late_reads,
    ),
    _mutant(
        Mutation(
            "verify misses what is trimmed",
            check_transactions,
            rewrite(
                "try: ...\nexcept _: ...\nexcept _1 as a: ...",
                "try: ...\nexcept ZeroDivisionError: ...\nexcept _1 as a: ...",
            ),
        ),
        60,
    ),
]
