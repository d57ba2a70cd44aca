"""Trimming of the journal with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.broken import Broken
from tests.simulation.mutants import Mutant
from tests.simulation.trimming import QuarantineTrimmingScenario, TrimmingScenario
from tracelake.journal.protocol import floor_above
from tracelake.journal.store import Journal, check_transactions, trim
from tracelake.pipeline.driver import _DriverRun
from tracelake.pipeline.publish import Outputs
from tracelake.testing import Faults, Scenario

DELAYS: Final = Faults(delays=8)


def _mutant(
    broken: Broken, random_max: int, scenario: Callable[[], Scenario] = TrimmingScenario, first_seed: int = 0
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


_CHECK: Final = "self._require_above_floor(transaction)"
_READS: Final = (
    "# a peer may have recorded both between two reads; the second attempt sees them\n"
    "    if not _follow(records):\n"
    "        records = self._records(transaction)\n"
)
_FIRST: Final = "records = self._records(transaction)\n    "

TRIMMING_MUTANTS = [
    _mutant(Broken("what is read counts, whatever the floor", Journal.read, _CHECK, "pass"), 20, _late_reads),
    _mutant(
        Broken(
            "the floor is read first",
            Journal.read,
            f"{_FIRST}{_READS}    {_CHECK}",
            f"{_CHECK}\n    {_FIRST}{_READS.rstrip()}",
        ),
        20,
        _late_reads,
    ),
    _mutant(
        Broken(
            "who records a step too late goes on",
            Journal.append_step,
            _CHECK.replace("transaction", "step.transaction"),
            "pass",
        ),
        60,
    ),
    _mutant(
        Broken("what is not set aside any more never was", Journal.quarantine_record, _CHECK, "pass"),
        60,
        QuarantineTrimmingScenario,
    ),
    _mutant(Broken("not even the newest is kept", floor_above, "max(1, retained)", "0"), 60),
    _mutant(
        Broken(
            "erased first",
            trim,
            "journal.raise_floor(wanted)\n        journal.erase_below(wanted)",
            "journal.erase_below(wanted)\n        journal.raise_floor(wanted)",
        ),
        60,
    ),
    _mutant(
        Broken("more is erased than is below", trim, "erase_below(wanted)", "erase_below(wanted + 1)"), 60
    ),
    _mutant(
        Broken(
            "who is late leaves what it has read", _DriverRun._passed, "self._put_back()", "self._read = None"
        ),
        60,
    ),
    _mutant(
        Broken(
            "who is late takes that for damage",
            Outputs.require_committed,
            "self.upper() <= forgotten",
            "True",
        ),
        60,
        _late_reads,
    ),
    _mutant(
        Broken(
            "verify misses what is trimmed",
            check_transactions,
            "except TrimmedError:",
            "except ZeroDivisionError:",
        ),
        60,
    ),
]
