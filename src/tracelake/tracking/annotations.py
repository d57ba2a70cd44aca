"""Tags, experiments, metadata and assessments of traces, as rows of the tracking store.

Rows are keyed by trace id and independent of the payload, so they stay whether a trace is hot, archived or only in
the tables. Three MLflow tags are columns of `trace_info`; only the archive sets them.

Annotations written with a workspace's key belong to that workspace. MLflow's client writes with a key of all
workspaces and names no workspace. A workspace sees such annotations only while all spans of the trace are in it.

MLflow's client may annotate a trace before or after its spans arrive. These annotations are stored by trace id and
not in the trace's row, because a trace without spans has no row.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, Table, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from tracelake import limits
from tracelake._errors import LimitError, NotFoundError, UsageError
from tracelake.otlp.partition import take_apart, with_attributes
from tracelake.tracking.database import at_once
from tracelake.tracking.erasure import ERASED, erased_among
from tracelake.tracking.schema import (
    DEFAULT_EXPERIMENT,
    DEFAULT_WORKSPACE,
    DELETED_KEY,
    TRACKING_STORE,
    assessments,
    experiment_tags,
    experiments,
    spans,
    trace_info,
    trace_metadata,
    trace_tags,
)
from tracelake.tracking.store import TracedRequest, TrackingStore


def check_tag(key: str, value: str, value_max_chars: int) -> None:
    """Raise UsageError if a tag's key is empty, or the key or value is too long or contains a NUL."""
    if not key or len(key) > limits.TRACKING_KEY_MAX_CHARS:
        raise UsageError(
            f"the key of a tag must have 1 to {limits.TRACKING_KEY_MAX_CHARS} characters; {quoted(key)} "
            f"has {len(key)}."
        )
    if len(value) > value_max_chars:
        raise UsageError(
            f"tag {quoted(key)} has {len(value)} characters, more than the limit of {value_max_chars}."
        )
    if "\0" in key + value:
        raise UsageError(f"tag {quoted(key)} holds a NUL character; remove it.")


def quoted(text: str) -> str:
    """Return a shortened and quoted text that error messages can show."""
    shown = text if len(text) <= limits.NAME_QUOTED_MAX_CHARS else text[: limits.NAME_QUOTED_MAX_CHARS] + "…"
    return repr(shown)


_KINDS: Final = ("feedback", "expectation")
OF_SERVER: Final = ("assessment_id", "trace_id", "create_time", "last_update_time")
"""Fields of an assessment that only the server sets."""


def new_row(
    trace_id: str, assessment_id: str, assessment: Mapping[str, Any], workspace: str
) -> dict[str, Any]:
    """Return the row of a new assessment, without its lake. Raises UsageError if the assessment is invalid, and
    LimitError if it is too large."""
    now = now_text()
    body = {key: value for key, value in assessment.items() if key not in OF_SERVER and value is not None}
    body = {
        "assessment_id": assessment_id,
        "trace_id": trace_id,
        **body,
        "create_time": now,
        "last_update_time": now,
    }
    key = {"trace_id": trace_id, "assessment_id": assessment_id}
    return {**key, "workspace": workspace, **columns(body)}


