"""Searches of traces and experiments with MLflow's filters, as its client 3.18 sends them. The filter parser is pure.

A filter is a list of comparisons that must all hold:

    attributes.status = 'OK' AND tags.team IN ('a', 'b') AND trace.timestamp_ms > 1700000000000

| identifier | keys |
|---|---|
| none, `attribute(s)`, `trace` | those of `NUMBERS` and `TEXTS` |
| `tag(s)` | any trace tag |
| `metadata`, `request_metadata` | `mlflow.trace.session`, `mlflow.trace.user` |
| `span` | `name`, `status` |

Hot and archived traces are found alike, because rows and columns stay when payloads are archived. A page continues
after the last result of the page before, by sort key and id, so new traces do not shift pages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sqlalchemy import BigInteger, Table, and_, exists, func, literal, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tracelake import limits
from tracelake._errors import QueryError
from tracelake.tracking import schema
from tracelake.tracking.annotations import (
    CLIENT_REQUEST_ID,
    FOR_ALL,
    OF_COLUMNS,
    Annotations,
    Experiment,
    is_exclusive_to,
    visible_to,
)
from tracelake.tracking.store import TrackingStore

Value: TypeAlias = str | int | float | tuple[str, ...] | None
NUMBERS: Final = {
    "timestamp_ms": "timestamp_ms",
    "timestamp": "timestamp_ms",
    "execution_time_ms": "execution_time_ms",
    "execution_time": "execution_time_ms",
    "end_time_ms": "end_time_ms",
    "end_time": "end_time_ms",
}
"""Numeric keys and their canonical names."""
TEXTS: Final = {
    **{key: key for key in ("request_id", "status", "name", "client_request_id")},
    "trace_id": "request_id",
}
METADATA: Final = {"mlflow.trace.session": "session_id", "mlflow.trace.user": "user_id"}
ALIASES: Final = {
    **dict.fromkeys(("", "attribute", "attributes", "trace"), "attribute"),
    **dict.fromkeys(("tag", "tags"), "tag"),
    **dict.fromkeys(("metadata", "request_metadata"), "metadata"),
    "span": "span",
}
"""Kind of each identifier before the dot. No identifier means an attribute."""
_OF_NUMBERS: Final = frozenset(("=", "!=", "<", "<=", ">", ">="))
_OF_TEXTS: Final = frozenset(("=", "!=", "LIKE", "ILIKE", "IN", "NOT IN"))
_OF_KEYS: Final = _OF_TEXTS | {"IS NULL", "IS NOT NULL"}
# Both databases can store numbers of up to 18 digits.
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<number>[-+]?\d{1,18}(?:\.\d{1,18})?(?![\w.]))"""
    r"""|(?P<name>[A-Za-z_][\w\-/]*(?:\.(?:[\w\-/]+|`[^`]*`|"[^"]*"))*)|(?P<sign><=|>=|!=|=|<|>|\(|\)|,))""",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class FilterCondition:
    """A comparison of a filter."""

    kind: str
    """attribute | tag | metadata | span"""
    key: str
    comparator: str
    value: Value


def parse_filter(text: str | None) -> tuple[FilterCondition, ...]:
    """Return the conditions of a filter. Raises QueryError with the part that does not parse, and a valid example."""
    text = text or ""
    if len(text) > limits.FILTER_MAX_CHARS or "\0" in text:
        raise QueryError(
            f"a filter may have up to {limits.FILTER_MAX_CHARS:,} characters, without NUL; this one has "
            f"{len(text):,}."
        )
    tokens = _Tokens(text)
    conditions = list[FilterCondition]()
    while tokens.left:
        if conditions:
            tokens.word("AND")
        if len(conditions) == limits.FILTER_CONDITIONS_MAX:
            raise QueryError(f"a filter may have up to {limits.FILTER_CONDITIONS_MAX} conditions.")
        conditions.append(_condition(tokens))
    return tuple(conditions)


