"""Search over exactly the parts of one manifest, with scores as if they were one index (F15).

`make_request` combines the hits in pages, the total and the facets of a search of any mode.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import tantivy

from tracelake._errors import DamageError, QueryError, UsageError
from tracelake.limits import SEARCH_HITS_DEFAULT
from tracelake.search import query_compiler
from tracelake.search.analyzers import ANALYZERS, ENGLISH, Analyzer, hint_of, of_fingerprint
from tracelake.search.build import UnpublishedPart
from tracelake.search.documents import SEARCH_RANKED_BEYOND_HITS, AnyHit, RawHit, ranked_as_far_as, raw_hit
from tracelake.search.facets import FacetCounts, OneWorkspace, RawFacet, check, completions, count, only
from tracelake.search.inheritance import Assessments, Inheritance
from tracelake.search.lookups import Lookups, RowsWhere
from tracelake.search.model import BUILD_ANEW, Manifest, RowSelection
from tracelake.search.open_index import OpenedIndex, OpenIndex
from tracelake.search.part_cache import classify_error, retry_after_reopen
from tracelake.search.prefilter import MayMatch, latest_start, may_match, newest_after, only_after, only_until
from tracelake.search.results import PartsAsked
from tracelake.search.semantic_search import (
    NO_VECTORS,
    Mode,
    SemanticRequest,
    SemanticSearch,
    Vector,
    Vectors,
    omitted_rows,
)
from tracelake.search.similar import Alike, TextsOf, alike_in
from tracelake.storage.ports import ObjectStore

_LIKE_SPANS_KEPT: Final = 8
"""Spans whose texts a searcher caches for more-like-this."""
_CONDITIONS_KEPT: Final = 32
"""Conditions on columns whose rows a searcher caches."""
_WORKSPACES_KEPT: Final = 8
"""Workspaces whose queries for inherited values a searcher caches."""
INDEX_PRUNED_KEPT: Final = 8
"""Subsets of parts that a searcher keeps open, besides the full set."""

Sort: TypeAlias = Literal["score", "newest", "oldest"]
"""Sort order: by score, or by the start time of spans."""


class _Plan(NamedTuple):
    """A compiled query and the parts that it reads. A NamedTuple, because each search creates one and that is fast."""

    query: tantivy.Query | None
    """None if the query has no word; it then finds nothing."""
    searcher: tantivy.Searcher | None
    """None if no part can have a hit."""
    parts: PartsAsked
    is_graded: bool
    """Whether scores distinguish hits."""


class Searcher:
    """Search over the index as of one manifest. It is immutable and safe to share between threads."""

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
        rows_where: RowsWhere | None = None,
        assessments: Assessments | None = None,
    ) -> None:
        """Open the parts of the manifest; `index` is an open index, or a directory for its cache.

        With `rows`, documents of other rows are excluded from everything except scores. `texts_of` returns the texts
        of spans for `like:` clauses. Unless `at_once`, parts are opened when a search needs them, and errors are
        raised then. `unpublished` parts have the same analyzer and are searched together with those of the manifest.
        `rows_where` and `assessments` answer conditions on columns and on assessments.

        Raises:
            DamageError: A part is missing or altered; the message names it (F14).
            LimitError: There are more parts than this machine can map; the parts are intact.
            UsageError: The index was built with settings that this version does not have.
        """
        self.vectors = None if manifest.vectors is None else str(manifest.vectors)
        """Description of the vector settings for users; None if the index has no vectors."""
        # Cached because a search and its count read the texts of the same span.
        self._texts_of = None if texts_of is None else lru_cache(_LIKE_SPANS_KEPT)(texts_of)
        self._rows_where = None if rows_where is None else lru_cache(_CONDITIONS_KEPT)(rows_where)
        self._assessments = assessments
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
        """Analyzer of the index, also used for queries."""
        self._grammar = query_compiler.grammar_of(self.analyzer)
        self._index = index if isinstance(index, OpenIndex) else OpenIndex(objects, Path(index))
        self._renewals = self._index.renewals
        self._parts = self._index.parts(manifest)
        self._all = tuple(range(len(self._parts)))
        self.all_parts = PartsAsked(len(self._parts), 0)
        """Number of parts that a search reads without pruning."""
        self._whole: OpenedIndex | None = None
        self._by_meaning: SemanticSearch | None = None
        self._some: dict[tuple[int, ...], OpenedIndex] = {}
        """Open subsets of the parts, by part numbers."""
        self._inheritances: dict[str | None, Inheritance] = {}
        """Inheritance by workspace."""
        if at_once:
            self.open()

    @retry_after_reopen
    def open(self) -> None:
        """Open all parts."""
        self._opened()

    def renew(self) -> bool:
        """Reopen the index from intact cached files; return False if all files were intact."""
        before, self._renewals = self._renewals, self._index.renew(self.analyzer, self._parts)
        if self._renewals == before:
            return False
        self._whole = self._by_meaning = None
        self._some = {}
        self._inheritances = {}
        return True

    @property
    def described(self) -> str:
        """Description of the index for messages."""
        return f"index {self._manifest.index} build {self._manifest.build}"

    def _opened(self) -> OpenedIndex | None:
        """Open and return all parts; None if there are no parts."""
        if self._whole is None and (self._parts or self._unpublished):
            self._whole = self._open(tuple(range(len(self._parts))), self._rows)
        return self._whole

    def _opened_of(self, numbers: tuple[int, ...]) -> OpenedIndex | None:
        """Open and return these parts; None if there are no parts."""
        if len(numbers) == len(self._all):
            return self._opened()
        opened = self._some.get(numbers)
        if opened is None and (numbers or self._unpublished):
            opened = self._open(numbers)
            for oldest in list(self._some)[: max(0, len(self._some) + 1 - INDEX_PRUNED_KEPT)]:
                self._some.pop(oldest, None)
            self._some[numbers] = opened
        return opened

    def _open(self, numbers: tuple[int, ...], rows: RowSelection | None = None) -> OpenedIndex:
        manifest, parts = self._manifest, tuple(self._parts[number] for number in numbers)
        opened = self._index.searcher(manifest, rows, self.analyzer, parts, self._unpublished)
        documents = sum(part.documents for part in parts) + self._unpublished_documents
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
        """Return hits `offset` to `offset + limit` in order. Equal hits are mostly in the order of their parts.

        `service` and `workspace` restrict the hits to spans with that name, in any case. `now_ns` is the time at which
        ranges such as `last 2h` end, by default now.

        Raises:
            QueryError: The query does not parse. The message names the problem and gives an example.
        """
        assert limit >= 0, limit
        assert offset >= 0, offset
        plan = self._plan(query, service, now_ns, workspace, scored=sort == "score")
        compiled_query, searcher = plan.query, plan.searcher
        documents = 0 if searcher is None else searcher.num_docs
        if compiled_query is None or searcher is None or limit == 0 or offset >= documents:
            return []
        by_time = None if sort == "score" else "start"
        order = tantivy.Order.Asc if sort == "oldest" else tantivy.Order.Desc

        def ranked_of(compiled_query: tantivy.Query) -> list[AnyHit]:
            return ranked_as_far_as(
                offset + limit,
                lambda length: (
                    searcher.search(
                        compiled_query,
                        min(length, documents),
                        count=False,
                        order_by_field=by_time,
                        order=order,
                    ).hits
                ),
                beyond=1 if by_time else SEARCH_RANKED_BEYOND_HITS if plan.is_graded else 0,
            )

        try:
            is_newest = sort == "newest"
            ranked = (
                self._newest(compiled_query, offset + limit, now_ns, ranked_of)
                if is_newest
                else ranked_of(compiled_query)
            )
        except ValueError as error:
            raise classify_error(query, error) from error
        page = ranked[offset : offset + limit]
        return [raw_hit(searcher, 0.0 if by_time else score, address) for score, address in page]

    def _newest(
        self,
        compiled_query: tantivy.Query,
        wanted: int,
        now_ns: int | None,
        ranked_of: Callable[[tantivy.Query], list[AnyHit]],
    ) -> list[AnyHit]:
        """Return the newest hits. Hits that start far in the future come last; otherwise a wrong clock would put them
        first forever."""
        schema, latest_ns = self._grammar.schema, latest_start(time.time_ns() if now_ns is None else now_ns)
        has_later = self._may_start_after(latest_ns)
        usual = only_until(schema, compiled_query, latest_ns) if has_later else compiled_query
        ranked: list[AnyHit] = []
        if self._newest_after is not None:
            ranked = ranked_of(only_after(schema, usual, self._newest_after))
        if len(ranked) < wanted:  # a full list needs no other hits, because these are later than all others
            ranked = ranked_of(usual)
        if len(ranked) < wanted and has_later:
            ranked = [*ranked, *ranked_of(only_after(schema, compiled_query, latest_ns))]
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
        """Return the number of matching documents and their facets; `service` and `workspace` are exact names.

        Raises:
            QueryError: The query does not parse, or a facet is unknown.
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
    def parts_searched(
        self,
        query: str,
        service: str | None = None,
        sort: Sort = "score",
        now_ns: int | None = None,
        workspace: str | None = None,
    ) -> PartsAsked:
        """Return how many parts `search` reads and skips for this query. Raises QueryError if the query does not
        parse."""
        return self._plan(query, service, now_ns, workspace, scored=sort == "score").parts

    def _plan(
        self, query: str, service: str | None, now_ns: int | None, workspace: str | None, *, scored: bool
    ) -> _Plan:
        """Choose the parts to read. Parts without possible hits are skipped if only hits determine the result.

        Scores count the words of all parts (F15), and so do `like:` clauses.
        """
        now_ns = time.time_ns() if now_ns is None else now_ns
        try:
            like, looks_up = query_compiler.asks_for_likeness(query), query_compiler.asks_for_lookups(query)
            if like or looks_up:
                prepared_query = query_compiler.prepared_in_index(
                    query,
                    service,
                    self.analyzer,
                    now_ns,
                    workspace,
                    lookups=self._lookups(workspace, like=like),
                )
            else:
                prepared_query = query_compiler.prepared(query, service, self.analyzer, now_ns, workspace)
        except ValueError as error:
            raise classify_error(query, error) from error
        if (
            like
            or (scored and prepared_query.is_ranked)
            or (may := may_match(prepared_query.node, now_ns)) is None
        ):
            return self._plan_of(prepared_query, self._opened(), self.all_parts)
        numbers = self._may_match(may) if self._is_prunable else self._all
        parts = PartsAsked(len(numbers), len(self._parts) - len(numbers))
        return self._plan_of(prepared_query, self._opened_of(numbers), parts)

    @staticmethod
    def _plan_of(
        prepared_query: query_compiler.Prepared, opened: OpenedIndex | None, parts: PartsAsked
    ) -> _Plan:
        return _Plan(
            prepared_query.query, None if opened is None else opened.searcher, parts, prepared_query.is_graded
        )

    def _alike(self, workspace: str | None) -> Alike:
        """Return the function that makes queries for `like:` clauses. It needs all parts to determine rare words."""
        opened = self._opened()
        counted = self._grammar.searcher() if opened is None else opened.searcher
        return alike_in(self._grammar.schema, counted, self._texts_of, self.analyzer, workspace)

    def _lookups(self, workspace: str | None, *, like: bool) -> Lookups:
        """Return the functions for clauses that depend on more than the query. They need all parts, because a trace may
        be in several."""
        alike, opened = self._alike(workspace) if like else None, self._opened()
        if opened is None:
            return Lookups(alike)
        inheritance = self._inheritances.get(workspace)
        if inheritance is None:
            for oldest in list(self._inheritances)[: max(0, len(self._inheritances) + 1 - _WORKSPACES_KEPT)]:
                self._inheritances.pop(oldest, None)
            inheritance = Inheritance(self._grammar, opened.searcher, workspace, self._assessments)
            self._inheritances[workspace] = inheritance
        return Lookups(alike, inheritance.query, self._rows_where, inheritance.assessed, inheritance.spans)

    def _may_match(self, may: MayMatch) -> tuple[int, ...]:
        """Return the numbers of the parts that may have hits."""
        return tuple(
            number for number, part in enumerate(self._parts) if part.contents is None or may(part.contents)
        )

    @cached_property
    def _is_prunable(self) -> bool:
        """Whether every document is of a live row. Otherwise, all parts are needed to determine the documents to
        omit."""
        rows, manifest = self._rows, self._manifest
        documents = manifest.documents + self._unpublished_documents
        return rows is None or (rows.as_of == manifest.upper - 1 and rows.count == documents)

    @cached_property
    def _newest_after(self) -> int | None:
        """The time after which the newest spans start; None if the contents of parts give none."""
        return newest_after(self._parts)

    @property
    def _unpublished_documents(self) -> int:
        return sum(part.header.documents for part in self._unpublished)

    @retry_after_reopen
    def traces_among(self, trace_ids: Collection[str]) -> set[str]:
        """Return those of the given traces that have documents of live rows in this index."""
        opened = self._opened()
        return set() if opened is None else _traces_of(opened.searcher, self._of_traces(trace_ids))

    @retry_after_reopen
    def matching_traces(
        self,
        trace_ids: Collection[str],
        query: str,
        service: str | None,
        now_ns: int,
        workspace: str | None = None,
    ) -> set[str]:
        """Return those of the given traces that have a matching document in this index. Raises QueryError if the query
        does not parse."""
        plan = self._plan(query, service, now_ns, workspace, scored=False)
        if plan.query is None or plan.searcher is None:
            return set()
        both = [(tantivy.Occur.Must, each) for each in (self._of_traces(trace_ids), plan.query)]
        try:
            # In each part, looking up a trace takes as long as reading a hit.
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
        """Return the semantic search and its request; None for an index without rows.

        Raises QueryError if the index has no vectors.
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
    def hits_by_meaning(self, request: SemanticRequest, limit: int, offset: int) -> list[RawHit]:
        """Return hits `offset` to `offset + limit` of a semantic search, in order. Raises QueryError if the request
        cannot be compared with vectors."""
        meaning = self._meaning()
        return [] if meaning is None else meaning.search(request, limit, offset)

    @retry_after_reopen
    def count_by_meaning(self, request: SemanticRequest, facets: Sequence[str]) -> FacetCounts:
        """Return the number of spans in the result and their facets. Raises QueryError if the request cannot be
        compared with vectors."""
        meaning = self._meaning()
        assert meaning is not None, "who has something to ask has an index"
        return meaning.count(request, facets)

    def _meaning(self) -> SemanticSearch | None:
        opened = self._opened()
        if opened is None or self._manifest.vectors is None:
            return None
        if self._by_meaning is None:  # opened on demand, so that damaged vectors do not prevent text search
            blocks = self._index.blocks(self._manifest, self._manifest.vectors)
            vectors = Vectors(self._manifest.vectors, blocks, omitted_rows(opened))
            self._by_meaning = SemanticSearch(
                opened, vectors, self._texts_of, self.analyzer, self._rows_where, self._assessments
            )
        return self._by_meaning

    @retry_after_reopen
    def completions(self, typed: str, workspace: str | None = None) -> list[str]:
        """Return completions of a query that a user types (see `facets.completions`)."""
        opened = self._opened()
        searcher = self._grammar.searcher() if opened is None else opened.searcher
        return completions(
            searcher, typed, None if workspace is None else OneWorkspace(self._grammar, workspace)
        )


def _traces_of(searcher: tantivy.Searcher, query: tantivy.Query) -> set[str]:
    """Return the traces of all matches of a query."""
    return _traces(searcher, searcher.search(query, searcher.num_docs, count=False).hits)


def _traces(searcher: tantivy.Searcher, hits: Sequence[AnyHit]) -> set[str]:
    return {raw_hit(searcher, 0.0, address).trace_id for _, address in hits}


@dataclass(frozen=True, slots=True)
class RequestSearcher:
    """A prepared search at one manifest. It returns hits from an offset on, and the total with facets."""

    hits: Callable[[int, int], list[RawHit]]
    count: Callable[[Sequence[str]], FacetCounts]
    parts: PartsAsked
    """The parts that are read for hits."""


def make_request(searcher: Searcher, request: SearchRequest, now_ns: int) -> RequestSearcher:
    """Prepare a search; `now_ns` is the end of `last 2h`.

    Raises QueryError if the search needs vectors that the index does not have.
    """
    query, service, sort, workspace = request.query, request.service, request.sort, request.workspace
    by = request.ranking
    by.check(sort)
    if by.mode == "text":
        return RequestSearcher(
            lambda limit, offset: searcher.search(query, limit, offset, service, sort, now_ns, workspace),
            lambda facets: searcher.count(query, service, facets, now_ns, workspace),
            searcher.parts_searched(query, service, sort, now_ns, workspace),
        )
    by_meaning = searcher.by_meaning(query, by.mode, by.vector, service, now_ns, workspace)
    if by_meaning is None:
        return RequestSearcher(lambda _limit, _offset: [], _nothing, PartsAsked(0, 0))
    _, semantic = by_meaning
    hits, count = partial(searcher.hits_by_meaning, semantic), partial(searcher.count_by_meaning, semantic)
    return RequestSearcher(hits, count, searcher.all_parts)


def check_request(request: SearchRequest, now_ns: int) -> None:
    """Check a request to a lake without spans, with the same errors as in other lakes. Raises QueryError as a search
    would."""
    request.ranking.check(request.sort)
    check(request.facets)
    if request.ranking.mode == "text":
        query_compiler.parse(query_compiler.grammar_of(ENGLISH), request.query, now_ns)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ranking of a search: by words, meaning or both, with an optional vector to compare with instead of the words."""

    mode: Mode = "text"
    vector: Vector | None = None

    @classmethod
    def of(cls, mode: Mode | None, vector: Sequence[float] | None) -> Ranking:
        """Return the ranking that a user requests. The default is `text`, or `semantic` if a vector is given. Raises
        QueryError if the mode is unknown, or the vector does not fit the mode or has a value that is no number."""
        if mode not in (None, *get_args(Mode)):
            raise QueryError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}.")
        if mode == "text" and vector is not None:
            raise QueryError(
                "a vector needs a search by meaning; set mode to semantic or hybrid, or leave it out."
            )
        if vector is None:
            return cls(mode or "text")
        try:
            return cls(mode or "semantic", tuple(float(number) for number in vector))
        except (TypeError, ValueError, OverflowError) as error:
            raise QueryError("the vector contains a non-numeric value; give a list of numbers.") from error

    @property
    def token_key(self) -> tuple[str, ...]:
        """Key of the ranking for page tokens; empty for a text search."""
        if self.mode == "text":
            return ()
        return self.mode, "" if self.vector is None else hashlib.sha256(
            repr(self.vector).encode()
        ).hexdigest()

    def check(self, sort: Sort) -> None:
        """Raise QueryError if the mode does not support a sort order."""
        if self.mode != "text" and sort != "score":
            raise QueryError(
                f"a search by meaning is ordered by similarity, not by {sort!r}; leave the order out, or "
                "search by words, with mode text."
            )


