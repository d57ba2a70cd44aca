"""Trimming: of transactions of which all is done only the newest keep their records, for audit.

First the floor is raised, by one conditional write, and then what is below is erased. Who read a record, or created
one, reads the floor afterwards: is it not above, then nothing of that transaction had been erased by then.
"""

from __future__ import annotations

from tracelake.journal.protocol import floor_above
from tracelake.journal.store import Journal


def trim(journal: Journal, upper: int, kept: int, *, dry_run: bool = False) -> int:
    """Erase records of transactions before the newest `kept` below `upper`, which are committed; return of how many.

    Each call erases again what is below the floor: what a call that was killed has left, and what somebody who was late
    has recorded there.
    """
    floor = journal.floor()
    wanted = max(floor, floor_above(upper, kept))
    if not dry_run:
        journal.raise_floor(wanted)
        journal.erase_below(wanted)
    return wanted - floor
