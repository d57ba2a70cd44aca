"""One search, of whatever kind: how it is asked for hits in pages, for a number of all, and for facets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, get_args

from tracelake._errors import QueryError
from tracelake.search.analyzers import ENGLISH
from tracelake.search.facets import Counted, RawFacet, check
from tracelake.search.prepared import grammar_of
from tracelake.search.query import Searcher, Sort
from tracelake.search.raw_hits import RawHit
from tracelake.search.results import PartsAsked
from tracelake.search.semantic import Mode, Vector
from tracelake.search.syntax import parse


@dataclass(frozen=True, slots=True)
class AskedSearch:
    """A search at one manifest: its hits from an offset on, and how many there are with facets."""

    hits: Callable[[int, int], list[RawHit]]
    count: Callable[[Sequence[str]], Counted]
    parts: PartsAsked
    """Those that are asked for hits."""


def asked_of(
    searcher: Searcher,
    query: str,
    service: str | None,
    sort: Sort,
    now_ns: int,
    by: By,
    workspace: str | None = None,
) -> AskedSearch:
    """Return what a searcher answers to a query, in one workspace or in all.

    Raises QueryError where the index has no vectors that it needs.
    """
    by.check(sort)
    if by.mode == "text":
        return AskedSearch(
            lambda limit, offset: searcher.search(query, limit, offset, service, sort, now_ns, workspace),
            lambda facets: searcher.count(query, service, facets, now_ns, workspace),
            searcher.parts_asked(query, service, sort, now_ns, workspace),
        )
    by_meaning = searcher.by_meaning(query, by.mode, by.vector, service, now_ns, workspace)
    if by_meaning is None:
        return AskedSearch(lambda _limit, _offset: [], _nothing, PartsAsked(0, 0))
    _, asked = by_meaning
    hits, count = partial(searcher.hits_by_meaning, asked), partial(searcher.count_by_meaning, asked)
    return AskedSearch(hits, count, searcher.all_parts)


def check_asked(query: str, sort: Sort, facets: Sequence[str], now_ns: int, by: By) -> None:
    """Refuse what is refused where there are spans, in a lake that has none yet. Raises QueryError."""
    by.check(sort)
    check(facets)
    if by.mode == "text":
        parse(grammar_of(ENGLISH), query, now_ns)


@dataclass(frozen=True, slots=True)
class By:
    """What a search goes by: words, meaning or both; and what it compares with instead of the words of its query."""

    mode: Mode = "text"
    vector: Vector | None = None

    @classmethod
    def of(cls, mode: Mode | None, vector: Sequence[float] | None) -> By:
        """Return it as a user says it: by default words, with a vector meaning. Raises QueryError."""
        if mode not in (None, *get_args(Mode)):
            raise QueryError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}.")
        if mode == "text" and vector is not None:
            raise QueryError(
                "a vector is for a search by meaning; say mode semantic or hybrid, or leave it out."
            )
        if vector is None:
            return cls(mode or "text")
        try:
            return cls(mode or "semantic", tuple(float(number) for number in vector))
        except (TypeError, ValueError, OverflowError) as error:
            raise QueryError("the vector holds what is no number; give a list of numbers.") from error

    @property
    def told(self) -> tuple[str, ...]:
        """What tells a search from others, for the names of pages; nothing for one by words."""
        if self.mode == "text":
            return ()
        return self.mode, "" if self.vector is None else hashlib.sha256(
            repr(self.vector).encode()
        ).hexdigest()

    def check(self, sort: Sort) -> None:
        """Refuse an order that it does not have. Raises QueryError."""
        if self.mode != "text" and sort != "score":
            raise QueryError(
                f"a search by meaning is in the order of likeness, and has no order {sort!r}; leave it out, or search "
                "by words, with mode text."
            )


BY_WORDS: Final = By()


def _nothing(facets: Sequence[str]) -> Counted:
    check(facets)
    return Counted(0, {name: RawFacet((), 0) for name in facets})