@dataclass(frozen=True)
class SearchRequest:
    """A search as the user asks for it: query, filters, order and page. `Lake.search` describes the fields."""

    query: str = "*"
    where: str | None = None
    limit: int = SEARCH_HITS_DEFAULT
    service: str | None = None
    mode: Mode | None = None
    vector: Sequence[float] | None = None
    sort: Sort = "score"
    facets: Sequence[str] = ()
    page: str | None = None
    now: datetime | None = None
    workspace: str | None = None
    """The only workspace that is searched; None for all."""

    @cached_property
    def ranking(self) -> Ranking:
        """Return the ranking by mode and vector. Raises QueryError if they do not fit together."""
        return Ranking.of(self.mode, self.vector)

    @cached_property
    def now_ns(self) -> int:
        """Return the time at which ranges such as `last 2h` end, by default the time of the first call. Raises
        QueryError if `now` has no time zone."""
        return time.time_ns() if self.now is None else _epoch_ns(self.now)

    @property
    def token_key(self) -> tuple[str | None, ...]:
        """Key of the search for page tokens: searches with the same key have the same pages."""
        workspace = () if self.workspace is None else ("workspace", self.workspace)
        return self.query, self.where, self.service, self.sort, *self.ranking.token_key, *workspace


def _epoch_ns(now: datetime) -> int:
    """Return a time as nanoseconds since 1970. Raises QueryError if it has no time zone or is not a time."""
    if not isinstance(now, datetime):
        raise QueryError(f"now is {now!r}, which is not a time; give a datetime, such as datetime.now(UTC).")
    if now.utcoffset() is None:
        raise QueryError(
            f"now is {now.isoformat()}, without a time zone; add one, such as tzinfo=datetime.UTC."
        )
    return (now - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1_000


def _nothing(facets: Sequence[str]) -> FacetCounts:
    check(facets)
    return FacetCounts(0, {name: RawFacet((), 0) for name in facets})


def hint(request: SearchRequest, analyzer: Analyzer) -> str | None:
    """Return a sentence on why a search may have found nothing although matching texts exist; None if the index is not
    the reason."""
    if request.ranking.mode != "text":
        return None
    return hint_of(analyzer, [text.text for text in query_compiler.texts_wanted(request.query)])
