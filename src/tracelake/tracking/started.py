"""What MLflow's client says of a trace by a request of its own, before its spans come or after them.

It is kept by the id of the trace, as tags are, and not in its row: a trace without spans is none, and whether it is hot
or archived makes no difference to what is said here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, Table, exists, func, select, update

from tracelake import limits
from tracelake._errors import LimitError
from tracelake.tracking.annotations import OF_COLUMNS
from tracelake.tracking.assessment_rows import new_row
from tracelake.tracking.database import at_once
from tracelake.tracking.schema import (
    DELETED_KEY,
    TRACKING_STORE,
    assessments,
    trace_info,
    trace_metadata,
    trace_tags,
)
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.tag_texts import check_tag
from tracelake.tracking.told import FOR_ALL, is_alone

CLIENT_REQUEST_ID: Final = "tracelake.info.client_request_id"
"""The key under which metadata has the id that a client gave a trace."""
_OF_INFO: Final = {
    CLIENT_REQUEST_ID: "client_request_id",
    "tracelake.info.request_preview": "request_preview",
    "tracelake.info.response_preview": "response_preview",
}
"""Keys of metadata that are fields of a trace's info."""


@dataclass(frozen=True, slots=True)
class StartedTrace:
    """What is said of a trace: `fields` are those of its info that spans do not tell, or tell otherwise."""

    tags: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    assessments: Sequence[Mapping[str, Any]] = ()
    """Kept all or none, and where the trace has none yet: a request may be repeated."""


class StartedTraces:
    """What is said of the traces of one lake. Threads may share it; each call is one transaction."""

    def __init__(self, store: TrackingStore) -> None:
        self._database, self._lake = store.database, store.lake
        self._insert = store.database.insert

    def start(self, trace_id: str, told: StartedTrace) -> None:
        """Keep what is said of a trace, which may be here or come later.

        Where this is silent, what was said before stands. Tags that say where a trace is are left out: only the
        archive sets them. Raises UsageError, LimitError.
        """
        tags = {key: value for key, value in told.tags.items() if key not in OF_COLUMNS}
        metadata = {key: value for key, value in told.metadata.items() if key != DELETED_KEY}
        metadata |= {key: told.fields[name] for key, name in _OF_INFO.items() if name in told.fields}
        for key, value in (*tags.items(), *metadata.items()):
            check_tag(key, value, limits.TRACKING_VALUE_MAX_CHARS)
        rows = self._rows(trace_id, told.assessments)
        here = (trace_info.c.lake == self._lake, trace_info.c.trace_id == trace_id)
        advanced = (
            update(trace_info)
            .where(*here, trace_info.c.spans_location == TRACKING_STORE)
            .values(db_payload_generation=trace_info.c.db_payload_generation + 1, updated_ns=time.time_ns())
        )
        with self._database.writing() as connection:
            connection.execute(advanced)  # A3: who archives it now looks again
            self._set(connection, trace_tags, {"trace_id": trace_id, "workspace": FOR_ALL}, tags)
            self._set(connection, trace_metadata, {"trace_id": trace_id}, metadata)
            self._keep(connection, trace_id, rows)

    def of_traces(
        self, trace_ids: Collection[str], workspace: str | None = None
    ) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        """Return metadata and fields of traces, by id; of those of which a workspace is told nothing, none."""
        told = () if workspace is None else (is_alone(trace_metadata, workspace),)
        several: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        with self._database.reading() as connection:
            for ids in at_once(trace_ids):
                of = trace_metadata.c
                query = select(of.trace_id, of.key, of.value).where(
                    of.lake == self._lake, of.trace_id.in_(ids), of.key != DELETED_KEY, *told
                )
                for trace_id, key, value in connection.execute(query.order_by(of.key)):
                    metadata, fields = several.setdefault(trace_id, ({}, {}))
                    (fields if key in _OF_INFO else metadata)[_OF_INFO.get(key, key)] = value
        return several

    def deleted(self, trace_ids: Collection[str]) -> set[str]:
        """Return those of some traces that were deleted, and have received no spans since."""
        gone: set[str] = set()
        of, info = trace_metadata.c, trace_info.c
        exists_now = exists().where(info.lake == of.lake, info.trace_id == of.trace_id)
        with self._database.reading() as connection:
            for ids in at_once(trace_ids):
                query = select(of.trace_id).where(
                    of.lake == self._lake, of.trace_id.in_(ids), of.key == DELETED_KEY, ~exists_now
                )
                gone.update(connection.execute(query).scalars())
        return gone

    def _rows(self, trace_id: str, several: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return rows of assessments; their ids are the same whenever they are told again."""
        if len(several) > limits.ANNOTATIONS_MAX:
            raise LimitError(
                f"{len(several):,} assessments of trace {trace_id}, and the limit is {limits.ANNOTATIONS_MAX:,}."
            )
        ids = [sha256(f"{trace_id} {number}".encode()).hexdigest()[:32] for number in range(len(several))]
        rows = [new_row(trace_id, f"a-{id}", each, FOR_ALL) for id, each in zip(ids, several, strict=True)]
        return [{"lake": self._lake, **row} for row in rows]

    def _keep(self, connection: Connection, trace_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep assessments of a trace that has none yet."""
        here = (assessments.c.lake == self._lake, assessments.c.trace_id == trace_id)
        if rows and not connection.execute(select(exists().where(*here))).scalar_one():
            # Who is told the same at once, on PostgreSQL, has seen none either: that waits here, and adds none.
            connection.execute(self._insert(assessments).on_conflict_do_nothing(), list(rows))

    def _set(
        self, connection: Connection, table: Table, of: Mapping[str, str], values: Mapping[str, str]
    ) -> None:
        if not values:
            return
        statement = self._insert(table)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["lake", *of, "key"], set_={"value": statement.excluded.value}
            ),
            [{"lake": self._lake, **of, "key": key, "value": value} for key, value in sorted(values.items())],
        )
        here = (table.c.lake == self._lake, table.c.trace_id == of["trace_id"])
        count = connection.execute(select(func.count()).select_from(table).where(*here)).scalar_one()
        if count > limits.ANNOTATIONS_MAX:
            raise LimitError(
                f"trace {of['trace_id']} would have {count:,} tags or metadata, and the limit is "
                f"{limits.ANNOTATIONS_MAX:,}."
            )
