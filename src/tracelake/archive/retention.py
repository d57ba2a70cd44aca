"""Retention rules: how long traces stay hot, and which traces are due (A7, A8). The rules are pure functions.

Retention can be set for the server, for workspaces and for experiments. Without any, the default of the layout
applies: `DEFAULT_RETENTION` in layout `lake`, none in the others. The default limits no setting. A narrower setting
applies if it is shorter. If it is longer, it applies only for experiments on the allowlist:

| set for | shorter than the current value, or the first | longer, on the allowlist | longer, not on it |
|---|---|---|---|
| workspace | applies | applies | ignored |
| experiment | applies | applies | ignored |

An experiment's retention is the tag of MLflow's clients; a workspace's is a column. This module also writes both.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, delete, select

from tracelake._errors import NotFoundError, UsageError
from tracelake._settings import duration_ns
from tracelake.limits import NAME_QUOTED_MAX_CHARS, QUOTED_MAX_CHARS, TRACKING_NAME_MAX_CHARS
from tracelake.tracking import schema
from tracelake.tracking.store import TrackingStore

RETENTION_TAG: Final = "mlflow.trace.archivalRetention"
ARCHIVE_NOW_TAG: Final = "mlflow.trace.archiveNow"
MALFORMED: Final = "MALFORMED_TRACE"
DEFAULT_RETENTION: Final = "10m"
"""Retention in layout `lake` if none is set. The tables have every trace, and late spans are accepted, so the payloads
in the tracking store are a second copy."""


@dataclass(frozen=True, slots=True)
class ResolvedRetention:
    """The effective retention of an experiment, and its source: `server`, `workspace`, `experiment`, `default`, or
    None."""

    text: str | None
    source: str | None


def resolve(
    server: str | None,
    workspace: str | None,
    experiment: str | None,
    *,
    allowed: bool,
    default: str | None = None,
) -> ResolvedRetention:
    """Return the effective retention (A8). `default` applies if nothing is set. Raises UsageError if a duration is
    invalid."""
    counts = ResolvedRetention(None, None)
    for source, text in (("server", server), ("workspace", workspace), ("experiment", experiment)):
        if text is None:
            continue
        is_first = counts.text is None
        if is_first or allowed or duration_ns(text) < duration_ns(counts.text or ""):
            duration_ns(text)
            counts = ResolvedRetention(text, source)
    if counts.text is None and default is not None:
        return ResolvedRetention(default, "default")
    return counts


def parse_retention_tag(value: str | None) -> str | None:
    """Return the duration in the tag of an experiment, `{"type":"duration","value":"30d"}`. Raises UsageError if the
    tag does not parse."""
    if value is None:
        return None
    tag = _object(RETENTION_TAG, value)
    text = tag.get("value")
    if set(tag) != {"type", "value"} or tag["type"] != "duration" or not isinstance(text, str):
        raise UsageError(
            f'{RETENTION_TAG} must be like {{"type":"duration","value":"30d"}}, not {value[:QUOTED_MAX_CHARS]!r}'
        )
    duration_ns(text)
    return text


@dataclass(frozen=True, slots=True)
class ArchiveNow:
    """A request to archive an experiment immediately: all traces, or those older than a duration."""

    older_than_ns: int = 0


def parse_archive_now_tag(value: str | None) -> ArchiveNow | None:
    """Parse the archiveNow tag of an experiment, `{}` or `{"older_than":"1d"}`. Raises UsageError if the tag does not
    parse."""
    if value is None:
        return None
    tag = _object(ARCHIVE_NOW_TAG, value)
    if not tag:
        return ArchiveNow()
    text = tag.get("older_than")
    if set(tag) != {"older_than"} or not isinstance(text, str):
        raise UsageError(
            f'{ARCHIVE_NOW_TAG} must be {{}} or {{"older_than":"1d"}}, not {value[:QUOTED_MAX_CHARS]!r}'
        )
    return ArchiveNow(duration_ns(text))


def cutoff_ns(
    retention: str | None, now: ArchiveNow | None, now_ns: int, asked_ns: int | None = None
) -> int | None:
    """Return the start time before which traces are due, or None. The later of the two cutoffs applies.

    The cutoff of archiveNow is relative to the time of the request, `asked_ns`. Otherwise the request would never
    finish while new traces keep arriving, because the newest always wait for the pipeline.
    """
    cutoffs = []
    if retention is not None:
        cutoffs.append(now_ns - duration_ns(retention))
    if now is not None:
        cutoffs.append((now_ns if asked_ns is None else asked_ns) - now.older_than_ns)
    # no trace began before 1970, and databases cannot store earlier times
    return max((0, *cutoffs)) if cutoffs else None


def quiet_ns(resolved: ResolvedRetention, now: ArchiveNow | None, cutoff: int | None) -> int | None:
    """Return the time after which a due trace received no span, or None for any. The default retention keeps traces
    hot that still receive spans."""
    return cutoff if resolved.source == "default" and now is None else None


class ArchiveOutcome(Enum):
    """The outcome of a due trace in a pass."""

    ARCHIVED = "archived"
    GONE = "gone"
    """Another pass archived it, or it was deleted: nothing remains to do."""
    CHANGED = "changed"
    """It was written to during the pass; the next pass takes it."""
    WAITING = "waiting"
    """Its spans are not all in the tables yet."""
    FAILED = "failed"
    """The repository or the database was unreachable."""
    MALFORMED = "malformed"
    """It is unreadable, and is skipped until a user removes its mark."""


def is_archive_now_complete(outcomes: Collection[ArchiveOutcome]) -> bool:
    """Return whether to clear archiveNow after a pass: each trace is archived or has failed permanently (A7)."""
    return all(
        outcome in (ArchiveOutcome.ARCHIVED, ArchiveOutcome.GONE, ArchiveOutcome.MALFORMED)
        for outcome in outcomes
    )


def _object(tag: str, value: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    if not isinstance(decoded, dict):
        raise UsageError(f"{tag} must be a JSON object, not {value[:QUOTED_MAX_CHARS]!r}")
    return decoded


def set_retention_override(
    tracking: TrackingStore, retention: str, experiment_id: str | None, workspace: str | None
) -> None:
    """Set the retention of an experiment, a workspace, or both, in one transaction; "" removes it.

    Raises UsageError for an invalid duration, and NotFoundError if the experiment was never created and has no traces.
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
    if not _experiment_exists(connection, lake, experiment_id):
        raise NotFoundError(
            f"no experiment {experiment_id[:NAME_QUOTED_MAX_CHARS]!r} in this lake; `tracelake archive plan` "
            "shows those with traces"
        )
    of = {"lake": lake, "experiment_id": experiment_id, "key": RETENTION_TAG}
    if not retention:
        here = (schema.experiment_tags.c[name] == value for name, value in of.items())
        connection.execute(delete(schema.experiment_tags).where(*here))
        return
    value = json.dumps({"type": "duration", "value": retention}, separators=(",", ":"))
    statement = insert_into(schema.experiment_tags)
    statement = statement.on_conflict_do_update(index_elements=list(of), set_={"value": value})
    connection.execute(statement, {**of, "value": value})


