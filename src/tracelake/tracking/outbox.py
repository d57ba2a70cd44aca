"""The way out of the tracking store: requests as received, until a commit on `main` holds them.

A row is known by its number, read by it, recorded in the journal by it, and deleted by it after the commit. Nobody
keeps a position, "all below are done": PostgreSQL commits numbers in another order than it gives them, so a number may
appear below one that was read long ago, and one that was rolled back never appears. Neither is waited for, neither is
missed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import delete, exists, func, select

from tracelake.tracking.database import at_once
from tracelake.tracking.schema import ARCHIVE_REPO, outbox, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """What waits for the pipeline."""

    sequence: int
    size_bytes: int
    received_ns: int


class Outbox:
    """The outbox of one lake."""

    def __init__(self, store: TrackingStore) -> None:
        self._database = store.database
        self._lake = store.lake

    def waiting(self, limit: int | None = None) -> list[OutboxRow]:
        """Return rows that are there, the least numbers first, at most so many."""
        query = (
            select(outbox.c.sequence, outbox.c.size_bytes, outbox.c.received_ns)
            .where(outbox.c.lake == self._lake)
            .order_by(outbox.c.sequence)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [OutboxRow(*row) for row in connection.execute(query)]

    def totals(self) -> tuple[int, int, int | None]:
        """Return how many rows wait, their bytes, and when the oldest came (nanoseconds)."""
        query = select(
            func.count(), func.coalesce(func.sum(outbox.c.size_bytes), 0), func.min(outbox.c.received_ns)
        ).where(outbox.c.lake == self._lake)
        with self._database.reading() as connection:
            rows, size_bytes, oldest_ns = connection.execute(query).one()
        return int(rows), int(size_bytes), oldest_ns

    def read(self, sequence: int) -> bytes | None:
        """Return the segment of a row, None where it is gone."""
        query = select(outbox.c.payload).where(outbox.c.lake == self._lake, outbox.c.sequence == sequence)
        with self._database.reading() as connection:
            payload: bytes | None = connection.execute(query).scalar()
        return payload

    def size_bytes(self, sequence: int) -> int | None:
        """Return the size of a row, None where it is gone."""
        query = select(outbox.c.size_bytes).where(outbox.c.lake == self._lake, outbox.c.sequence == sequence)
        with self._database.reading() as connection:
            size: int | None = connection.execute(query).scalar()
        return size

    def trim(self, sequences: Collection[int]) -> None:
        """Delete rows that a commit holds, or that the user gave up; again is fine.

        Late spans of archived traces go with them: the tables have them now, and the rest of their traces.
        """
        with self._database.writing() as connection:
            for some in at_once(sequences):
                connection.execute(
                    delete(outbox).where(outbox.c.lake == self._lake, outbox.c.sequence.in_(some))
                )
                archived = select(trace_info.c.trace_id).where(
                    trace_info.c.lake == self._lake,
                    trace_info.c.trace_id == trace_parts.c.trace_id,
                    trace_info.c.spans_location == ARCHIVE_REPO,
                )
                connection.execute(
                    delete(trace_parts).where(
                        trace_parts.c.lake + 0 == self._lake,  # as in `TrackingStore.uncommitted`
                        trace_parts.c.sequence.in_(some),
                        exists(archived),
                    )
                )