class _Tokens:
    """The remaining tokens of a filter."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.left: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.wrong(text[at:].strip())
            self.left.append((str(match.lastgroup), match[0].strip()))
            at = match.end()

    def wrong(self, what: str) -> QueryError:
        """Return the error for an unexpected token."""
        return QueryError(
            f"the filter has a syntax error at {what[: limits.QUOTED_MAX_CHARS]!r}: write comparisons with AND "
            "between, such as attributes.status = 'OK' AND tags.team = 'a' AND timestamp_ms > 1700000000000."
        )

    def next(self, *kinds: str) -> str:
        """Consume a token of one of these kinds."""
        if not self.left or self.left[0][0] not in kinds:
            raise self.wrong(self.left[0][1] if self.left else "its end")
        return self.left.pop(0)[1]

    def is_word(self, word: str) -> bool:
        """Consume a word if it is next, and return whether it was."""
        if self.left and self.left[0][1].upper() == word:
            self.left.pop(0)
            return True
        return False

    def word(self, word: str) -> None:
        """Consume a required word."""
        if not self.is_word(word):
            raise self.wrong(self.left[0][1] if self.left else "its end")


def _condition(tokens: _Tokens) -> FilterCondition:
    name = tokens.next("name")
    kind, key = _identified(name)
    comparator = _comparator(tokens)
    number = kind == "attribute" and key in NUMBERS.values()
    allowed = _OF_NUMBERS if number else _OF_KEYS if kind in ("tag", "metadata") else _OF_TEXTS
    if comparator not in allowed:
        raise QueryError(f"{name} can be compared with {', '.join(sorted(allowed))}, not with {comparator}.")
    if comparator.startswith("IS "):
        return FilterCondition(kind, key, comparator, None)
    if comparator.endswith("IN"):
        return FilterCondition(kind, key, comparator, _values(tokens))
    if number:
        digits = tokens.next("number")
        return FilterCondition(kind, key, comparator, float(digits) if "." in digits else int(digits))
    return FilterCondition(kind, key, comparator, _unquoted(tokens.next("text")))


def _identified(name: str) -> tuple[str, str]:
    """Return the kind and key of a name."""
    first, _, suffix = name.partition(".")
    identifier, key = (first.lower(), suffix) if suffix else ("", name)
    kind = ALIASES.get(identifier)
    key = key[1:-1] if len(key) > 1 and key[0] == key[-1] and key[0] in '`"' else key
    if kind == "tag" and key:
        return kind, key
    if kind == "attribute" and (column := {**NUMBERS, **TEXTS}.get(key.lower())):
        return kind, column
    if kind == "metadata" and key in METADATA:
        return kind, METADATA[key]
    if kind == "span" and key in ("name", "status"):
        return kind, key
    raise QueryError(
        f"{name[: limits.QUOTED_MAX_CHARS]!r} cannot be filtered; use "
        f"{', '.join(sorted({*NUMBERS.values(), *TEXTS.values()}))}, tags.<key>, "
        f"metadata.{', '.join(METADATA)}, span.name or span.status; for attributes and text of spans use the "
        "search of Tracelake (`tracelake search`, GET /api/v1/search)."
    )


def _comparator(tokens: _Tokens) -> str:
    if tokens.is_word("NOT"):
        tokens.word("IN")
        return "NOT IN"
    if tokens.is_word("IS"):
        negated = tokens.is_word("NOT")
        tokens.word("NULL")
        return "IS NOT NULL" if negated else "IS NULL"
    return tokens.next("sign", "name").upper()


def _values(tokens: _Tokens) -> tuple[str, ...]:
    tokens.word("(")
    texts = [_unquoted(tokens.next("text"))]
    while tokens.is_word(","):
        texts.append(_unquoted(tokens.next("text")))
    tokens.word(")")
    if len(texts) > limits.FILTER_VALUES_MAX:
        raise QueryError(f"IN accepts up to {limits.FILTER_VALUES_MAX} values, not {len(texts)}.")
    return tuple(texts)


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


_INFO: Final = schema.trace_info.c


def _annotation_or_column(
    table: Table, key: str, column: ColumnElement[Any], *of_its: ColumnElement[bool]
) -> ColumnElement[Any]:
    """Return a trace's annotation as SQL, or a column computed from its spans if it has none."""
    of = table.c
    annotation = select(of.value).where(
        of.lake == _INFO.lake, of.trace_id == _INFO.trace_id, of.key == key, *of_its
    )
    if table is schema.trace_tags:  # a tag of the row's workspace overrides one for all
        annotation = annotation.order_by(of.workspace == FOR_ALL).limit(1)
    return func.coalesce(annotation.correlate(schema.trace_info).scalar_subquery(), column)


_ENDED_NS: Final[ColumnElement[Any]] = func.nullif(_INFO.end_ns, 0, type_=BigInteger)
"""Null until a span of the trace has ended, so that no filter by end time or duration matches."""


