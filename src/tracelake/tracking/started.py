"""What MLflow's client says of a trace by a request of its own, before its spans come or after them.

It is kept by the id of the trace, as tags are, and not in its row: a trace without spans is none, and whether it is hot
or archived makes no difference to what is said here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Connection, Table, func, select, update

from tracelake import limits
from tracelake._errors import LimitError
from tracelake.tracking.annotations import OF_COLUMNS, Annotations
from tracelake.tracking.database import at_once
from tracelake.tracking.schema import (
    TRACKING_STORE,
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


class StartedTraces:
    """What is said of the traces of one lake. Threads may share it; each call is one transaction."""

    def __init__(self, store: TrackingStore) -> None:
        self._database, self._lake = store.database, store.lake
        self._insert = Annotations(store).insert

    def start(self, trace_id: str, told: StartedTrace) -> None:
        """Keep what is said of a trace, which may be here or come later.

        Where this is silent, what was said before stands. Tags that say where a trace is are left out: only the
        archive sets them. Raises UsageError, LimitError.
        """
        tags = {key: value for key, value in told.tags.items() if key not in OF_COLUMNS}
        metadata = dict(told.metadata)
        metadata |= {key: told.fields[name] for key, name in _OF_INFO.items() if name in told.fields}
        for key, value in (*tags.items(), *metadata.items()):
            check_tag(key, value, limits.TRACKING_VALUE_MAX_CHARS)
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
                    of.lake == self._lake, of.trace_id.in_(ids), *told
                )
                for trace_id, key, value in connection.execute(query.order_by(of.key)):
                    metadata, fields = several.setdefault(trace_id, ({}, {}))
                    (fields if key in _OF_INFO else metadata)[_OF_INFO.get(key, key)] = value
        return several

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
