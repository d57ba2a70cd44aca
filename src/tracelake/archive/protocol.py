"""The archive protocol: decisions on one trace, made on rows that stay locked until they are applied (PROTOCOLS §4).
Pure.

An upload has a row before its first byte is sent, and every name is used once:

| state of the row | finalize | abandon, sweep | delete, restore of its last trace |
|---|---|---|---|
| OPEN: being uploaded | LIVE, with the number of traces; stays for none | CONDEMNED | |
| LIVE: traces name it | adds its traces | stays | CONDEMNED |
| CONDEMNED: no trace names it, or ever will | nothing is archived | object deleted, then the row | |
| no row | nothing is archived | object deleted, if one exists | |

An object is therefore deleted only if its row shows that no trace can name it any more. A late finalize detects this
without a clock. A process that died, or a lost reply, leaves a row for the next sweep.

A trace's generation only increases, even on restore. If a deleted trace arrives again, its generation restarts, but
its life differs: an upload from before the deletion is never finalized.
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
    """State of a trace from its row."""

    is_hot: bool
    generation: int
    life: int
    """Identifies the trace between deletions: a trace that arrives again after a deletion has another."""
    location: str | None = None


def finalize(
    upload_state: str | None, trace: TraceState | None, generation: int, life: int
) -> ArchiveOutcome:
    """Decide the outcome of a trace uploaded at `generation`. `upload_state` is None if the upload has no row.

    If the outcome is ARCHIVED, the upload becomes the trace's archive, and the same transaction clears the payload.
    """
    if upload_state not in (OPEN, LIVE):
        return ArchiveOutcome.FAILED
    if trace is None or not trace.is_hot:
        return ArchiveOutcome.GONE
    if trace.life != life:  # deleted and received again, so its generation restarted
        return ArchiveOutcome.CHANGED
    return ArchiveOutcome.ARCHIVED if trace.generation == generation else ArchiveOutcome.CHANGED


def may_delete_upload(state: str | None, traces: int) -> bool:
    """Return whether an upload can be abandoned: no trace names it now or ever will."""
    return state in (OPEN, CONDEMNED) or (state == LIVE and traces == 0)


def may_restore(trace: TraceState | None, location: str) -> bool:
    """Return whether the location that was read is still the archive of the trace."""
    return trace is not None and not trace.is_hot and trace.location == location


def may_delete(trace: TraceState | None, location: str | None) -> bool:
    """Return whether a trace is still in the place that its deletion read: at an archive location, or hot (None)."""
    return trace is not None and trace.is_hot == (location is None) and trace.location == location
