"""Experiments of the tracking store by MLflow's filters, page by page, as traces are searched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import and_, exists, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tracelake._errors import QueryError
from tracelake.limits import EXPERIMENTS_SHOWN_MAX, QUOTED_MAX_CHARS
from tracelake.tracking.annotations import Annotations, Experiment
from tracelake.tracking.schema import DEFAULT_EXPERIMENT, experiment_tags, experiments
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.trace_filter import FilterCondition, parse_filter
from tracelake.tracking.trace_search import asked_name, compared, make_token, read_token

_OF: Final = experiments.c
_ORDERS: Final[dict[str, tuple[ColumnElement[Any], type]]] = {
    "creation_time": (_OF.created_ns, int),
    "last_update_time": (_OF.created_ns, int),  # nothing of an experiment changes but its tags
    "name": (_OF.name, str),
    "experiment_id": (_OF.experiment_id, str),
}


class ExperimentSearch:
    """Searches of one lake."""

    def __init__(self, store: TrackingStore, workspace: str | None = None) -> None:
        """Of one workspace, or of all."""
        self._store, self._lake = store, store.lake
        self._workspace = workspace
        self._here = [_OF.lake == self._lake]
        if workspace is not None:
            self._here.append(_OF.workspace == workspace)

    def search(
        self,
        filter: str | None = None,
        max_results: int = EXPERIMENTS_SHOWN_MAX,
        order_by: Sequence[str] = (),
        page_token: str | None = None,
    ) -> tuple[list[Experiment], str | None]:
        """Return experiments for which the filter holds, the newest first, and where the next page goes on.

        A page has 1,000 at most. Raises QueryError, BackPressureError.
        """
        conditions = parse_filter(filter)
        column, kind, is_ascending = _order(order_by)
        asked = asked_name("experiments", conditions, str(column), is_ascending)
        query = select(_OF.experiment_id, column.label("ordered_by")).where(
            *self._here, *map(self._holds, conditions)
        )
        if page_token:
            value, behind = read_token(page_token, asked, kind)
            is_behind = column > value if is_ascending else column < value
            query = query.where(or_(is_behind, and_(column == value, _OF.experiment_id > behind)))
        query = query.order_by(column.asc() if is_ascending else column.desc(), _OF.experiment_id)
        size = min(max_results, EXPERIMENTS_SHOWN_MAX)
        with self._store.database.searching() as connection:
            rows = list(connection.execute(query.limit(size + 1)))
        token = None
        if len(rows) > size:
            rows = rows[:size]
            token = make_token(asked, rows[-1].ordered_by, rows[-1].experiment_id)
        known = Annotations(self._store, self._workspace).experiments_of([row.experiment_id for row in rows])
        return [known[row.experiment_id] for row in rows if row.experiment_id in known], token

    def _holds(self, condition: FilterCondition) -> ColumnElement[bool]:
        """Return a condition as SQL. Raises QueryError."""
        is_sqlite = self._store.database.is_sqlite
        if condition.kind == "attribute" and condition.key == "name":
            return compared(_OF.name, condition, is_sqlite)
        if condition.kind != "tag":
            raise QueryError("experiments are searched by name and tags.<key>, with AND between.")
        tags = experiment_tags.c
        of = [tags.lake == _OF.lake, tags.experiment_id == _OF.experiment_id, tags.key == condition.key]
        if self._workspace is not None:
            of.append(tags.experiment_id != DEFAULT_EXPERIMENT)
        if condition.comparator == "IS NULL":
            return ~exists().where(*of)
        if condition.comparator == "IS NOT NULL":
            return exists().where(*of)
        return exists().where(*of, compared(tags.value, condition, is_sqlite))


def _order(order_by: Sequence[str]) -> tuple[ColumnElement[Any], type, bool]:
    """Return what experiments are ordered by, its type, and whether it ascends. Raises QueryError."""
    wanted = [text for text in order_by if text.strip()] or ["creation_time DESC"]
    name, *direction = wanted[0].split()
    key = name.removeprefix("attribute.").removeprefix("attributes.").strip('`"').lower()
    if (
        len(wanted) > 1
        or key not in _ORDERS
        or [each.upper() for each in direction] not in ([], ["ASC"], ["DESC"])
    ):
        raise QueryError(
            f"experiments are not ordered by {', '.join(wanted)[:QUOTED_MAX_CHARS]!r}; by one of "
            f"{', '.join(_ORDERS)}, with ASC or DESC."
        )
    return *_ORDERS[key], [each.upper() for each in direction] != ["DESC"]
