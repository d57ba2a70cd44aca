"""Search over exactly the parts of one manifest, scored as if they were one index (F15).

One search, of whatever kind: how it is asked for hits in pages, for a number of all, and for facets.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import tantivy

from tracelake._errors import DamageError, QueryError, UsageError
from tracelake.limits import INDEX_PRUNED_KEPT, LIKE_SPANS_KEPT, SEARCH_RANKED_BEYOND_HITS
from tracelake.search.analyzers import ANALYZERS, ENGLISH, of_fingerprint
from tracelake.search.build import UnpublishedPart
from tracelake.search.facets import FacetCounts, OneWorkspace, RawFacet, check, completions, count, only
from tracelake.search.live_docs import RowSelection
from tracelake.search.model import BUILD_ANEW, Manifest
from tracelake.search.open_index import OpenedIndex, OpenIndex
from tracelake.search.part_cache import classify_error, retry_after_reopen
from tracelake.search.pruning import MayMatch, latest_start, may_match, newest_after, only_after, only_until
from tracelake.search.query_compiler import (
    Prepared,
    asks_for_likeness,
    grammar_of,
    parse,
    prepared,
    prepared_alike,
)
from tracelake.search.results import AnyHit, PartsAsked, RawHit, ranked_as_far_as, raw_hit
from tracelake.search.semantic_search import (
    NO_VECTORS,
    Mode,
    SemanticRequest,
    SemanticSearch,
    Vector,
    Vectors,
    rows_gone,
)
from tracelake.search.similar import Alike, TextsOf, alike_in
from tracelake.storage.ports import ObjectStore

Sort: TypeAlias = Literal["score", "newest", "oldest"]
"""Best first, or by the time at which spans start."""


class _Plan(NamedTuple):
    """What is asked of which parts; made for each search, so of the kind that is made quickly."""

    query: tantivy.Query | None
    """None where no word is in it: it finds nothing."""
    searcher: tantivy.Searcher | None
    """None where no part may have a hit."""
    parts: PartsAsked
    is_graded: bool
    """Whether scores tell hits apart."""


class Searcher:
    """An index as of one manifest. It never changes, and any number of threads may use it."""

    def __init__(
        self,
        objects: ObjectStore,
        manifest: Manifest,
        index: str | Path | OpenIndex,
        rows: RowSelection | None = None,
        texts_of: TextsOf | None = None,
        *,
        at_once: bool = True,
        unpublished: Sequence[UnpublishedPart] = (),
    ) -> None:
        """Open the parts of the manifest; `index` is one that is open already, or a directory for its cache.

        With `rows`, documents of other rows are left out of everything but scores. `texts_of` gives the texts of spans
        that others are to be like. Where not `at_once`, parts are opened when a search needs them, and then it raises.
        `unpublished` parts are of the same analyzer, and searched with those of the manifest.

        Raises:
            DamageError: A part is missing or altered; names it (F14).
            LimitError: There are more parts than this machine can map; nothing is wrong with them.
            UsageError: The index was built with other settings than this version has.
        """
        self.vectors = None if manifest.vectors is None else str(manifest.vectors)
        """Which vectors it has, for people; None for none."""
        # A search and its count ask for the same span.
        self._texts_of = None if texts_of is None else lru_cache(LIKE_SPANS_KEPT)(texts_of)
        self._manifest = manifest
        self._rows = rows
        self._unpublished = unpublished
        analyzer = of_fingerprint(manifest.fingerprint)
        if analyzer is None and manifest.part_count:
            raise UsageError(
                f"index {manifest.index} build {manifest.build} has the settings {manifest.fingerprint}, "
                f"and this version has {', '.join(each.fingerprint for each in ANALYZERS.values())}; use the version "
                f"that built it, or {BUILD_ANEW}"
            )
        self.analyzer = analyzer or ENGLISH
        """What made words of the texts, and makes them of queries."""
        self._grammar = grammar_of(self.analyzer)
        self._index = index if isinstance(index, OpenIndex) else OpenIndex(objects, Path(index))
        self._renewals = self._index.renewals
        self._parts = self._index.parts(manifest)
        self._all = tuple(range(len(self._parts)))
        self.all_parts = PartsAsked(len(self._parts), 0)
        """What is asked where nothing is left out."""
        self._whole: OpenedIndex | None = None
        self._by_meaning: SemanticSearch | None = None
        self._some: dict[tuple[int, ...], OpenedIndex] = {}
        """Some of the parts, open, by their numbers."""
        if at_once:
            self.open()

    @retry_after_reopen
    def open(self) -> None:
        """Open all parts."""
        self._opened()

    def renew(self) -> bool:
        """Open what is opened from now on out of copies that are as they were packed; False where all of them were."""
        before, self._renewals = self._renewals, self._index.renew(self.analyzer, self._parts)
        if self._renewals == before:
            return False
        self._whole = self._by_meaning = None
        self._some = {}
        return True

    @property
    def described(self) -> str:
        """Which index it is, for people."""
        return f"index {self._manifest.index} build {self._manifest.build}"

    def _opened(self) -> OpenedIndex | None:
        """Return all parts, open; None where there is none."""
        if self._whole is None and (self._parts or self._unpublished):
            self._whole = self._open(tuple(range(len(self._parts))), self._rows)
        return self._whole

    def _opened_of(self, numbers: tuple[int, ...]) -> OpenedIndex | None:
        """Return these parts, open; None where there is none."""
        if len(numbers) == len(self._all):
            return self._opened()
        opened = self._some.get(numbers)
        if opened is None and (numbers or self._unpublished):
            opened = self._open(numbers)
            for oldest in list(self._some)[: len(self._some) + 1 - INDEX_PRUNED_KEPT]:
                self._some.pop(oldest, None)
            self._some[numbers] = opened
        return opened

    def _open(self, numbers: tuple[int, ...], rows: RowSelection | None = None) -> OpenedIndex:
        manifest, parts = self._manifest, tuple(self._parts[number] for number in numbers)
        opened = self._index.searcher(manifest, rows, self.analyzer, parts, self._unpublished)
        documents = sum(part.documents for part in parts) + self._beside
        if opened.documents != documents:
            raise DamageError(
                f"{self.described} has {opened.documents} documents, "
                f"and its manifest says {documents}; run `tracelake verify`"
            )
        return opened

    @retry_after_reopen
    def search(
        self,
        query: str,
        limit: int,
        offset: int = 0,
        service: str | None = None,
        sort: Sort = "score",
        now_ns: int | None = None,
        workspace: str | None = None,
    ) -> list[RawHit]:
        """Return hits `offset` to `offset + limit` in order, equal ones mostly in order of the parts.

        With `service` or `workspace`, only of those of that name, in upper or lower case. `now_ns` is when `last 2h`
        ends, by default now.

        Raises:
            QueryError: The query does not parse; says what is wrong with it, and gives an example.
        """
        assert limit >= 0, limit
        assert offset >= 0, offset
        plan = self._plan(query, service, now_ns, workspace, scored=sort == "score")
        asked, searcher = plan.query, plan.searcher
        documents = 0 if searcher is None else searcher.num_docs
        if asked is None or searcher is None or limit == 0 or offset >= documents:
            return []
        by_time = None if sort == "score" else "start"
        order = tantivy.Order.Asc if sort == "oldest" else tantivy.Order.Desc

        def ranked_of(asked: tantivy.Query) -> list[AnyHit]:
            return ranked_as_far_as(
                offset + limit,
                lambda length: (
                    searcher.search(
                        asked, min(length, documents), count=False, order_by_field=by_time, order=order
                    ).hits
                ),
                beyond=1 if by_time else SEARCH_RANKED_BEYOND_HITS if plan.is_graded else 0,
            )

        try:
            is_newest = sort == "newest"
            ranked = self._newest(asked, offset + limit, now_ns, ranked_of) if is_newest else ranked_of(asked)
        except ValueError as error:
            raise classify_error(query, error) from error
        page = ranked[offset : offset + limit]
        return [raw_hit(searcher, 0.0 if by_time else score, address) for score, address in page]

    def _newest(
        self,
        asked: tantivy.Query,
        wanted: int,
        now_ns: int | None,
        ranked_of: Callable[[tantivy.Query], list[AnyHit]],
    ) -> list[AnyHit]:
        """Return the newest hits, those that start far in the future last: they would head the list for good."""
        schema, latest_ns = self._grammar.schema, latest_start(time.time_ns() if now_ns is None else now_ns)
        has_later = self._may_start_after(latest_ns)
        usual = only_until(schema, asked, latest_ns) if has_later else asked
        ranked: list[AnyHit] = []
        if self._newest_after is not None:
            ranked = ranked_of(only_after(schema, usual, self._newest_after))
        if len(ranked) < wanted:  # all of them are later than all others
            ranked = ranked_of(usual)
        if len(ranked) < wanted and has_later:
            ranked = [*ranked, *ranked_of(only_after(schema, asked, latest_ns))]
        return ranked

    def _may_start_after(self, time_ns: int) -> bool:
        """Whether a span may start after a time."""
        return any(part.contents is None or part.contents.last_ns > time_ns for part in self._parts) or any(
            part.last_ns > time_ns for part in self._unpublished
        )

    @retry_after_reopen
    def count(
        self,
        query: str,
        service: str | None = None,
        facets: Sequence[str] = (),
        now_ns: int | None = None,
        workspace: str | None = None,
    ) -> FacetCounts:
        """Return how many documents a query finds, and facets of these; `service` and `workspace` are exact names.

        Raises:
            QueryError: The query does not parse, or there is no such facet.
        """
        check(facets)
        plan = self._plan(query, service, now_ns, workspace, scored=False)
        if plan.query is None or plan.searcher is None:
            return FacetCounts(0, {name: RawFacet((), 0) for name in facets})
        try:
            return count(plan.searcher, plan.query, facets, only(service=service, workspace=workspace))
        except ValueError as error:
            raise classify_error(query, error) from error

    @retry_after_reopen
    def parts_asked(
        self,
        query: str,
        service: str | None = None,
        sort: Sort = "score",
        now_ns: int | None = None,
        workspace: str | None = None,
    ) -> PartsAsked:
        """Return how many parts `search` asks for this, and how many it leaves out. Raises QueryError."""
        return self._plan(query, service, now_ns, workspace, scored=sort == "score").parts

    def _plan(
        self, query: str, service: str | None, now_ns: int | None, workspace: str | None, *, scored: bool
    ) -> _Plan:
        """Decide which parts are asked: without those that cannot have hits, where only hits decide what is told.

        Scores count the words of all parts (F15), and so does what tells which spans are like one.
        """
        now_ns = time.time_ns() if now_ns is None else now_ns
        try:
            if like := asks_for_likeness(query):
                alike = self._alike(workspace)
                asked = prepared_alike(query, service, self.analyzer, now_ns, alike, workspace)
            else:
                asked = prepared(query, service, self.analyzer, now_ns, workspace)
        except ValueError as error:
            raise classify_error(query, error) from error
        if like or (scored and asked.is_ranked) or (may := may_match(asked.node, now_ns)) is None:
            return self._plan_of(asked, self._opened(), self.all_parts)
        numbers = self._may_match(may) if self._is_prunable else self._all
        parts = PartsAsked(len(numbers), len(self._parts) - len(numbers))
        return self._plan_of(asked, self._opened_of(numbers), parts)

    @staticmethod
    def _plan_of(asked: Prepared, opened: OpenedIndex | None, parts: PartsAsked) -> _Plan:
        return _Plan(asked.query, None if opened is None else opened.searcher, parts, asked.is_graded)

    def _alike(self, workspace: str | None) -> Alike:
        """Return what makes words of a span that others are to be like: which are rare, all parts tell."""
        opened = self._opened()
        counted = self._grammar.searcher() if opened is None else opened.searcher
        return alike_in(self._grammar.schema, counted, self._texts_of, self.analyzer, workspace)

    def _may_match(self, may: MayMatch) -> tuple[int, ...]:
        """Return the numbers of the parts that may have hits."""
        return tuple(
            number for number, part in enumerate(self._parts) if part.contents is None or may(part.contents)
        )

    @cached_property
    def _is_prunable(self) -> bool:
        """Whether every document is of a row that is there: else all parts together tell which are to be left out."""
        rows, manifest = self._rows, self._manifest
        documents = manifest.documents + self._beside
        return rows is None or (rows.as_of == manifest.upper - 1 and rows.count == documents)

    @cached_property
    def _newest_after(self) -> int | None:
        """The time after which the newest spans start; None where no part tells it."""
        return newest_after(self._parts)

    @property
    def _beside(self) -> int:
        return sum(part.header.documents for part in self._unpublished)

    @retry_after_reopen
    def traces_among(self, trace_ids: Collection[str]) -> set[str]:
        """Return which of these traces have documents here, those of replaced rows left out."""
        opened = self._opened()
        return set() if opened is None else _traces_of(opened.searcher, self._of_traces(trace_ids))

    @retry_after_reopen
    def traces_found(
        self,
        trace_ids: Collection[str],
        query: str,
        service: str | None,
        now_ns: int,
        workspace: str | None = None,
    ) -> set[str]:
        """Return which of these traces have documents here that a query finds. Raises QueryError."""
        plan = self._plan(query, service, now_ns, workspace, scored=False)
        if plan.query is None or plan.searcher is None:
            return set()
        both = [(tantivy.Occur.Must, each) for each in (self._of_traces(trace_ids), plan.query)]
        try:
            # To look up a trace takes as long as to read a hit, in each part.
            some = plan.searcher.search(plan.query, len(trace_ids) + 1, count=False).hits
            if len(some) <= len(trace_ids):
                return _traces(plan.searcher, some) & set(trace_ids)
            return _traces_of(plan.searcher, tantivy.Query.boolean_query(both))
        except ValueError as error:
            raise classify_error(query, error) from error

    def _of_traces(self, trace_ids: Collection[str]) -> tantivy.Query:
        return tantivy.Query.term_set_query(self._grammar.schema, "trace", sorted(trace_ids))

    @retry_after_reopen
    def by_meaning(
        self,
        query: str,
        mode: Mode,
        vector: Vector | None,
        service: str | None,
        now_ns: int,
        workspace: str | None = None,
    ) -> tuple[SemanticSearch, SemanticRequest] | None:
        """Return who searches by meaning, and what it is asked; None for an index without rows.

        Raises QueryError where the index has no vectors.
        """
        if self.vectors is None:
            raise QueryError(NO_VECTORS)
        meaning = self._meaning()
        return (
            None
            if meaning is None
            else (meaning, SemanticRequest(query, mode, vector, service, now_ns, workspace))
        )

    @retry_after_reopen
    def hits_by_meaning(self, asked: SemanticRequest, limit: int, offset: int) -> list[RawHit]:
        """Return hits `offset` to `offset + limit` of a search by meaning, in order. Raises QueryError."""
        meaning = self._meaning()
        return [] if meaning is None else meaning.search(asked, limit, offset)

    @retry_after_reopen
    def count_by_meaning(self, asked: SemanticRequest, facets: Sequence[str]) -> FacetCounts:
        """Return how many spans the result has, and facets of these. Raises QueryError."""
        meaning = self._meaning()
        assert meaning is not None, "who has something to ask has an index"
        return meaning.count(asked, facets)

    def _meaning(self) -> SemanticSearch | None:
        opened = self._opened()
        if opened is None or self._manifest.vectors is None:
            return None
        if self._by_meaning is None:  # not before: damage of vectors does not stop a search by words
            blocks = self._index.blocks(self._manifest, self._manifest.vectors)
            vectors = Vectors(self._manifest.vectors, blocks, rows_gone(opened))
            self._by_meaning = SemanticSearch(opened, vectors, self._texts_of, self.analyzer)
        return self._by_meaning

    @retry_after_reopen
    def completions(self, typed: str, workspace: str | None = None) -> list[str]:
        """Return queries that go on where one that is being typed ends (see `complete.completions`)."""
        opened = self._opened()
        searcher = self._grammar.searcher() if opened is None else opened.searcher
        return completions(
            searcher, typed, None if workspace is None else OneWorkspace(self._grammar, workspace)
        )


def _traces_of(searcher: tantivy.Searcher, query: tantivy.Query) -> set[str]:
    """Return the traces of all that a query finds."""
    return _traces(searcher, searcher.search(query, searcher.num_docs, count=False).hits)


def _traces(searcher: tantivy.Searcher, hits: Sequence[AnyHit]) -> set[str]:
    return {raw_hit(searcher, 0.0, address).trace_id for _, address in hits}


@dataclass(frozen=True, slots=True)
class RequestSearcher:
    """A search at one manifest: its hits from an offset on, and how many there are with facets."""

    hits: Callable[[int, int], list[RawHit]]
    count: Callable[[Sequence[str]], FacetCounts]
    parts: PartsAsked
    """Those that are asked for hits."""


def make_request(
    searcher: Searcher,
    query: str,
    service: str | None,
    sort: Sort,
    now_ns: int,
    by: Ranking,
    workspace: str | None = None,
) -> RequestSearcher:
    """Return what a searcher answers to a query, in one workspace or in all.

    Raises QueryError where the index has no vectors that it needs.
    """
    by.check(sort)
    if by.mode == "text":
        return RequestSearcher(
            lambda limit, offset: searcher.search(query, limit, offset, service, sort, now_ns, workspace),
            lambda facets: searcher.count(query, service, facets, now_ns, workspace),
            searcher.parts_asked(query, service, sort, now_ns, workspace),
        )
    by_meaning = searcher.by_meaning(query, by.mode, by.vector, service, now_ns, workspace)
    if by_meaning is None:
        return RequestSearcher(lambda _limit, _offset: [], _nothing, PartsAsked(0, 0))
    _, asked = by_meaning
    hits, count = partial(searcher.hits_by_meaning, asked), partial(searcher.count_by_meaning, asked)
    return RequestSearcher(hits, count, searcher.all_parts)


def check_request(query: str, sort: Sort, facets: Sequence[str], now_ns: int, by: Ranking) -> None:
    """Refuse what is refused where there are spans, in a lake that has none yet. Raises QueryError."""
    by.check(sort)
    check(facets)
    if by.mode == "text":
        parse(grammar_of(ENGLISH), query, now_ns)


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a search goes by: words, meaning or both; and what it compares with instead of the words of its query."""

    mode: Mode = "text"
    vector: Vector | None = None

    @classmethod
    def of(cls, mode: Mode | None, vector: Sequence[float] | None) -> Ranking:
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


BY_WORDS: Final = Ranking()


def _nothing(facets: Sequence[str]) -> FacetCounts:
    check(facets)
    return FacetCounts(0, {name: RawFacet((), 0) for name in facets})