def now_text() -> str:
    """Return the current time in MLflow's format for assessments."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def columns(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an assessment. Raises UsageError if it is invalid, and LimitError if it is too large."""
    name, span_id = body.get("assessment_name"), body.get("span_id")
    if not isinstance(name, str) or not 0 < len(name) <= limits.TRACKING_NAME_MAX_CHARS:
        raise UsageError(
            f"an assessment needs an assessment_name of 1 to {limits.TRACKING_NAME_MAX_CHARS} characters."
        )
    kinds = [kind for kind in _KINDS if isinstance(body.get(kind), Mapping)]
    if len(kinds) != 1 or any(kind in body and kind not in kinds for kind in _KINDS):
        raise UsageError(
            f"assessment {quoted(name)} must have either feedback or expectation, an object with a value."
        )
    if span_id is not None and not (isinstance(span_id, str) and 0 < len(span_id) <= 16):
        raise UsageError(f"the span_id of assessment {quoted(name)} must be up to 16 hex digits.")
    try:
        text = json.dumps(body, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"assessment {quoted(name)} cannot be stored as JSON: {error}.") from error
    if len(text) > limits.ASSESSMENT_MAX_BYTES or "\\u0000" in text:
        raise LimitError(
            f"assessment {quoted(name)} takes {len(text):,} bytes as JSON, and the limit is "
            f"{limits.ASSESSMENT_MAX_BYTES:,}, without NUL characters."
        )
    return {"name": name, "span_id": span_id, "body": text, "updated_ns": time.time_ns()}


def kind_of(body: Mapping[str, Any]) -> str:
    """Return `expectation` or `feedback`."""
    return "expectation" if isinstance(body.get("expectation"), Mapping) else "feedback"


def value_of(body: Mapping[str, Any]) -> Any:
    """Return the value of an assessment, which is any JSON value. MLflow serializes the values that protobuf lacks."""
    content = body.get(kind_of(body))
    if not isinstance(content, Mapping):
        return None
    serialized = content.get("serialized_value")
    if (
        "value" not in content
        and isinstance(serialized, Mapping)
        and isinstance(serialized.get("value"), str)
    ):
        try:
            return json.loads(serialized["value"])
        except ValueError:
            return serialized["value"]
    return content.get("value", serialized)


def is_valid(body: Mapping[str, Any]) -> bool:
    """Return whether an assessment applies. MLflow marks one that another overrides as invalid."""
    return body.get("valid") is not False


FOR_ALL: Final = "*"
"""The workspace of annotations that were written for no particular workspace."""


