"""Outputs to other systems: what is done with a transaction there, once each. Pure.

| its rows | what the system has | then |
|---|---|---|
| of a transaction before the output began | whatever | nothing |
| none | whatever | nothing: no batch is empty |
| some | the marker of it, or of a later one | nothing: it was written by a peer, or by us before a crash |
| some | the marker of an earlier one | rows and marker are written in one step |
"""

from __future__ import annotations

from typing import Final

NO_MARKER: Final = -1
"""What a system says that has nothing of an output yet."""


def is_to_be_written(transaction: int, since: int, rows: int, marker: int) -> bool:
    """Whether the rows of a transaction are to be written now. `marker` is the last that the system has."""
    return transaction >= since and rows > 0 and transaction > marker


def begins_at(upper: int) -> int:
    """Return the first transaction of an output that is added, from an upper that was read after its record was there.

    Somebody may be publishing that one and not know of the output. The one after it begins later than its commit, so
    whoever publishes it sees the record.
    """
    return upper + 1
