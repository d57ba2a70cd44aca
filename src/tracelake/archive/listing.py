"""Archived traces, and those that cannot be archived, as lists for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from sqlalchemy import select

from tracelake.tracking.schema import ARCHIVE_REPO, trace_info
from tracelake.tracking.store import TrackingStore

ArchiveState: TypeAlias = Literal["archived", "failed"]


@dataclass(frozen=True, slots=True)
class ArchivedTrace:
    """A trace that is archived, or that is marked because it cannot be."""

    trace_id: str
    experiment_id: str
    name: str | None
    start_ns: int
    archived_ns: int | None
    location: str | None
    size_bytes: int | None
    """In the repository; 0 in layout `lake`, None while it is hot."""
    failure: str | None
    """Its mark, `MALFORMED_TRACE`: passes skip it until somebody takes that away."""


def list_traces(tracking: TrackingStore, state: ArchiveState, limit: int) -> list[ArchivedTrace]:
    """Return archived traces, the last first, or marked ones, the newest first."""
    info = trace_info.c
    columns = (
        info.trace_id,
        info.experiment_id,
        info.name,
        info.start_ns,
        info.archived_ns,
        info.archive_location,
        info.archive_bytes,
        info.archival_failure,
    )
    if state == "archived":
        which, order = info.spans_location == ARCHIVE_REPO, info.archived_ns.desc()
    else:
        which, order = info.archival_failure.is_not(None), info.start_ns.desc()
    query = (
        select(*columns).where(info.lake == tracking.lake, which).order_by(order, info.trace_id).limit(limit)
    )
    with tracking.database.reading() as connection:
        return [ArchivedTrace(*row) for row in connection.execute(query)]
