"""Traces of the tracking store by MLflow's filters, hot and archived alike: rows and columns stay when payloads go.

A page goes on behind the last trace of the one before, by what it is ordered by and its id: what comes meanwhile moves
nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, Table, and_, exists, func, literal, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tracelake._errors import QueryError
from tracelake.limits import QUOTED_MAX_CHARS
from tracelake.tracking.schema import spans, trace_info, trace_metadata, trace_tags
from tracelake.tracking.started import CLIENT_REQUEST_ID
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.told import FOR_ALL, is_alone, told_to
from tracelake.tracking.trace_filter import ALIASES, METADATA, FilterCondition, parse_filter

_INFO: Final = trace_info.c


def _said(
    table: Table, key: str, column: ColumnElement[Any], *of_its: ColumnElement[bool]
) -> ColumnElement[Any]:
    """Return what somebody said of a trace, else a column of its spans."""
    of = table.c
    said = select(of.value).where(
        of.lake == _INFO.lake, of.trace_id == _INFO.trace_id, of.key == key, *of_its
    )
    if table is trace_tags:  # what was said for all behind what was for the workspace of the row
        said = said.order_by(of.workspace == FOR_ALL).limit(1)
    return func.coalesce(said.correlate(trace_info).scalar_subquery(), column)


_ENDED_NS: Final[ColumnElement[Any]] = func.nullif(_INFO.end_ns, 0, type_=BigInteger)
"""Null while no span of a trace has ended: no filter by times holds for it."""


def _columns(
    of_tags: ColumnElement[bool], *of_metadata: ColumnElement[bool]
) -> dict[str, ColumnElement[Any]]:
    """Return what traces are searched by, with such conditions for what is said of them."""
    client_id = _said(trace_metadata, CLIENT_REQUEST_ID, _INFO.client_request_id, *of_metadata)
    return {
        "request_id": literal("tr-") + _INFO.trace_id,
        "timestamp_ms": _INFO.start_ns // 1_000_000,
        "end_time_ms": _ENDED_NS // 1_000_000,
        "execution_time_ms": (_ENDED_NS - _INFO.start_ns) // 1_000_000,
        "status": _INFO.state,
        "name": _said(trace_tags, "mlflow.traceName", _INFO.name, of_tags),
        "client_request_id": client_id,
        **{name: _said(trace_metadata, key, _INFO[name], *of_metadata) for key, name in METADATA.items()},
    }


_OF_ALL: Final = _columns(trace_tags.c.workspace.in_((_INFO.workspace, FOR_ALL)))
_OF_ONE: Final = _columns(told_to(trace_tags, _INFO.workspace), is_alone(trace_info, _INFO.workspace))
"""In one workspace, that of the row."""
_ORDERS: Final[dict[str, tuple[ColumnElement[Any], type]]] = {
    "timestamp_ms": (_INFO.start_ns, int),
    "end_time_ms": (_INFO.end_ns, int),
    "execution_time_ms": (_INFO.end_ns - _INFO.start_ns, int),
    "status": (_INFO.state, str),
    "name": (func.coalesce(_INFO.name, ""), str),
    "request_id": (_INFO.trace_id, str),
    "experiment_id": (_INFO.experiment_id, str),
}
"""What traces can be ordered by, none of it null, and of which type it is in a page token.

