"""How long traces of one experiment, or of one workspace, stay hot: as the tag of MLflow's clients, and a column."""

from __future__ import annotations

import json

from sqlalchemy import Connection, delete, insert, select, update

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


def set_experiment_retention(tracking: TrackingStore, experiment_id: str, retention: str) -> None:
    """Set the retention of an experiment that was made or has traces; "" is none. Raises UsageError, NotFoundError."""
    _check(experiment_id, retention)
    of = {"lake": tracking.lake, "experiment_id": experiment_id, "key": RETENTION_TAG}
    with tracking.database.writing() as connection:
        if not _is_known(connection, tracking.lake, experiment_id):
            raise NotFoundError(
                f"no experiment {experiment_id[:NAME_QUOTED_MAX_CHARS]!r} in this lake; `tracelake archive plan` "
                "shows those with traces"
            )
        connection.execute(
            delete(experiment_tags).where(*(experiment_tags.c[name] == value for name, value in of.items()))
        )
        if retention:
            value = json.dumps({"type": "duration", "value": retention}, separators=(",", ":"))
            connection.execute(insert(experiment_tags), {**of, "value": value})


def set_workspace_retention(tracking: TrackingStore, workspace: str, retention: str) -> None:
    """Set the retention of a workspace; "" is none. Raises UsageError."""
    _check(workspace, retention)
    of = (workspaces.c.lake == tracking.lake, workspaces.c.workspace == workspace)
    row = {"lake": tracking.lake, "workspace": workspace, "trace_archival_retention": retention or None}
    with tracking.database.writing() as connection:
        changed = connection.execute(
            update(workspaces).where(*of).values(trace_archival_retention=retention or None)
        )
        if not changed.rowcount:
            connection.execute(insert(workspaces), row)


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
