"""Pages of searches and lists: their tokens, and the SQL of a page of a list.

A search continues at the commit of its first page. A page of a list begins after a row or ends before one. So rows
that arrive later neither repeat nor hide others. Tokens are unsigned: a client that forges one reads what it may read
anyway.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracelake._errors import QueryError
from tracelake.limits import QUOTED_MAX_CHARS, SEARCH_OFFSET_MAX_HITS
from tracelake.results import Row
from tracelake.search.prefilter import latest_start
from tracelake.shards.rows import literal

_TOKEN: Final = re.compile(
    r"([0-9a-f]{8,64}|none)-(\d{1,9})-(\d{1,20})-([0-9a-f]{16})(?:-((?:s_)?[0-9a-f._]{3,400}))?", re.ASCII
)
_LIST_TOKEN: Final = re.compile(
    r"([ab])_([0-9a-f]{16})_(\d{1,19})((?:_-?\d{1,40}){1,4})_([0-9a-f]{32})", re.ASCII
)
_NO_COMMIT: Final = "none"
_NOW_STEP_NS: Final = 60 * 10**9
"""Precision of the latest plausible start time, so that the query of a list is the same for a minute."""


@dataclass(frozen=True, slots=True)
class PageToken:
    """Position in a search: its commit, the number of hits before the page, the value of `now`, and the hash of the
    search."""

    commit: str | None
    """None for a lake without commits."""
    offset: int
    now_ns: int
    search: str
    newer: str = ""
    """Name of the uncommitted rows that the search included; empty for none."""

    def __str__(self) -> str:
        """Return the token as text for URLs and commands."""
        newer = f"-{self.newer}" if self.newer else ""
        return f"{self.commit or _NO_COMMIT}-{self.offset}-{self.now_ns}-{self.search}{newer}"


@dataclass(frozen=True, slots=True)
class ListToken:
    """Position in a list: the list's name, and the keys of the row after which the page begins, or before which it
    ends."""

    name: str
    """Hash of the list's filter and order."""
    now_ns: int
    """Time of the request for the first page."""
    keys: tuple[int, ...]
    """The row's values of the sort columns."""
    row_id: str
    """The id of the row, which breaks ties between equal keys."""
    is_before: bool = False
    """Whether the page ends before the row."""

    def __str__(self) -> str:
        """Return the token as text for URLs."""
        side = "b" if self.is_before else "a"
        return "_".join([side, self.name, str(self.now_ns), *map(str, self.keys), self.row_id])


def read_list_token(text: str, name: str, keys: int) -> ListToken:
    """Parse the token of a list with that number of keys. Raises QueryError if it is invalid or belongs to another
    list."""
    match = _LIST_TOKEN.fullmatch(text)
    if match is None:
        raise QueryError(f"{text[:QUOTED_MAX_CHARS]!r} is not a page; use `next_page` of a list unchanged.")
    token = ListToken(
        match[2], int(match[3]), tuple(map(int, match[4].split("_")[1:])), match[5], match[1] == "b"
    )
    if token.name != name or len(token.keys) != keys:
        raise QueryError("this page belongs to another list; use the same filters and order, or no page.")
    return token


def name_of_search(*request_parts: str | None) -> str:
    """Return a short hash of a request, so that a token is refused for another search."""
    return hashlib.sha256(repr(request_parts).encode(errors="replace")).hexdigest()[:16]


def token_of(text: str) -> PageToken:
    """Parse a token of any search. Raises QueryError if it is invalid."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise QueryError(f"{text[:QUOTED_MAX_CHARS]!r} is not a page; use `next_page` of a result unchanged.")
    commit = None if match[1] == _NO_COMMIT else match[1]
    return PageToken(commit, int(match[2]), int(match[3]), match[4], match[5] or "")


def read_token(text: str, search: str) -> PageToken:
    """Parse a token of a search. Raises QueryError if it is invalid or belongs to another search."""
    token = token_of(text)
    if token.search != search:
        raise QueryError(
            "this page belongs to another search; use the same query, condition, service and order, or no "
            "page."
        )
    if token.offset > SEARCH_OFFSET_MAX_HITS:
        raise QueryError(
            f"pages end at {SEARCH_OFFSET_MAX_HITS:,} hits; narrow the search, or use `sql` to read all."
        )
    return token


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
        latest_ns = latest_start(now_ns - now_ns % _NOW_STEP_NS)
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
