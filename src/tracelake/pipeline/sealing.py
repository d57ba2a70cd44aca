"""Seals: from here on the input of a transaction is fixed."""

from __future__ import annotations

from collections.abc import Sequence

from tracelake.journal.model import Seal, Step
from tracelake.journal.protocol import Appended, Sealed, together, totals
from tracelake.journal.store import Journal
from tracelake.limits import TRANSACTION_STEPS_MAX
from tracelake.pipeline.outcome import now
from tracelake.pipeline.publish import TRANSFORM


def seal(journal: Journal, t: int, steps: Sequence[Step]) -> Sealed | Appended:
    """Seal a transaction of these steps; Appended says that a peer has recorded one more before."""
    records, checksum = totals(together(steps).sources)
    ours = Seal(t, records, checksum, now().isoformat(timespec="microseconds"))
    stands = journal.append_seal(ours, len(steps))
    return Sealed() if isinstance(stands, Seal) else Appended(stands, ours=False, transform=TRANSFORM)


def seal_whatever_stands(journal: Journal, t: int) -> None:
    """Seal a transaction that is set aside, whatever steps it has: what has an output is sealed, so verify can ask."""
    for _ in range(TRANSACTION_STEPS_MAX + 1):
        recorded = journal.read(t)
        if recorded.seal is not None or isinstance(seal(journal, t, recorded.steps), Sealed):
            return
    raise AssertionError(f"transaction {t} has more than {TRANSACTION_STEPS_MAX} steps")