def _columns(
    of_tags: ColumnElement[bool], *of_metadata: ColumnElement[bool]
) -> dict[str, ColumnElement[Any]]:
    """Return the searchable columns of traces, with these conditions on tags and metadata."""
    client_id = _annotation_or_column(
        schema.trace_metadata, CLIENT_REQUEST_ID, _INFO.client_request_id, *of_metadata
    )
    return {
        "request_id": literal("tr-") + _INFO.trace_id,
        "timestamp_ms": _INFO.start_ns // 1_000_000,
        "end_time_ms": _ENDED_NS // 1_000_000,
        "execution_time_ms": (_ENDED_NS - _INFO.start_ns) // 1_000_000,
        "status": _INFO.state,
        "name": _annotation_or_column(schema.trace_tags, "mlflow.traceName", _INFO.name, of_tags),
        "client_request_id": client_id,
        **{
            name: _annotation_or_column(schema.trace_metadata, key, _INFO[name], *of_metadata)
            for key, name in METADATA.items()
        },
    }


_OF_ALL: Final = _columns(schema.trace_tags.c.workspace.in_((_INFO.workspace, FOR_ALL)))
_OF_ONE: Final = _columns(
    visible_to(schema.trace_tags, _INFO.workspace), is_exclusive_to(schema.trace_info, _INFO.workspace)
)
"""For a search in one workspace, which is that of the row."""
_ORDERS: Final[dict[str, tuple[ColumnElement[Any], type]]] = {
    "timestamp_ms": (_INFO.start_ns, int),
    "end_time_ms": (_INFO.end_ns, int),
    "execution_time_ms": (_INFO.end_ns - _INFO.start_ns, int),
    "status": (_INFO.state, str),
    "name": (func.coalesce(_INFO.name, ""), str),
    "request_id": (_INFO.trace_id, str),
    "experiment_id": (_INFO.experiment_id, str),
}
"""Sort keys of traces with their types in page tokens. Their values are never null.

By end and duration, a trace that has not ended sorts before all others.
"""


@dataclass(frozen=True, slots=True)
class FoundTraces:
    """A page of traces: their `trace_info` rows, and the token of the next page."""

    rows: list[Any]
    next_page_token: str | None


class TraceSearch:
    """Searches for traces of one lake."""

    def __init__(self, store: TrackingStore, workspace: str | None = None) -> None:
        """Search in one workspace, or in all if `workspace` is None."""
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
        """Return traces of experiments that match a filter, the newest first by default. Raises QueryError if an
        argument does not parse or the search takes too long."""
        conditions = parse_filter(filter)
        key, is_ascending = _order(order_by)
        column, kind = _ORDERS[key]
        if key == "name":
            column = func.coalesce(self._columns["name"], "")
        query_name = requested_name(
            experiment_ids,
            conditions,
            key,
            is_ascending,
            *([] if self._workspace is None else [self._workspace]),
        )
        query = select(schema.trace_info, column.label("ordered_by")).where(
            _INFO.lake == self._lake,
            *self._workspace_condition(_INFO),
            _INFO.experiment_id.in_(list(experiment_ids)),
            *(self._holds(condition) for condition in conditions),
        )
        if page_token:
            value, trace_id = read_token(page_token, query_name, kind)
            is_behind = column > value if is_ascending else column < value
            query = query.where(or_(is_behind, and_(column == value, _INFO.trace_id > trace_id)))
        query = query.order_by(column.asc() if is_ascending else column.desc(), _INFO.trace_id)
        with self._database.searching() as connection:
            rows = list(connection.execute(query.limit(max_results + 1)))
        token = None
        if len(rows) > max_results:
            rows = rows[:max_results]
            token = make_token(query_name, rows[-1].ordered_by, rows[-1].trace_id)
        return FoundTraces(rows, token)

    def _workspace_condition(self, columns: Any) -> list[ColumnElement[bool]]:
        """Return the SQL condition that a row belongs to the workspace, if one is set."""
        return [] if self._workspace is None else [columns.workspace == self._workspace]

    def _holds(self, condition: FilterCondition) -> ColumnElement[bool]:
        """Return a condition as SQL."""
        if condition.kind == "tag":
            return self._tag(condition)
        if condition.kind == "span":
            of = (
                schema.spans.c.lake == _INFO.lake,
                schema.spans.c.trace_id == _INFO.trace_id,
                *self._workspace_condition(schema.spans.c),
            )
            column = (
                schema.spans.c.name
                if condition.key == "name"
                else func.coalesce(schema.spans.c.status, "UNSET")
            )
            return exists().where(*of, self._compared(column, condition))
        return self._compared(self._columns[condition.key], condition)

    def _tag(self, condition: FilterCondition) -> ColumnElement[bool]:
        column = _TAGS_OF_COLUMNS.get(condition.key)
        if condition.key == "mlflow.traceName":
            column = self._columns["name"]
        if column is not None:
            return self._compared(column, condition)
        of = (
            schema.trace_tags.c.lake == _INFO.lake,
            schema.trace_tags.c.trace_id == _INFO.trace_id,
            schema.trace_tags.c.key == condition.key,
            *([] if self._workspace is None else [visible_to(schema.trace_tags, self._workspace)]),
        )
        if condition.comparator == "IS NULL":
            return ~exists().where(*of)
        if condition.comparator == "IS NOT NULL":
            return exists().where(*of)
        return exists().where(*of, self._compared(schema.trace_tags.c.value, condition))

    def _compared(self, column: ColumnElement[Any], condition: FilterCondition) -> ColumnElement[bool]:
        return compared(column, condition, self._database.is_sqlite)