def _set_of_workspace(
    connection: Connection, insert_into: Any, lake: int, workspace: str, retention: str
) -> None:
    of = {"lake": lake, "workspace": workspace}
    value = {"trace_archival_retention": retention or None}
    statement = insert_into(schema.workspaces)
    statement = statement.on_conflict_do_update(index_elements=list(of), set_=value)
    connection.execute(statement, {**of, **value})


def _check(name: str, retention: str) -> None:
    if not 0 < len(name) <= TRACKING_NAME_MAX_CHARS or "\0" in name:
        raise UsageError(
            f"{name[:NAME_QUOTED_MAX_CHARS]!r} is not a valid name: write 1 to {TRACKING_NAME_MAX_CHARS} "
            "characters"
        )
    if retention:
        duration_ns(retention)


def _experiment_exists(connection: Connection, lake: int, experiment_id: str) -> bool:
    info = schema.trace_info.c
    is_registered = select(schema.experiments.c.name).where(
        schema.experiments.c.lake == lake, schema.experiments.c.experiment_id == experiment_id
    )
    has_traces = select(info.trace_id).where(
        info.lake == lake,
        info.spans_location.in_((schema.TRACKING_STORE, schema.ARCHIVE_REPO)),
        info.experiment_id == experiment_id,
    )
    return any(
        connection.execute(query.limit(1)).first() is not None for query in (is_registered, has_traces)
    )
