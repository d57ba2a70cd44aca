"""Retention of an experiment or a workspace that overrides the server's."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, select

from tracelake._errors import NotFoundError, UsageError
from tracelake.archive.retention import RETENTION_TAG
from tracelake.durations import duration_ns
from tracelake.limits import NAME_QUOTED_MAX_CHARS, TRACKING_NAME_MAX_CHARS
from tracelake.tracking.schema import (
    ARCHIVE_REPO,
    TRACKING_STORE,
    experiment_tags,
    experiments,
    trace_info,
    workspaces,
)
from tracelake.tracking.store import TrackingStore


def set_retention_override(
    tracking: TrackingStore, retention: str, experiment_id: str | None, workspace: str | None
) -> None:
    """Set the retention of an experiment, a workspace, or both, in one transaction; "" removes it.

    The experiment must have been created or have traces. Raises UsageError, NotFoundError.
    """
    for name in (experiment_id, workspace):
        if name is not None:
            _check(name, retention)
    # Single upsert statements, because several clients may set it at once.
    insert_into = tracking.database.insert
    with tracking.database.writing() as connection:
        if experiment_id is not None:
            _set_of_experiment(connection, insert_into, tracking.lake, experiment_id, retention)
        if workspace is not None:
            _set_of_workspace(connection, insert_into, tracking.lake, workspace, retention)


def _set_of_experiment(
    connection: Connection, insert_into: Any, lake: int, experiment_id: str, retention: str
) -> None:
    if not _is_known(connection, lake, experiment_id):
        raise NotFoundError(
            f"no experiment {experiment_id[:NAME_QUOTED_MAX_CHARS]!r} in this lake; `tracelake archive plan` "
            "shows those with traces"
        )
    of = {"lake": lake, "experiment_id": experiment_id, "key": RETENTION_TAG}
    if not retention:
        here = (experiment_tags.c[name] == value for name, value in of.items())
        connection.execute(delete(experiment_tags).where(*here))
        return
    value = json.dumps({"type": "duration", "value": retention}, separators=(",", ":"))
    statement = insert_into(experiment_tags)
    statement = statement.on_conflict_do_update(index_elements=list(of), set_={"value": value})
    connection.execute(statement, {**of, "value": value})


def _set_of_workspace(
    connection: Connection, insert_into: Any, lake: int, workspace: str, retention: str
) -> None:
    of = {"lake": lake, "workspace": workspace}
    value = {"trace_archival_retention": retention or None}
    statement = insert_into(workspaces)
    statement = statement.on_conflict_do_update(index_elements=list(of), set_=value)
    connection.execute(statement, {**of, **value})


def _check(name: str, retention: str) -> None:
    if not 0 < len(name) <= TRACKING_NAME_MAX_CHARS or "\0" in name:
        raise UsageError(
            f"{name[:NAME_QUOTED_MAX_CHARS]!r} names nothing: write 1 to {TRACKING_NAME_MAX_CHARS} characters"
        )
    if retention:
        duration_ns(retention)


def _is_known(connection: Connection, lake: int, experiment_id: str) -> bool:
    info = trace_info.c
    was_made = select(experiments.c.name).where(
        experiments.c.lake == lake, experiments.c.experiment_id == experiment_id
    )
    has_traces = select(info.trace_id).where(
        info.lake == lake,
        info.spans_location.in_((TRACKING_STORE, ARCHIVE_REPO)),
        info.experiment_id == experiment_id,
    )
    return any(connection.execute(query.limit(1)).first() is not None for query in (was_made, has_traces))