def compared(column: ColumnElement[Any], condition: FilterCondition, is_sqlite: bool) -> ColumnElement[bool]:
    """Return a comparison of a column as SQL."""
    value: Any = condition.value
    sign = condition.comparator
    if sign in _TESTS:
        return _TESTS[sign](column, value)
    if sign == "LIKE":
        # SQLite's LIKE ignores case, GLOB does not
        glob = column.op("GLOB", is_comparison=True)(_glob(value))
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
    tag: _INFO[name] for tag, name in OF_COLUMNS.items()
}


def _escaped(pattern: str) -> str:
    """Return a LIKE pattern in which a backslash is literal, as in GLOB."""
    return pattern.replace("\\", "\\\\")


def _glob(pattern: str) -> str:
    """Return a LIKE pattern as a GLOB pattern, which is case-sensitive."""
    signs = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}
    return "".join(signs.get(character, character) for character in pattern)


def _order(order_by: Sequence[str]) -> tuple[str, bool]:
    """Return the sort key of traces, and whether it ascends."""
    wanted = [text for text in order_by if text.strip()]
    if len(wanted) > 1:
        raise QueryError("traces can be ordered by one column only; ties are ordered by id.")
    if not wanted:
        return "timestamp_ms", False
    name, *direction = wanted[0].split()
    identifier, _, key = name.rpartition(".")
    key = key.strip('`"').lower()
    key = NUMBERS.get(key, key)
    is_sortable = key in _ORDERS and ALIASES.get(identifier.lower()) == "attribute"
    if not is_sortable or [each.upper() for each in direction] not in ([], ["ASC"], ["DESC"]):
        raise QueryError(
            f"traces cannot be ordered by {wanted[0][: limits.QUOTED_MAX_CHARS]!r}; use {', '.join(_ORDERS)}, "
            "with ASC or DESC."
        )
    return key, [each.upper() for each in direction] != ["DESC"]


def requested_name(*asked: object) -> str:
    """Return a short hash of a search's arguments. Its page tokens contain it."""
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:16]


def make_token(query_name: str, value: object, behind: str) -> str:
    """Return a page token. The next page starts after the result with this sort value and, among equal values, this id
    (`behind`)."""
    return base64.urlsafe_b64encode(json.dumps([query_name, value, behind]).encode()).decode()


def read_token(text: str, query_name: str, kind: type) -> tuple[Any, str]:
    """Return the value and id in a page token. Raises QueryError if it is invalid or of another search."""
    try:
        name, value, trace_id = json.loads(base64.b64decode(text.encode(), altchars=b"-_", validate=True))
        is_one = (
            type(value) is kind
            and isinstance(trace_id, str)
            and name == query_name
            and "\0" not in f"{value}{trace_id}"
            and bool(f"{value}{trace_id}".encode())  # no lone surrogate, because databases reject it
        )
        is_one = is_one and (not isinstance(value, int) or abs(value) < 2**63)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        is_one = False
    if not is_one:
        raise QueryError(
            "this is not a page token of this search; use `next_page_token` of a page unchanged."
        )
    return value, trace_id


