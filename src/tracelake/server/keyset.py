"""Pages of a list by the keys of its rows.

A page begins after a row or ends before one. So rows that arrive later neither repeat nor hide others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tracelake.results import Row
from tracelake.search.prefilter import latest_start
from tracelake.shards.rows import literal
from tracelake.tables.page_tokens import ListToken, read_list_token


@dataclass(frozen=True, slots=True)
class RowPage:
    """The rows of one page, and the tokens of its neighbours; None if there is no such page."""

    rows: list[Row]
    next_page: str | None
    previous_page: str | None


@dataclass(frozen=True, slots=True)
class Keyset:
    """SQL of one page of a list that is sorted by integers. Ids of 32 hex digits break ties."""

    name: str
    columns: tuple[str, ...]
    """Sort keys, and the row id at the end."""
    descending: tuple[bool, ...]
    token: ListToken | None
    now_ns: int
    """Time of the request for the first page."""

    @classmethod
    def read(cls, keys: Sequence[str], row_id: str, name: str, page: str | None) -> Keyset:
        """Return the page that a token names, or the first page. Raises QueryError for the token of another list.

        Args:
            keys: Sort keys in SQL, with ` DESC` for falling ones. `{latest_ns}` is the latest plausible start time.
            row_id: SQL of the row id.
            name: Hash of the list's filter and order.
            page: The token.
        """
        token = None if page is None else read_list_token(page, name, len(keys))
        now_ns = time.time_ns() if token is None else token.now_ns
        latest_ns = latest_start(now_ns)
        columns = [key.removesuffix(" DESC").format(latest_ns=latest_ns) for key in keys]
        is_before = token is not None and token.is_before
        descending = [key.endswith(" DESC") != is_before for key in (*keys, row_id)]
        return cls(name, (*columns, row_id), tuple(descending), token, now_ns)

    @property
    def is_before(self) -> bool:
        """Whether the page ends before the row of its token."""
        return self.token is not None and self.token.is_before

    @property
    def selected(self) -> str:
        """The SQL columns that `page` reads."""
        return ", ".join(f"({column})::VARCHAR AS key_{number}" for number, column in enumerate(self.columns))

    @property
    def order(self) -> str:
        """The SQL order."""
        pairs = zip(self.columns, self.descending, strict=True)
        return ", ".join(f"{column} {'DESC' if down else 'ASC'}" for column, down in pairs)

    @property
    def conditions(self) -> list[str]:
        """The SQL conditions of the page; none for the first page."""
        if self.token is None:
            return []
        values = (*map(str, self.token.keys), literal(self.token.row_id))
        return [_behind([*zip(self.columns, values, self.descending, strict=True)])]

    def page(self, rows: list[Row], limit: int) -> RowPage:
        """Return the page from rows with the columns `selected`, of which there may be one more than the limit."""
        has_more = len(rows) > limit
        rows = rows[:limit][:: -1 if self.is_before else 1]
        keys = [[row.pop(f"key_{number}") for number in range(len(self.columns))] for row in rows]

        def token(place: int, *, before: bool) -> str:
            *numbers, row_id = keys[place]
            return str(ListToken(self.name, self.now_ns, tuple(map(int, numbers)), row_id, before))

        if self.is_before:
            has_next, has_previous = bool(rows), has_more
        else:
            has_next, has_previous = has_more, self.token is not None and bool(rows)
        return RowPage(
            rows,
            token(-1, before=False) if has_next else None,
            token(0, before=True) if has_previous else None,
        )


def _behind(keys: Sequence[tuple[str, str, bool]]) -> str:
    """Return the SQL condition for rows after a key. `keys` has each column in order, its value, and whether it is
    descending."""
    column, value, falls = keys[0]
    behind = f"{column} {'<' if falls else '>'} {value}"
    return behind if len(keys) == 1 else f"({behind} OR ({column} = {value} AND {_behind(keys[1:])}))"
