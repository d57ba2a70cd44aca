"""Page tokens: the position from which a search or list continues. A search continues at the commit of its first
page."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from tracelake._errors import QueryError
from tracelake.limits import QUOTED_MAX_CHARS, SEARCH_OFFSET_MAX_HITS

_TOKEN: Final = re.compile(
    r"([0-9a-f]{8,64}|none)-(\d{1,9})-(\d{1,20})-([0-9a-f]{16})(?:-((?:s_)?[0-9a-f._]{3,400}))?", re.ASCII
)
_LIST_TOKEN: Final = re.compile(
    r"([ab])_([0-9a-f]{16})_(\d{1,19})((?:_-?\d{1,40}){1,4})_([0-9a-f]{32})", re.ASCII
)
_NO_COMMIT: Final = "none"


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