_EXPERIMENTS: Final = schema.experiments.c
_EXPERIMENT_ORDERS: Final[dict[str, tuple[ColumnElement[Any], type]]] = {
    "creation_time": (_EXPERIMENTS.created_ns, int),
    "last_update_time": (_EXPERIMENTS.created_ns, int),  # only an experiment's tags ever change
    "name": (_EXPERIMENTS.name, str),
    "experiment_id": (_EXPERIMENTS.experiment_id, str),
}


class ExperimentSearch:
    """Searches for experiments of one lake."""

    def __init__(self, store: TrackingStore, workspace: str | None = None) -> None:
        """Search in one workspace, or in all if `workspace` is None."""
        self._store, self._lake = store, store.lake
        self._workspace = workspace
        self._here = [_EXPERIMENTS.lake == self._lake]
        if workspace is not None:
            self._here.append(_EXPERIMENTS.workspace == workspace)

    def search(
        self,
        filter: str | None = None,
        max_results: int = limits.EXPERIMENTS_SHOWN_MAX,
        order_by: Sequence[str] = (),
        page_token: str | None = None,
    ) -> tuple[list[Experiment], str | None]:
        """Return experiments that match a filter, the newest first by default, and the token of the next page.

        A page has at most 1,000. Raises QueryError if an argument does not parse or the search takes too long, and
        BackPressureError if too many searches run.
        """
        conditions = parse_filter(filter)
        column, kind, is_ascending = _experiment_order(order_by)
        query_name = requested_name("experiments", conditions, str(column), is_ascending)
        query = select(_EXPERIMENTS.experiment_id, column.label("ordered_by")).where(
            *self._here, *map(self._holds, conditions)
        )
        if page_token:
            value, behind = read_token(page_token, query_name, kind)
            is_behind = column > value if is_ascending else column < value
            query = query.where(or_(is_behind, and_(column == value, _EXPERIMENTS.experiment_id > behind)))
        query = query.order_by(column.asc() if is_ascending else column.desc(), _EXPERIMENTS.experiment_id)
        size = min(max_results, limits.EXPERIMENTS_SHOWN_MAX)
        with self._store.database.searching() as connection:
            rows = list(connection.execute(query.limit(size + 1)))
        token = None
        if len(rows) > size:
            rows = rows[:size]
            token = make_token(query_name, rows[-1].ordered_by, rows[-1].experiment_id)
        by_id = Annotations(self._store, self._workspace).experiments_of([row.experiment_id for row in rows])
        return [by_id[row.experiment_id] for row in rows if row.experiment_id in by_id], token

    def _holds(self, condition: FilterCondition) -> ColumnElement[bool]:
        """Return a condition as SQL. Raises QueryError for a condition that experiments do not have."""
        is_sqlite = self._store.database.is_sqlite
        if condition.kind == "attribute" and condition.key == "name":
            return compared(_EXPERIMENTS.name, condition, is_sqlite)
        if condition.kind != "tag":
            raise QueryError("experiments can be filtered by name and tags.<key>, with AND between.")
        tags = schema.experiment_tags.c
        of = [
            tags.lake == _EXPERIMENTS.lake,
            tags.experiment_id == _EXPERIMENTS.experiment_id,
            tags.key == condition.key,
        ]
        if self._workspace is not None:
            of.append(tags.experiment_id != schema.DEFAULT_EXPERIMENT)
        if condition.comparator == "IS NULL":
            return ~exists().where(*of)
        if condition.comparator == "IS NOT NULL":
            return exists().where(*of)
        return exists().where(*of, compared(tags.value, condition, is_sqlite))


def _experiment_order(order_by: Sequence[str]) -> tuple[ColumnElement[Any], type, bool]:
    """Return the sort key of experiments, its type, and whether it ascends. Raises QueryError if the order does not
    parse."""
    wanted = [text for text in order_by if text.strip()] or ["creation_time DESC"]
    name, *direction = wanted[0].split()
    key = name.removeprefix("attribute.").removeprefix("attributes.").strip('`"').lower()
    if (
        len(wanted) > 1
        or key not in _EXPERIMENT_ORDERS
        or [each.upper() for each in direction] not in ([], ["ASC"], ["DESC"])
    ):
        raise QueryError(
            f"experiments cannot be ordered by {', '.join(wanted)[: limits.QUOTED_MAX_CHARS]!r}; use one of "
            f"{', '.join(_EXPERIMENT_ORDERS)}, with ASC or DESC."
        )
    return *_EXPERIMENT_ORDERS[key], [each.upper() for each in direction] != ["DESC"]
