"""The way out of the tracking store: requests as received, until a commit on `main` holds them.

A row is known by its number, read by it, recorded in the journal by it, and deleted by it after the commit. Nobody
keeps a position, "all below are done": PostgreSQL commits numbers in another order than it gives them, so a number may
appear below one that was read long ago, and one that was rolled back never appears. Neither is waited for, neither is
missed.

The payload of a row is empty where the parts of its traces are all that was sent: they are not stored twice. Whoever
deletes such a part before its row is gone gives the row its payload first (`keep`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Insert, Table, delete, func, insert, literal, select, update

from tracelake._errors import DamageError, InputError
from tracelake.otlp.framing import segment_of_frames, segment_of_frames_bytes, segment_payloads
from tracelake.otlp.partition import take_apart
from tracelake.tracking.database import at_once
from tracelake.tracking.schema import ARCHIVE_REPO, INCOMPLETE, outbox, spans, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore, unpacked


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row as it can be read."""

    segment: bytes
    traces: dict[str, bool]
    """That came with it, and whether all can be read that it brought of each."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """What waits for the pipeline."""

    sequence: int
    size_bytes: int
    received_ns: int


def segments(connection: Connection, lake: int, sequences: Collection[int]) -> dict[int, bytes]:
    """Return what rows say, by their numbers, of those that are there.

    One that lacks parts has as many bytes as it should, with nothing in place of them: it is damaged, whoever reads it.
    One of which a part cannot be read has it behind all others.
    """
    query = select(outbox.c.sequence, outbox.c.payload, outbox.c.size_bytes)
    rows = connection.execute(query.where(outbox.c.lake == lake, outbox.c.sequence.in_(sequences))).all()
    parts: dict[int, list[tuple[str, int, bytes]]] = {row.sequence: [] for row in rows if not row.payload}
    if parts:
        of = trace_parts.c
        # `+ 0` as in `Uncommitted.listed`.
        theirs = select(of.sequence, of.trace_id, of.size_bytes, of.payload).where(
            of.lake + 0 == lake, of.sequence.in_(parts)
        )
        for sequence, *part in connection.execute(theirs):
            parts[sequence].append(tuple(part))
    payloads = {}
    for row in rows:
        if not (payload := row.payload):
            in_order = sorted(parts[row.sequence], key=_damaged_last)
            payload = segment_of_frames([part[1:] for part in in_order])
        payloads[row.sequence] = payload[: row.size_bytes].ljust(row.size_bytes, b"\0")
    return payloads


def _damaged_last(part: tuple[str, int, bytes]) -> tuple[bool, str]:
    """Nothing of a segment is read that is behind damage: so what cannot be read takes nothing along that can."""
    trace_id, size_bytes, payload = part
    try:
        unpacked(trace_id, payload, size_bytes)
    except DamageError:
        return True, trace_id
    return False, trace_id


def _spans_read(segment: bytes) -> Counter[str]:
    """Return how many spans of each trace can be read of a segment."""
    read = Counter[str]()
    for payload in segment_payloads(segment):
        with suppress(InputError):
            for trace_id, trace in take_apart(payload.format, payload.data).items():
                read[trace_id] += len(trace.rows)
    return read


def keep(connection: Connection, lake: int, trace_ids: Collection[str]) -> None:
    """Give rows that are told by parts of these traces their payload: the parts may be deleted then.

    Who asks has locked the traces, so that nothing comes to them any more.
    """
    parts, of = trace_parts.c, outbox.c
    numbers: set[int] = set()
    for ids in at_once(trace_ids):
        theirs = select(parts.sequence).where(parts.lake == lake, parts.trace_id.in_(ids))
        numbers.update(connection.execute(theirs.distinct()).scalars())
    for some in at_once(numbers):
        rows = select(of.sequence).where(of.lake == lake, of.sequence.in_(some), of.payload == b"")
        locked = connection.execute(rows.order_by(of.sequence).with_for_update()).scalars().all()
        for sequence in locked:
            payload = segments(connection, lake, [sequence])[sequence]
            here = (of.lake == lake, of.sequence == sequence)
            connection.execute(update(outbox).where(*here).values(payload=payload))


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
        return self.read_all([sequence]).get(sequence)

    def read_all(self, sequences: Collection[int]) -> dict[int, bytes]:
        """Return the segments of rows by their numbers, of those that are there."""
        payloads: dict[int, bytes] = {}
        with self._database.reading() as connection:
            for some in at_once(sequences):
                payloads.update(segments(connection, self._lake, some))
        return payloads

    def looked_through(self, sequence: int) -> ReadRow | None:
        """Return a row, and which of its traces it has whole, None where it is gone. For one that is damaged: it reads
        all spans of the lake."""
        parts, of = trace_parts.c, spans.c
        with self._database.reading() as connection:
            segment = segments(connection, self._lake, [sequence]).get(sequence)
            # `+ 0` as in `Uncommitted.listed`. Of what the database has lost, the columns of spans are left.
            brought = select(parts.trace_id, parts.spans).where(
                parts.lake + 0 == self._lake, parts.sequence == sequence
            )
            counts = {row.trace_id: int(row.spans) for row in connection.execute(brought)}
            told = select(of.trace_id).where(of.lake == self._lake, of.sequence == sequence).distinct()
            traces = counts.keys() | set(connection.execute(told).scalars())
        if segment is None:
            return None
        read = _spans_read(segment)
        return ReadRow(segment, {each: 0 < counts.get(each, 0) <= read[each] for each in sorted(traces)})

    def there(self, sequences: Collection[int]) -> set[int]:
        """Return the numbers of the rows that are there."""
        there: set[int] = set()
        with self._database.reading() as connection:
            for some in at_once(sequences):
                there.update(connection.execute(select(outbox.c.sequence).where(*self._of(some))).scalars())
        return there

    def _of(self, sequences: Collection[int]) -> tuple[Any, Any]:
        return outbox.c.lake == self._lake, outbox.c.sequence.in_(sequences)

    def size_bytes(self, sequence: int) -> int | None:
        """Return the size of a row, None where it is gone."""
        query = select(outbox.c.size_bytes).where(outbox.c.lake == self._lake, outbox.c.sequence == sequence)
        with self._database.reading() as connection:
            size: int | None = connection.execute(query).scalar()
        return size

    def trim(self, sequences: Collection[int]) -> None:
        """Delete rows that a commit holds; again is fine.

        Late spans of archived traces go with them: the tables have them now, and the rest of their traces.
        """
        for some in at_once(sequences):
            with self._database.writing() as connection:
                self._trim(connection, some)

    def give_up(self, sequences: Collection[int]) -> None:
        """Delete rows of which no table will have all spans: given up by the user, or damaged; again is fine.

        Their traces say so, for good; and they are marked INCOMPLETE, so no pass takes them until somebody takes the
        mark away. What is hot of them stays, for it may be all that there is.
        """
        for some in at_once(sequences):
            with self._database.writing() as connection:
                self._locked(connection, some)
                # Only of rows that are there: whoever took the mark away has decided, and this is done again and again.
                waiting = self._locked_rows(connection, some)
                of = trace_info.c
                mark = func.coalesce(of.archival_failure, INCOMPLETE)
                connection.execute(
                    update(trace_info)
                    .where(of.lake == self._lake, of.trace_id.in_(self._traces(waiting)))
                    .values(archival_failure=mark, given_up=True)
                )
                self._trim(connection, some)

    def let_go(self, sequence: int, traces: Mapping[str, bool]) -> None:
        """Delete a row that was read as far as it can be, and a commit holds that; again is fine.

        Of its traces, of which it did not have all, those come again by a row of their own that are stored in parts
        beside its payload too; the others say so, as in `give_up`.
        """
        lost = [trace_id for trace_id, is_whole in traces.items() if not is_whole]
        of = trace_info.c
        mark = func.coalesce(of.archival_failure, INCOMPLETE)
        with self._database.writing() as connection:
            for ids in at_once(sorted(traces)):
                its = select(of.trace_id).where(of.lake == self._lake, of.trace_id.in_(ids))
                connection.execute(its.order_by(of.trace_id).with_for_update()).all()
            if self._locked_rows(connection, [sequence]):
                again = self._again(connection, sequence, lost)
                for ids in at_once([trace_id for trace_id in lost if trace_id not in again]):
                    these = (of.lake == self._lake, of.trace_id.in_(ids))
                    connection.execute(
                        update(trace_info).where(*these).values(archival_failure=mark, given_up=True)
                    )
                self._trim(connection, [sequence])

    def _again(self, connection: Connection, sequence: int, trace_ids: Collection[str]) -> set[str]:
        """Make a row of the parts of traces that came with a row that has a payload, and return which there are.

        They are copied, with the columns of their spans: who reads them by the number of the old row goes on.
        """
        own = select(outbox.c.payload, outbox.c.received_ns).where(*self._of([sequence]))
        payload, received_ns = connection.execute(own).one()
        of = trace_parts.c
        sizes = dict[str, int]()
        for ids in at_once(trace_ids if payload else ()):
            its = (of.lake == self._lake, of.trace_id.in_(ids), of.sequence == sequence)
            sizes.update(connection.execute(select(of.trace_id, func.length(of.payload)).where(*its)).all())
        if sizes:
            row = {"lake": self._lake, "payload": b"", "received_ns": received_ns}
            row["size_bytes"] = segment_of_frames_bytes(sizes.values())
            (number,) = connection.execute(insert(outbox).values(row).returning(outbox.c.sequence)).one()
            for table in (trace_parts, spans):
                for ids in at_once(sizes):
                    connection.execute(_copied(table, self._lake, ids, sequence, number))
        return set(sizes)

    def _trim(self, connection: Connection, sequences: Collection[int]) -> None:
        # Who restores one of them meanwhile counts on its late spans: there, or gone and in the tables.
        archived = self._locked(connection, sequences, trace_info.c.spans_location == ARCHIVE_REPO)
        self._locked_rows(connection, sequences)
        connection.execute(delete(outbox).where(*self._of(sequences)))
        for ids in at_once(archived):
            connection.execute(
                delete(trace_parts).where(
                    trace_parts.c.lake == self._lake,
                    trace_parts.c.trace_id.in_(ids),
                    trace_parts.c.sequence.in_(sequences),
                )
            )

    def _locked_rows(self, connection: Connection, sequences: Collection[int]) -> list[int]:
        """Return the numbers of rows that are there, locked as `keep` does: by number, and after traces."""
        query = select(outbox.c.sequence).where(*self._of(sequences))
        return list(connection.execute(query.order_by(outbox.c.sequence).with_for_update()).scalars())

    def _locked(self, connection: Connection, sequences: Collection[int], *conditions: Any) -> list[str]:
        """Return the traces that came with some rows, locked in the order in which everybody locks them."""
        info = trace_info.c
        query = (
            select(info.trace_id)
            .where(info.lake == self._lake, info.trace_id.in_(self._traces(sequences)), *conditions)
            .order_by(info.trace_id)
            .with_for_update()
        )
        return list(connection.execute(query).scalars())

    def _traces(self, sequences: Collection[int]) -> Any:
        """Return what asks for the traces that came with some rows."""
        parts = trace_parts.c
        # `+ 0` as in `Uncommitted.listed`.
        return select(parts.trace_id).where(parts.lake + 0 == self._lake, parts.sequence.in_(sequences))


def _copied(table: Table, lake: int, trace_ids: Collection[str], sequence: int, number: int) -> Insert:
    """Return what copies rows of traces that came with a row of the outbox, as if they had come with another."""
    of = table.c
    values = [literal(number) if column.name == "sequence" else column for column in of]
    rows = select(*values).where(of.lake == lake, of.trace_id.in_(trace_ids), of.sequence == sequence)
    return insert(table).from_select([column.name for column in of], rows)
