"""What waits in the outbox, by trace, for those who read it before the pipeline does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, func, or_, select

from tracelake import limits
from tracelake.tracking.database import at_once
from tracelake.tracking.schema import outbox, trace_parts
from tracelake.tracking.store import TrackingStore


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Spans of a trace that one transaction stored, compressed, as they lie in the database."""

    trace_id: str
    sequence: int
    size_bytes: int
    """Of the serialized `TracesData` that it becomes."""
    payload: bytes


class Uncommitted:
    """The spans of the outbox rows of one lake. A row may go at any time: a commit has it then."""

    def __init__(self, store: TrackingStore) -> None:
        self._database = store.database
        self._lake = store.lake

    def newest(self, limit: int) -> list[int]:
        """Return the numbers of outbox rows, the newest first."""
        return self._first(outbox.c.sequence.desc(), limit)

    def oldest(self, limit: int) -> list[int]:
        """Return the numbers of outbox rows, the oldest first."""
        return self._first(outbox.c.sequence, limit)

    def _first(self, order: ColumnElement[int], limit: int) -> list[int]:
        query = select(outbox.c.sequence).where(outbox.c.lake == self._lake).order_by(order).limit(limit)
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    def within(self, runs: Iterable[tuple[int, int]], limit: int) -> list[int]:
        """Return the numbers of rows, there or gone, whose spans are still here, in runs, the newest first."""
        in_runs = [
            and_(trace_parts.c.sequence >= first, trace_parts.c.sequence <= last) for first, last in runs
        ]
        query = (
            select(trace_parts.c.sequence)
            .where(trace_parts.c.lake + 0 == self._lake, or_(*in_runs))
            .distinct()
            .order_by(trace_parts.c.sequence.desc())
            .limit(limit)
        )
        with self._database.reading() as connection:
            return list(connection.execute(query).scalars())

    def sizes(self, sequences: Collection[int]) -> dict[int, int]:
        """Return the bytes of the spans of rows, as OTLP; those whose spans are gone are left out."""
        sizes: dict[int, int] = {}
        with self._database.reading() as connection:
            for some in at_once(sorted(sequences)):
                query = (
                    select(trace_parts.c.sequence, func.sum(trace_parts.c.size_bytes))
                    # `+ 0`: as in `TrackingStore.uncommitted`.
                    .where(trace_parts.c.lake + 0 == self._lake, trace_parts.c.sequence.in_(some))
                    .group_by(trace_parts.c.sequence)
                )
                sizes.update((sequence, int(size)) for sequence, size in connection.execute(query))
        return sizes

    def parts(self, sequences: Collection[int]) -> list[StoredPart]:
        """Return the spans of rows, in order of their numbers."""
        columns = (trace_parts.c[name] for name in ("trace_id", "sequence", "size_bytes", "payload"))
        query = select(*columns).where(trace_parts.c.lake + 0 == self._lake)
        parts: list[StoredPart] = []
        with self._database.reading() as connection:
            for some in at_once(sorted(sequences)):
                rows = connection.execute(
                    query.where(trace_parts.c.sequence.in_(some)).order_by(
                        trace_parts.c.sequence, trace_parts.c.trace_id
                    )
                )
                parts.extend(StoredPart(*row) for row in rows)
        return parts


def runs_of(sequences: Iterable[int], gap: int) -> list[tuple[int, int]]:
    """Return the runs that numbers are in, the newest first; so many may lack within one."""
    runs: list[tuple[int, int]] = []
    for sequence in sorted(sequences, reverse=True):
        if runs and runs[-1][0] - sequence <= gap + 1:
            runs[-1] = sequence, runs[-1][1]
        else:
            runs.append((sequence, sequence))
    return runs


def named_runs(runs: Sequence[tuple[int, int]]) -> str:
    """Return runs as text, such as `1200.1245_900.900`."""
    return "_".join(f"{first}.{last}" for first, last in runs)


def read_runs(text: str) -> list[tuple[int, int]] | None:
    """Return the runs of a text, None where it is none."""
    runs = []
    for run in text.split("_"):
        first, point, last = run.partition(".")
        if not (point and first.isdecimal() and last.isdecimal() and len(first) < 19 and len(last) < 19):
            return None
        runs.append((int(first), int(last)))
    return runs if len(runs) <= limits.UNCOMMITTED_RUNS_MAX else None
