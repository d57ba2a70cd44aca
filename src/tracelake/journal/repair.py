"""Repair of journal records that are torn or gone, of a transaction that has a commit.

| damaged record                  | repair                                                                            |
|---------------------------------|-----------------------------------------------------------------------------------|
| the seal                        | write it again from the steps, if their spans are those that the commit counts    |
| a step, or the aside record     | raise the floor above the transaction: its records no longer count                |

Nothing of a committed transaction is replayed, so its records only say which inputs pipelines may let go. Without them
inputs that still exist are read again, and all of their spans are repeats. A transaction without a commit is never
repaired: nothing proves what its records said (J12).
"""

from __future__ import annotations

from typing import Literal

from tracelake._errors import ContentionError, DamageError, FormatError, TrimmedError, UsageError
from tracelake.journal.model import Seal, Step
from tracelake.journal.protocol import merge_steps, totals
from tracelake.journal.store import Journal
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX

RepairKind = Literal["seal", "forgotten"]
"""What a repair did: it wrote the seal again, or had the journal forget the transaction and all before it."""


def repair(journal: Journal, t: int, sealed_at: str, spans: int) -> RepairKind:
    """Repair the records of a committed transaction; again, and beside pipelines, is safe.

    Args:
        journal: of the pipeline.
        t: the transaction; it has a commit, and was not set aside.
        sealed_at: the time of its commit, which is that of its seal.
        spans: how many spans its commit counts: new, replaced and repeated ones.

    Raises UsageError if its records are whole.
    """
    for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
        if _is_whole(journal, t):
            raise UsageError(
                f"the records of transaction {t} are intact. `tracelake verify` lists all damage."
            )
        steps = journal.steps_before_damage(t)
        seal = seal_of(t, steps, sealed_at, spans)
        if seal is None:
            # Safety: the transaction is committed, so no pipeline needs its records to publish it.
            journal.raise_floor(t + 1)
            journal.erase_below(t + 1)
            return "forgotten"
        if journal.replace_damaged_seal(seal, len(steps)) and _is_whole(journal, t):
            return "seal"
    raise ContentionError(
        f"transaction {t}: its records changed {CONDITIONAL_WRITE_TRIES_MAX} times during the repair. Try "
        "again."
    )


def seal_of(t: int, steps: tuple[Step, ...], sealed_at: str, spans: int) -> Seal | None:
    """Return the seal behind these steps; None if the commit counts other spans, so that a step is damaged."""
    if not steps:
        return None
    sources = merge_steps(steps).sources
    if sum(taken.spans for ranges in sources.values() for taken in ranges) != spans:
        return None
    records, checksum = totals(sources)
    return Seal(t, records, checksum, sealed_at)


def _is_whole(journal: Journal, t: int) -> bool:
    journal.check_format()
    try:
        recorded = journal.read(t)
        journal.aside(t)
    except TrimmedError:
        return True  # nothing of it counts
    except FormatError:
        raise
    except DamageError:
        return False
    return recorded.step is not None and recorded.seal is not None


def repairable(t: int) -> str:
    """Say which command repairs the records of a transaction that has a commit."""
    return (
        f"Transaction {t} is committed, and its tables are intact: `tracelake pipeline repair {t}` repairs "
        "its records."
    )
