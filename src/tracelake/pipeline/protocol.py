"""Overlap: what of the next transaction may be read while one is merged and published, and when it stands. Pure.

Input that is read ahead is recorded nowhere. At its turn all is decided as if nothing had been read: what waits, what
a peer has taken, what is set aside. Only where just these inputs are to be read then, in this order, the rows that
were read ahead take the place of reading them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracelake.journal.actions import Action, Look, OpenInputs


def may_read_ahead(*, is_new: bool, is_alone: bool, is_stopping: bool) -> bool:
    """Whether input is read beside a transaction that is about to be published.

    `is_new`: this run has read and recorded it, and no task failed on it. A replay reads nothing further.
    `is_alone`: nothing of it is suspected, and no other process is at it, or has died of it.
    """
    return is_new and is_alone and not is_stopping


def keeps(action: Action) -> bool:
    """Whether what was read ahead may still have its turn: not where anything but the next new input comes first."""
    return isinstance(action, Look | OpenInputs)


def stands_for(ahead: Sequence[object], inputs: Sequence[object]) -> bool:
    """Whether the rows of inputs that were read ahead are those of the inputs that are to be read now."""
    return tuple(ahead) == tuple(inputs)