def visible_to(table: Table, workspace: str | ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the SQL condition that a workspace may see an annotation of a trace."""
    said_for = table.c.workspace
    return or_(said_for == workspace, and_(said_for == FOR_ALL, is_exclusive_to(table, workspace)))


def is_exclusive_to(table: Table, workspace: str | ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the SQL condition that a trace has spans, all of them in one workspace."""
    of = (spans.c.lake == table.c.lake, spans.c.trace_id == table.c.trace_id)
    here = exists().where(*of, spans.c.workspace == workspace).correlate_except(spans)
    others = exists().where(*of, spans.c.workspace != workspace).correlate_except(spans)
    return and_(here, ~others)


LOCATION_TAG: Final = "mlflow.trace.spansLocation"
FAILURE_TAG: Final = "mlflow.trace.archivalFailure"
OF_COLUMNS: Final = {
    LOCATION_TAG: "spans_location",
    "mlflow.trace.archiveLocation": "archive_location",
    FAILURE_TAG: "archival_failure",
}
"""Tags stored as columns of `trace_info`."""
_IN_TURN: Final = ((trace_tags.c.workspace == FOR_ALL).desc(), trace_tags.c.workspace)
"""Order of tags with the same key. The last wins, so a workspace's tag overrides one for all."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A group of traces, for which retention can be set."""

    experiment_id: str
    name: str
    workspace: str
    created_ns: int
    tags: Mapping[str, str]


class Annotations:
    """Tags, experiments and assessments of one lake. Threads may share it; each call is one transaction."""

    def __init__(self, store: TrackingStore, workspace: str | None = None) -> None:
        """Open the annotations of one workspace, or of all if `workspace` is None."""
        self._workspace = workspace
        self._database = store.database
        self._lake = store.lake

    def tags(self, trace_ids: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the tags of traces, including those stored as columns; an empty dict for a trace without tags."""
        tags: dict[str, dict[str, str]] = {trace_id: {} for trace_id in trace_ids}
        with self._database.reading() as connection:
            for ids in at_once(tags):
                columns = select(trace_info.c.trace_id, *(trace_info.c[name] for name in OF_COLUMNS.values()))
                for trace_id, *values in connection.execute(columns.where(*self._of(trace_info, ids))):
                    of_columns = zip(OF_COLUMNS, values, strict=True)
                    tags[trace_id].update((key, str(value)) for key, value in of_columns if value is not None)
                own = select(trace_tags.c.trace_id, trace_tags.c.key, trace_tags.c.value)
                own = own.where(*self._of(trace_tags, ids)).order_by(*_IN_TURN)
                for trace_id, key, value in connection.execute(own):
                    tags[trace_id][key] = value
        return {trace_id: dict(sorted(of_trace.items())) for trace_id, of_trace in tags.items()}

    def shown_tags(self, trace_ids: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the first few user-set tags of traces for display, with long values cut."""
        tags = trace_tags.c
        by_key = func.row_number().over(partition_by=tags.trace_id, order_by=[tags.key, *_IN_TURN])
        number = by_key.label("number")
        cut = func.substr(tags.value, 1, limits.TAG_SHOWN_MAX_CHARS).label("value")
        shown: dict[str, dict[str, str]] = {}
        with self._database.reading() as connection:
            for ids in at_once(set(trace_ids)):
                every = (
                    select(tags.trace_id, tags.key, cut, number).where(*self._of(trace_tags, ids)).subquery()
                )
                query = select(every.c.trace_id, every.c.key, every.c.value).where(
                    every.c.number <= limits.TAGS_SHOWN_MAX
                )
                for trace_id, key, value in connection.execute(query.order_by(every.c.number)):
                    shown.setdefault(trace_id, {})[key] = value
        return shown

    def set_tag(self, trace_id: str, key: str, value: str, workspace: str = DEFAULT_WORKSPACE) -> None:
        """Set a tag of a trace, which must exist. Raises UsageError if the tag is invalid or only the archive may set
        it, and LimitError if the trace has too many tags."""
        check_tag(key, value, limits.TRACKING_VALUE_MAX_CHARS)
        if key in OF_COLUMNS:
            raise UsageError(f"tag {key} records the location of a trace; only the archive sets it.")
        with self._database.writing() as connection:
            self._set(connection, trace_tags, {"trace_id": trace_id, "workspace": workspace}, key, value)

    def delete_tag(self, trace_id: str, key: str) -> None:
        """Delete a tag of a trace. Deleting `archivalFailure` lets the trace be archived again. Raises NotFoundError if
        the trace has no such tag, and UsageError if only the archive may change it."""
        with self._database.writing() as connection:
            if key == FAILURE_TAG:
                cleared = (
                    update(trace_info)
                    .where(*self._of(trace_info, [trace_id]), trace_info.c.archival_failure.is_not(None))
                    .values(archival_failure=None)
                )
                deleted = connection.execute(cleared).rowcount
            elif key in OF_COLUMNS:
                raise UsageError(f"tag {key} records the location of a trace; only the archive changes it.")
            else:
                deleted = connection.execute(
                    delete(trace_tags).where(*self._of(trace_tags, [trace_id]), trace_tags.c.key == key)
                ).rowcount
        if not deleted:
            raise NotFoundError(f"trace {trace_id} has no tag {quoted(key)}.")

    def traces_with(self, tags: Mapping[str, str], limit: int) -> list[str]:
        """Return sorted ids of traces that have all these tags; tags stored as columns are not supported."""
        query = select(trace_tags.c.trace_id).where(*self._here(trace_tags)).distinct()
        for number, (key, value) in enumerate(tags.items()):
            if number == 0:
                query = query.where(trace_tags.c.key == key, trace_tags.c.value == value)
                continue
            other = trace_tags.alias(f"tag_{number}")
            query = query.join(
                other,
                and_(
                    *self._here(other),
                    other.c.trace_id == trace_tags.c.trace_id,
                    other.c.key == key,
                    other.c.value == value,
                ),
            )
        with self._database.reading() as connection:
            return list(connection.execute(query.order_by(trace_tags.c.trace_id).limit(limit)).scalars())

    def create_experiment(self, name: str, workspace: str = DEFAULT_WORKSPACE) -> str:
        """Create an experiment and return its id. Raises UsageError if the name is taken or invalid."""
        for what, text in (("experiment", name), ("workspace", workspace)):
            if not text.strip() or len(text) > limits.TRACKING_NAME_MAX_CHARS or "\0" in text:
                raise UsageError(
                    f"the name of an {what} must have 1 to {limits.TRACKING_NAME_MAX_CHARS} characters, not "
                    f"{quoted(text)}."
                )
        row = {
            "lake": self._lake,
            "experiment_id": str(10**17 + secrets.randbelow(9 * 10**17)),
            "workspace": workspace,
            "name": name,
            "created_ns": time.time_ns(),
        }
        with self._database.writing() as connection:
            self._make_default(connection)
            # PostgreSQL's driver reports no row count for this statement, so use RETURNING.
            statement = (
                self._database.insert(experiments).on_conflict_do_nothing().returning(experiments.c.name)
            )
            if connection.execute(statement, row).scalar() is None:
                raise UsageError(
                    f"experiment {quoted(name)} already exists in workspace {quoted(workspace)}."
                )
        return str(row["experiment_id"])

    def experiment(self, experiment_id: str) -> Experiment:
        """Return an experiment. Raises NotFoundError if none has this id."""
        for each in self._experiments(experiments.c.experiment_id == experiment_id):
            if self._workspace in (None, each.workspace):
                return each
            if experiment_id == DEFAULT_EXPERIMENT:  # it may have traces of all workspaces
                return replace(each, workspace=self._workspace or "")
        raise NotFoundError(f"no experiment {quoted(experiment_id)}.")

    def _check_own(self, experiment_id: str) -> None:
        """Raise NotFoundError if the experiment does not belong to this workspace alone."""
        here = self._experiments(experiments.c.experiment_id == experiment_id)
        is_shared = experiment_id == DEFAULT_EXPERIMENT and self._workspace is not None
        if is_shared or not any(self._workspace in (None, each.workspace) for each in here):
            raise NotFoundError(f"no experiment {quoted(experiment_id)}.")

    def find_experiment(self, name: str, workspace: str = DEFAULT_WORKSPACE) -> Experiment:
        """Return an experiment by its name. Raises NotFoundError if the workspace has none of this name."""
        for each in self._experiments(and_(experiments.c.name == name, experiments.c.workspace == workspace)):
            return each
        raise NotFoundError(f"no experiment {quoted(name)} in workspace {quoted(workspace)}.")

    def experiments(self) -> list[Experiment]:
        """Return the newest experiments, at most 1,000."""
        own = experiments.c.workspace == self._workspace
        return self._experiments(experiments.c.experiment_id.is_not(None) if self._workspace is None else own)

    def experiments_of(self, experiment_ids: Collection[str]) -> dict[str, Experiment]:
        """Return experiments by their ids; missing ones are left out."""
        several: dict[str, Experiment] = {}
        for ids in at_once(experiment_ids):
            several |= {
                each.experiment_id: each for each in self._experiments(experiments.c.experiment_id.in_(ids))
            }
        return several

    def experiment_of(self, trace_id: str) -> str | None:
        """Return the name of a trace's experiment, or its id if it has no name here; None if the trace names none."""
        info, of = trace_info.c, experiments.c
        same = [of.lake == info.lake, of.experiment_id == info.experiment_id]
        same += [] if self._workspace is None else [of.workspace == self._workspace]
        query = select(func.coalesce(of.name, info.experiment_id)).outerjoin_from(
            trace_info, experiments, and_(*same)
        )
        here = (*self._of(trace_info, [trace_id]), info.experiment_id != DEFAULT_EXPERIMENT)
        with self._database.reading() as connection:
            return connection.execute(query.where(*here)).scalar()

    def set_experiment_tag(self, experiment_id: str, key: str, value: str) -> None:
        """Set a tag of an experiment. Raises NotFoundError if the experiment does not exist, UsageError if the tag is
        invalid, and LimitError if the experiment has too many tags."""
        check_tag(key, value, limits.EXPERIMENT_TAG_MAX_CHARS)
        self._check_own(experiment_id)
        with self._database.writing() as connection:
            self._set(connection, experiment_tags, {"experiment_id": experiment_id}, key, value)

    def delete_experiment_tag(self, experiment_id: str, key: str) -> None:
        """Delete a tag of an experiment. Raises NotFoundError if the experiment or its tag does not exist."""
        if self._workspace is not None:
            self._check_own(experiment_id)
        tags = experiment_tags.c
        here = (tags.lake == self._lake, tags.experiment_id == experiment_id, tags.key == key)
        with self._database.writing() as connection:
            deleted = connection.execute(delete(experiment_tags).where(*here)).rowcount
        if not deleted:
            raise NotFoundError(f"experiment {quoted(experiment_id)} has no tag {quoted(key)}.")

    def log_assessment(
        self, trace_id: str, assessment: Mapping[str, Any], workspace: str = DEFAULT_WORKSPACE
    ) -> dict[str, Any]:
        """Store an assessment of a trace, or of one of its spans, in MLflow's format. Return the assessment with its id
        and times.

        It has an `assessment_name`, and a `feedback` or an `expectation` with a `value`. Raises UsageError if it is
        invalid, and LimitError if it is too large or the trace has too many.
        """
        assessment_id = f"a-{secrets.token_hex(16)}"
        row = {"lake": self._lake, **new_row(trace_id, assessment_id, assessment, workspace)}
        with self._database.writing() as connection:
            self._check_room(connection, assessments, self._of(assessments, [trace_id]), "assessments")
            connection.execute(insert(assessments), row)
        return dict(json.loads(row["body"]))

    def update_assessment(
        self, trace_id: str, assessment_id: str, changes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Change fields of an assessment, and return the changed assessment. Raises NotFoundError if the trace has no
        assessment with this id, UsageError for an invalid field, and LimitError if it becomes too large."""
        here = self._assessment(trace_id, assessment_id)
        with self._database.writing() as connection:
            text = connection.execute(select(assessments.c.body).where(*here).with_for_update()).scalar()
            if text is None:
                raise _no_assessment(trace_id, assessment_id)
            body = json.loads(text)
            body.update({key: value for key, value in changes.items() if key not in OF_SERVER})
            body["last_update_time"] = now_text()
            connection.execute(update(assessments).where(*here).values(columns(body)))
        return dict(body)

    def delete_assessment(self, trace_id: str, assessment_id: str) -> None:
        """Delete an assessment. Raises NotFoundError if the trace has no assessment with this id."""
        with self._database.writing() as connection:
            deleted = connection.execute(
                delete(assessments).where(*self._assessment(trace_id, assessment_id))
            ).rowcount
        if not deleted:
            raise _no_assessment(trace_id, assessment_id)

    def assessments(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the assessments of a trace, the last changed last."""
        return self.assessments_of([trace_id]).get(trace_id, [])

    def assessments_of(self, trace_ids: Collection[str]) -> dict[str, list[dict[str, Any]]]:
        """Return the assessments of traces by id, each list as in `assessments`; traces without any are left out."""
        bodies: dict[str, list[dict[str, Any]]] = {}
        with self._database.reading() as connection:
            for ids in at_once(trace_ids):
                query = (
                    select(assessments.c.trace_id, assessments.c.body)
                    .where(*self._of(assessments, ids))
                    .order_by(assessments.c.updated_ns, assessments.c.assessment_id)
                )
                for trace_id, body in connection.execute(query):
                    bodies.setdefault(trace_id, []).append(json.loads(body))
        return bodies

    def values_of(self, kind: str, name: str) -> list[tuple[str, Any]]:
        """Return the trace ids and values of all assessments of a kind with this name, in any case."""
        here = (*self._here(assessments), func.lower(assessments.c.name) == name.lower())
        with self._database.reading() as connection:
            rows = connection.execute(select(assessments.c.trace_id, assessments.c.body).where(*here)).all()
        bodies = ((trace_id, json.loads(body)) for trace_id, body in rows)
        return [
            (trace_id, value_of(body))
            for trace_id, body in bodies
            if kind_of(body) == kind and is_valid(body)
        ]

    def stored_assessments(self, limit: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the workspaces and bodies of assessments, by trace. Raises LimitError beyond `limit`."""
        of = assessments.c
        query = (
            select(of.workspace, of.body).where(*self._here(assessments)).order_by(of.trace_id, of.updated_ns)
        )
        return [
            (workspace, json.loads(body)) for workspace, body in self._bounded(query, limit, "assessments")
        ]

    def trace_experiments(self, limit: int) -> list[tuple[str, str]]:
        """Return the experiment of each trace, by trace. Raises LimitError beyond `limit`."""
        of = trace_info.c
        query = select(of.trace_id, of.experiment_id).where(*self._here(trace_info)).order_by(of.trace_id)
        return [(trace_id, experiment) for trace_id, experiment in self._bounded(query, limit, "traces")]

    def _bounded(self, query: Any, limit: int, rows: str) -> list[Any]:
        with self._database.reading() as connection:
            read = connection.execute(query.limit(limit + 1)).all()
        if len(read) > limit:
            raise LimitError(f"there are more than {limit:,} {rows}, and the limit of a query is {limit:,}.")
        return list(read)

    def _experiments(self, condition: Any) -> list[Experiment]:
        columns = (experiments.c[name] for name in ("experiment_id", "name", "workspace", "created_ns"))
        query = select(*columns).where(experiments.c.lake == self._lake, condition)
        newest = query.order_by(experiments.c.created_ns.desc()).limit(limits.EXPERIMENTS_SHOWN_MAX)
        with self._database.reading() as connection:
            rows = [tuple(row) for row in connection.execute(newest)]
            tags: dict[str, dict[str, str]] = {row[0]: {} for row in rows}
            for ids in at_once(tags):
                of = experiment_tags.c
                own = select(of.experiment_id, of.key, of.value).where(
                    of.lake == self._lake, of.experiment_id.in_(ids)
                )
                # tags of the shared default experiment apply to all workspaces
                if self._workspace is not None:
                    own = own.where(of.experiment_id != DEFAULT_EXPERIMENT)
                for experiment_id, key, value in connection.execute(own.order_by(of.key)):
                    tags[experiment_id][key] = value
        return [
            Experiment(experiment_id, name, workspace, created_ns, tags[experiment_id])
            for experiment_id, name, workspace, created_ns in rows
        ]

    def make_default(self) -> None:
        """Create the default experiment, for traces that name none, if it does not exist."""
        with self._database.writing() as connection:
            self._make_default(connection)

    def _make_default(self, connection: Connection) -> None:
        row = {
            "lake": self._lake,
            "experiment_id": DEFAULT_EXPERIMENT,
            "workspace": DEFAULT_WORKSPACE,
            "name": "Default",
            "created_ns": time.time_ns(),
        }
        connection.execute(self._database.insert(experiments).on_conflict_do_nothing(), row)

    def _set(self, connection: Connection, table: Table, of: Mapping[str, str], key: str, value: str) -> None:
        here = [table.c.lake == self._lake, *(table.c[name] == one for name, one in of.items())]
        self._check_room(connection, table, [*here, table.c.key != key], "tags")
        statement = self._database.insert(table)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["lake", *of, "key"], set_={"value": statement.excluded.value}
            ),
            {"lake": self._lake, **of, "key": key, "value": value},
        )

    def _check_room(self, connection: Connection, table: Table, here: Sequence[Any], what: str) -> None:
        count = connection.execute(select(func.count()).select_from(table).where(*here)).scalar_one()
        if count >= limits.ANNOTATIONS_MAX:
            raise LimitError(
                f"there are {count:,} {what} already, and the limit is {limits.ANNOTATIONS_MAX:,}."
            )

    def _here(self, table: Any) -> list[Any]:
        """Return the SQL conditions that rows are of the lake and, if set, of the workspace."""
        of_lake = [table.c.lake == self._lake]
        if self._workspace is None:
            return of_lake
        is_row = table is trace_info
        is_its = table.c.workspace == self._workspace if is_row else visible_to(table, self._workspace)
        return [*of_lake, is_its]

    def _of(self, table: Table, trace_ids: Collection[str]) -> list[Any]:
        return [*self._here(table), table.c.trace_id.in_(list(trace_ids))]

    def _assessment(self, trace_id: str, assessment_id: str) -> list[Any]:
        return [*self._of(assessments, [trace_id]), assessments.c.assessment_id == assessment_id]


def _no_assessment(trace_id: str, assessment_id: str) -> NotFoundError:
    return NotFoundError(f"trace {trace_id} has no assessment {quoted(assessment_id)}.")


CLIENT_REQUEST_ID: Final = "tracelake.info.client_request_id"
"""The metadata key of a trace's client request id."""
_OF_INFO: Final = {
    CLIENT_REQUEST_ID: "client_request_id",
    "tracelake.info.request_preview": "request_preview",
    "tracelake.info.response_preview": "response_preview",
}
"""Metadata keys that hold fields of a trace's info."""
_OF_ROOT: Final = ("mlflow.trace.session", "mlflow.trace.user")
"""Metadata keys that are also attributes of a root span."""


@dataclass(frozen=True, slots=True)
class StartedTrace:
    """Annotations that a client sends when it starts a trace. `fields` are fields of the trace's info. They override or
    supplement data from its spans."""

    tags: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    assessments: Sequence[Mapping[str, Any]] = ()
    """Stored all together, and only if the trace has none yet, because a request may be repeated."""


class ClientTraceInfo:
    """Client-sent information on the traces of one lake. Threads may share it; each call is one transaction."""

    def __init__(self, store: TrackingStore) -> None:
        self._store = store
        self._database, self._lake, self._lake_id = store.database, store.lake, store.lake_id
        self._insert = store.database.insert

    def start(self, trace_id: str, trace: StartedTrace) -> None:
        """Store a client's annotations of a trace, which may exist or arrive later.

        Earlier annotations stay unless they are overwritten. Location tags are ignored, because only the archive sets
        them. Raises UsageError for an invalid tag or assessment, and LimitError for too many.
        """
        tags = {key: value for key, value in trace.tags.items() if key not in OF_COLUMNS}
        metadata = {key: value for key, value in trace.metadata.items() if key != DELETED_KEY}
        metadata |= {key: trace.fields[name] for key, name in _OF_INFO.items() if name in trace.fields}
        for key, value in (*tags.items(), *metadata.items()):
            check_tag(key, value, limits.TRACKING_VALUE_MAX_CHARS)
        rows = self._rows(trace_id, trace.assessments)
        here = (trace_info.c.lake == self._lake, trace_info.c.trace_id == trace_id)
        advanced = (
            update(trace_info)
            .where(*here, trace_info.c.spans_location == TRACKING_STORE)
            .values(db_payload_generation=trace_info.c.db_payload_generation + 1, updated_ns=time.time_ns())
        )
        with self._database.writing() as connection:
            if erased_among(connection, self._lake, self._lake_id, [trace_id]):
                raise UsageError(f"trace {trace_id}: {ERASED}")
            connection.execute(advanced)  # A3: an archive pass that is copying the trace checks it again
            self._set(connection, trace_tags, {"trace_id": trace_id, "workspace": FOR_ALL}, tags)
            self._set(connection, trace_metadata, {"trace_id": trace_id}, metadata)
            self._keep(connection, trace_id, rows)

    def of_traces(
        self, trace_ids: Collection[str], workspace: str | None = None
    ) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
        """Return metadata and fields of traces by id; traces without any that the workspace may see are left out."""
        conditions = () if workspace is None else (is_exclusive_to(trace_metadata, workspace),)
        several: dict[str, tuple[dict[str, str], dict[str, str]]] = {}
        with self._database.reading() as connection:
            for ids in at_once(trace_ids):
                of = trace_metadata.c
                query = select(of.trace_id, of.key, of.value).where(
                    of.lake == self._lake, of.trace_id.in_(ids), of.key != DELETED_KEY, *conditions
                )
                for trace_id, key, value in connection.execute(query.order_by(of.key)):
                    metadata, fields = several.setdefault(trace_id, ({}, {}))
                    (fields if key in _OF_INFO else metadata)[_OF_INFO.get(key, key)] = value
        return several

    def join(self, trace_ids: Collection[str]) -> None:
        """Add session and user that a client sent to the root spans of these traces, unless they have them.

        MLflow's client sends them apart from the spans, in any order. A root span with them is a version of the span
        that wins over the one without, so lists, search and tables have the session of the trace.
        """
        attributes = {
            trace_id: {key: metadata[key] for key in _OF_ROOT if metadata.get(key)}
            for trace_id, (metadata, _) in (self.of_traces(trace_ids) if trace_ids else {}).items()
        }
        for trace_id, trace in (self._store.traces(attributes) if any(attributes.values()) else {}).items():
            roots = with_attributes(trace.data, attributes[trace_id]) if trace.is_hot else b""
            if roots:
                apart = take_apart("protobuf", roots)
                self._store.write([TracedRequest("protobuf", roots, apart, trace.info["experiment_id"])])

    def deleted(self, trace_ids: Collection[str]) -> set[str]:
        """Return the given traces that were deleted and have received no spans since."""
        deleted_ids: set[str] = set()
        of, info = trace_metadata.c, trace_info.c
        exists_now = exists().where(info.lake == of.lake, info.trace_id == of.trace_id)
        with self._database.reading() as connection:
            for ids in at_once(trace_ids):
                query = select(of.trace_id).where(
                    of.lake == self._lake, of.trace_id.in_(ids), of.key == DELETED_KEY, ~exists_now
                )
                deleted_ids.update(connection.execute(query).scalars())
        return deleted_ids

    def _rows(self, trace_id: str, several: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return rows of assessments. Their ids are deterministic, so that a repeated request gives the same rows."""
        if len(several) > limits.ANNOTATIONS_MAX:
            raise LimitError(
                f"{len(several):,} assessments of trace {trace_id}, and the limit is {limits.ANNOTATIONS_MAX:,}."
            )
        ids = [sha256(f"{trace_id} {number}".encode()).hexdigest()[:32] for number in range(len(several))]
        rows = [new_row(trace_id, f"a-{id}", each, FOR_ALL) for id, each in zip(ids, several, strict=True)]
        return [{"lake": self._lake, **row} for row in rows]

    def _keep(self, connection: Connection, trace_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store assessments of a trace that has none yet."""
        here = (assessments.c.lake == self._lake, assessments.c.trace_id == trace_id)
        if rows and not connection.execute(select(exists().where(*here))).scalar_one():
            # On PostgreSQL a concurrent repeat of the request also sees none. It waits at this insert and
            # adds nothing.
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
