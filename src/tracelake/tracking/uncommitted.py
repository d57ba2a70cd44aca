"""Reads of pending outbox rows by trace, before the pipeline commits them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import ColumnElement, and_, func, or_, select, tuple_

from tracelake import limits
from tracelake.results import SERVER_KINDS
from tracelake.tracking.database import at_once
from tracelake.tracking.schema import outbox, spans, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore

ListedPart: TypeAlias = tuple[str, int, int]
"""Trace id, outbox row, and bytes of a part's spans. These never change while the part exists."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Spans of a trace from one transaction, compressed as in the database."""

    trace_id: str
    sequence: int
    size_bytes: int
    """Size of its decompressed `TracesData`."""
    payload: bytes


def listed(part: StoredPart) -> ListedPart:
    """Return the key of a part."""
    return part.trace_id, part.sequence, part.size_bytes


class Uncommitted:
    """The spans of one lake's outbox rows. A row may disappear at any time; a commit has it then."""

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
        """Return the numbers in these ranges whose spans are still stored, the newest first. The outbox row itself
        may be gone."""
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
        """Return the OTLP bytes of rows' spans; rows without stored spans are left out."""
        sizes: dict[int, int] = {}
        with self._database.reading() as connection:
            for some in at_once(sorted(sequences)):
                query = (
                    select(trace_parts.c.sequence, func.sum(trace_parts.c.size_bytes))
                    # `+ 0`: as in `listed`.
                    .where(trace_parts.c.lake + 0 == self._lake, trace_parts.c.sequence.in_(some))
                    .group_by(trace_parts.c.sequence)
                )
                sizes.update((sequence, int(size)) for sequence, size in connection.execute(query))
        return sizes

    def listed(self) -> list[ListedPart]:
        """Return the pending parts of the newest traces, within the limits of lists, the newest trace first.

        A trace with too many pending bytes is left out, and so are traces that exceed the total limit.
        """
        of = trace_parts.c
        waiting = self._waiting()
        newest = (
            select(of.trace_id, func.sum(of.size_bytes))
            # `+ 0` prevents a scan of all the lake's parts by primary key; the database uses the pending
            # numbers instead.
            .where(of.lake + 0 == self._lake, waiting)
            .group_by(of.trace_id)
            .order_by(func.max(of.sequence).desc())
            .limit(limits.UNCOMMITTED_TRACES_MAX)
        )
        parts: dict[str, list[ListedPart]] = {}
        with self._database.reading() as connection:
            room = limits.UNCOMMITTED_LIST_MAX_BYTES
            for trace_id, size in connection.execute(newest):
                if size <= min(room, limits.UNCOMMITTED_LIST_TRACE_MAX_BYTES):
                    parts[trace_id] = []
                    room -= int(size)
            columns = select(of.trace_id, of.sequence, of.size_bytes).order_by(of.sequence)
            for ids in at_once(list(parts)):
                for row in connection.execute(
                    columns.where(of.lake == self._lake, of.trace_id.in_(ids), waiting)
                ):
                    parts[row.trace_id].append((row.trace_id, row.sequence, row.size_bytes))
        return [part for trace_id in parts for part in parts[trace_id]]

    def _waiting(self) -> ColumnElement[bool]:
        rows = select(outbox.c.sequence).where(outbox.c.lake == self._lake)
        waits: ColumnElement[bool] = trace_parts.c.sequence.in_(rows)
        return waits

    def is_given_up(self, trace_id: str) -> bool:
        """Return whether the tables may lack spans of a trace that have left the outbox."""
        info = trace_info.c
        query = select(info.given_up).where(info.lake == self._lake, info.trace_id == trace_id)
        with self._database.reading() as connection:
            return bool(connection.execute(query).scalar())

    def spans_known(self, trace_id: str, workspace: str | None = None) -> int:
        """Return the number of received spans of a trace, in one workspace or all, from the columns that are kept."""
        of = spans.c
        is_server = of.kind.in_(SERVER_KINDS)
        claims = select(of.span_id, of.workspace, is_server).where(
            of.lake == self._lake, of.trace_id == trace_id
        )
        if workspace is not None:
            claims = claims.where(of.workspace == workspace)
        query = select(func.count()).select_from(claims.distinct().subquery())
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def of_trace(
        self, trace_id: str, *, at_most: int | None = None, waiting: bool = False
    ) -> list[ListedPart]:
        """Return the stored parts of a trace by row number, at most `at_most`; with `waiting`, only those in the
        outbox."""
        of = trace_parts.c
        query = select(of.trace_id, of.sequence, of.size_bytes).order_by(of.sequence)
        query = query.where(of.lake == self._lake, of.trace_id == trace_id).limit(at_most)
        with self._database.reading() as connection:
            rows = connection.execute(query.where(self._waiting()) if waiting else query)
            return [(row.trace_id, row.sequence, row.size_bytes) for row in rows]

    def of_traces(self, wanted: Collection[ListedPart]) -> list[StoredPart]:
        """Return the given parts that are still stored."""
        columns = (trace_parts.c[name] for name in ("trace_id", "sequence", "size_bytes", "payload"))
        query = select(*columns).where(trace_parts.c.lake == self._lake)
        key = tuple_(trace_parts.c.trace_id, trace_parts.c.sequence)
        parts: list[StoredPart] = []
        with self._database.reading() as connection:
            for some in at_once([part[:2] for part in wanted]):
                parts.extend(StoredPart(*row) for row in connection.execute(query.where(key.in_(some))))
        return parts

    def parts(self, sequences: Collection[int]) -> list[StoredPart]:
        """Return the stored parts of rows, by row number."""
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


def runs_of(
    sequences: Collection[int], gap: int, apart: Collection[int] = frozenset()
) -> list[tuple[int, int]]:
    """Return ranges that cover the numbers, the newest first. A range may skip up to `gap` numbers, but none in
    `apart`."""
    runs: list[tuple[int, int]] = []
    numbers, goes_on = frozenset(sequences), False
    for sequence in sorted(numbers.union(apart), reverse=True):
        if sequence not in numbers:
            goes_on = False
        elif goes_on and runs[-1][0] - sequence <= gap + 1:
            runs[-1] = sequence, runs[-1][1]
        else:
            runs.append((sequence, sequence))
            goes_on = True
    return runs


def named_runs(runs: Sequence[tuple[int, int]]) -> str:
    """Return ranges as text, such as `1200.1245_900.900`."""
    return "_".join(f"{first}.{last}" for first, last in runs)


def read_runs(text: str) -> list[tuple[int, int]] | None:
    """Return the ranges in a text, or None if it is invalid."""
    runs = []
    for run in text.split("_"):
        first, point, last = run.partition(".")
        if not (point and first.isdecimal() and last.isdecimal() and len(first) < 19 and len(last) < 19):
            return None
        runs.append((int(first), int(last)))
    return runs if len(runs) <= limits.UNCOMMITTED_RUNS_MAX else None
