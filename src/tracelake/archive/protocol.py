"""What a pass may do with one trace, decided on rows that are locked while it is carried out (PROTOCOLS §4). Pure.

An upload is a row of its own before the first byte of it is sent, and every name is used once:

| state of the row | finalize | abandon, sweep | delete, restore of the last trace in it |
|---|---|---|---|
| OPEN: being uploaded | LIVE, with so many traces; stays for none | CONDEMNED | |
| LIVE: traces name it | so many more | stays | CONDEMNED |
| CONDEMNED: nobody names it, or ever will | nothing is archived | object deleted, then the row | |
| no row | nothing is archived | object deleted, if one lies there | |

So an object is deleted only where its row says that nobody can name it any more, and a finalize that comes too late
finds that out: no clock is asked, and whose process died, or whose reply was lost, leaves a row for the next sweep.
The generation of a trace only climbs, with restore too. Where it was deleted and came again, its generation begins
anew, and its life is another: an upload of what was before is never finalized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracelake.archive.retention import ArchiveOutcome

OPEN: Final = "open"
LIVE: Final = "live"
CONDEMNED: Final = "condemned"


@dataclass(frozen=True, slots=True)
class TraceState:
    """What the row of a trace says."""

    is_hot: bool
    generation: int
    life: int
    """Which writes it is of; another one after it was deleted and came again."""
    location: str | None = None


def finalize(
    upload_state: str | None, trace: TraceState | None, generation: int, life: int
) -> ArchiveOutcome:
    """Decide what becomes of a trace that was uploaded as of `generation`; `upload_state` is None without a row.

    ARCHIVED: the upload becomes its archive, and the payload is cleared by the same transaction.
    """
    if upload_state not in (OPEN, LIVE):
        return ArchiveOutcome.FAILED
    if trace is None or not trace.is_hot:
        return ArchiveOutcome.GONE
    if trace.life != life:  # deleted meanwhile, and come again: its generations began anew
        return ArchiveOutcome.CHANGED
    return ArchiveOutcome.ARCHIVED if trace.generation == generation else ArchiveOutcome.CHANGED


def may_delete_upload(state: str | None, traces: int) -> bool:
    """Whether an upload can be given up for good: nobody names it, and from here on nobody will."""
    return state in (OPEN, CONDEMNED) or (state == LIVE and traces == 0)


def may_restore(trace: TraceState | None, location: str) -> bool:
    """Whether what was read at a location is still the archive of the trace."""
    return trace is not None and not trace.is_hot and trace.location == location


def may_delete(trace: TraceState | None, location: str | None) -> bool:
    """Whether a trace is still where its deletion found it: at an archive location, or hot (None)."""
    return trace is not None and trace.is_hot == (location is None) and trace.location == location