A trace that has not ended is before all others by end and duration.
"""


@dataclass(frozen=True, slots=True)
class FoundTraces:
    """A page of traces: their rows of `trace_info`, and where the next page goes on."""

    rows: list[Any]
    next_page_token: str | None


class TraceSearch:
    """Searches of one lake."""

    def __init__(self, store: TrackingStore, workspace: str | None = None) -> None:
        """Of one workspace, or of all."""
        self._database, self._lake, self._workspace = store.database, store.lake, workspace
        self._columns = _OF_ALL if workspace is None else _OF_ONE

    def search(
        self,
        experiment_ids: Sequence[str],
        filter: str | None = None,
        max_results: int = 100,
        order_by: Sequence[str] = (),
        page_token: str | None = None,
    ) -> FoundTraces:
        """Return traces of experiments for which the filter holds, the newest first. Raises QueryError."""
        conditions = parse_filter(filter)
        key, is_ascending = _order(order_by)
        column, kind = _ORDERS[key]
        if key == "name":
            column = func.coalesce(self._columns["name"], "")
        asked = asked_name(experiment_ids, conditions, key, is_ascending, *self._told())
        query = select(trace_info, column.label("ordered_by")).where(
            _INFO.lake == self._lake,
            *self._within(_INFO),
            _INFO.experiment_id.in_(list(experiment_ids)),
            *(self._holds(condition) for condition in conditions),
        )
        if page_token:
            value, trace_id = read_token(page_token, asked, kind)
            is_behind = column > value if is_ascending else column < value
            query = query.where(or_(is_behind, and_(column == value, _INFO.trace_id > trace_id)))
        query = query.order_by(column.asc() if is_ascending else column.desc(), _INFO.trace_id)
        with self._database.searching() as connection:
            rows = list(connection.execute(query.limit(max_results + 1)))
        token = None
        if len(rows) > max_results:
            rows = rows[:max_results]
            token = make_token(asked, rows[-1].ordered_by, rows[-1].trace_id)
        return FoundTraces(rows, token)

    def _told(self) -> list[str]:
        """Return what tells a search in one workspace from others, for the tokens of pages."""
        return [] if self._workspace is None else [self._workspace]

    def _within(self, columns: Any) -> list[ColumnElement[bool]]:
        """Return the condition that a row is of the workspace, where there is one."""
        return [] if self._workspace is None else [columns.workspace == self._workspace]

    def _holds(self, condition: FilterCondition) -> ColumnElement[bool]:
        """Return a condition as SQL."""
        if condition.kind == "tag":
            return self._tag(condition)
        if condition.kind == "span":
            of = (spans.c.lake == _INFO.lake, spans.c.trace_id == _INFO.trace_id, *self._within(spans.c))
            column = spans.c.name if condition.key == "name" else func.coalesce(spans.c.status, "UNSET")
            return exists().where(*of, self._compared(column, condition))
        return self._compared(self._columns[condition.key], condition)

    def _tag(self, condition: FilterCondition) -> ColumnElement[bool]:
        column = _TAGS_OF_COLUMNS.get(condition.key)
        if condition.key == "mlflow.traceName":
            column = self._columns["name"]
        if column is not None:
            return self._compared(column, condition)
        of = (
            trace_tags.c.lake == _INFO.lake,
            trace_tags.c.trace_id == _INFO.trace_id,
            trace_tags.c.key == condition.key,
            *([] if self._workspace is None else [told_to(trace_tags, self._workspace)]),
        )
        if condition.comparator == "IS NULL":
            return ~exists().where(*of)
        if condition.comparator == "IS NOT NULL":
            return exists().where(*of)
        return exists().where(*of, self._compared(trace_tags.c.value, condition))

    def _compared(self, column: ColumnElement[Any], condition: FilterCondition) -> ColumnElement[bool]:
        return compared(column, condition, self._database.is_sqlite)


def compared(column: ColumnElement[Any], condition: FilterCondition, is_sqlite: bool) -> ColumnElement[bool]:
    """Return the comparison of a column as SQL."""
    value: Any = condition.value
    sign = condition.comparator
    if sign in _TESTS:
        return _TESTS[sign](column, value)
    if sign == "LIKE":
        glob = column.op("GLOB", is_comparison=True)(_glob(value))  # for SQLite, whose LIKE takes A for a
        return glob if is_sqlite else column.like(_escaped(value), escape="\\")
    return column.op(sign, is_comparison=True)(value)


_TESTS: Final[dict[str, Callable[[ColumnElement[Any], Any], ColumnElement[bool]]]] = {
    "IS NULL": lambda column, _: column.is_(None),
    "IS NOT NULL": lambda column, _: column.is_not(None),
    "IN": lambda column, values: column.in_(values),
    "NOT IN": lambda column, values: column.not_in(values),
    "ILIKE": lambda column, pattern: column.ilike(_escaped(pattern), escape="\\"),
}
_TAGS_OF_COLUMNS: Final[dict[str, ColumnElement[Any]]] = {
    "mlflow.trace.spansLocation": _INFO.spans_location,
    "mlflow.trace.archiveLocation": _INFO.archive_location,
    "mlflow.trace.archivalFailure": _INFO.archival_failure,
}


def _escaped(pattern: str) -> str:
    """Return a pattern in which a backslash is one, as it is in GLOB."""
    return pattern.replace("\\", "\\\\")


def _glob(pattern: str) -> str:
    """Return a pattern of LIKE as one of GLOB, which tells A from a."""
    signs = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return "".join(signs.get(character, character) for character in pattern)


def _order(order_by: Sequence[str]) -> tuple[str, bool]:
    """Return what traces are ordered by, and whether it ascends."""
    wanted = [text for text in order_by if text.strip()]
    if len(wanted) > 1:
        raise QueryError("traces are ordered by one thing, and by their ids where that is the same.")
    if not wanted:
        return "timestamp_ms", False
    name, *direction = wanted[0].split()
    identifier, _, key = name.rpartition(".")
    key = key.strip('`"').lower()
    key = {"timestamp": "timestamp_ms", "execution_time": "execution_time_ms", "end_time": "end_time_ms"}.get(
        key, key
    )
    is_known = key in _ORDERS and ALIASES.get(identifier.lower()) == "attribute"
    if not is_known or [each.upper() for each in direction] not in ([], ["ASC"], ["DESC"]):
        raise QueryError(
            f"traces are not ordered by {wanted[0][:QUOTED_MAX_CHARS]!r}; by {', '.join(_ORDERS)}, with ASC or DESC."
        )
    return key, [each.upper() for each in direction] != ["DESC"]


def asked_name(*asked: object) -> str:
    """Return a short name of a search, for its page tokens."""
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


def make_token(asked: str, value: object, behind: str) -> str:
    """Return where a page goes on: behind this value, and among equals behind this id."""
    return base64.urlsafe_b64encode(json.dumps([asked, value, behind]).encode()).decode()


def read_token(text: str, asked: str, kind: type) -> tuple[Any, str]:
    """Return what a page goes on behind. Raises QueryError for what is none, or one of another search."""
    try:
        name, value, trace_id = json.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
        is_one = (
            type(value) is kind
            and isinstance(trace_id, str)
            and name == asked
            and "\0" not in f"{value}{trace_id}"
            and bool(f"{value}{trace_id}".encode())  # no half of a pair, which no database takes
        )
        is_one = is_one and (not isinstance(value, int) or abs(value) < 2**63)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        is_one = False
    if not is_one:
        raise QueryError("this is no page token of this search; take `next_page_token` of a page as it is.")
    return value, trace_id
