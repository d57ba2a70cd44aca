"""Search over exactly the parts of one manifest, scored as if they were one index (F15)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, TypeAlias

import tantivy

from tracelake._errors import DamageError, QueryError, UsageError
from tracelake.limits import LIKE_SPANS_KEPT, SEARCH_RANKED_STEP_HITS
from tracelake.search import fields
from tracelake.search.analyzers import ANALYZERS, ENGLISH, Analyzer, of_fingerprint
from tracelake.search.by_meaning import Asked, ByMeaning, rows_gone
from tracelake.search.complete import completions
from tracelake.search.facets import Counted, RawFacet, check, count
from tracelake.search.likeness import TextsOf
from tracelake.search.live import Rows
from tracelake.search.model import BUILD_ANEW, Manifest
from tracelake.search.opening import Opened, OpenIndex
from tracelake.search.raw_hits import RawHit, raw_hit
from tracelake.search.semantic import NO_VECTORS, Mode, Vector, Vectors
from tracelake.search.syntax import of_service, parse, refusal
from tracelake.storage.ports import ObjectStore

Sort: TypeAlias = Literal["score", "newest", "oldest"]
"""Best first, or by the time at which spans start."""


class Searcher:
    """An index as of one manifest. It never changes, and any number of threads may use it."""

    def __init__(
        self,
        objects: ObjectStore,
        manifest: Manifest,
        index: str | Path | OpenIndex,
        rows: Rows | None = None,
        texts_of: TextsOf | None = None,
    ) -> None:
        """Open the parts of the manifest; `index` is one that is open already, or a directory for its cache.

        With `rows`, documents of other rows are left out of everything but scores. `texts_of` gives the texts of spans
        that others are to be like.

        Raises:
            DamageError: A part is missing or altered; names it (F14).
            LimitError: There are more parts than this machine can map; nothing is wrong with them.
            UsageError: The index was built with other settings than this version has.
        """
        self._searcher: tantivy.Searcher | None = None
        self._open_vectors: Callable[[], ByMeaning] | None = None
        self._by_meaning: ByMeaning | None = None
        self.has_vectors = manifest.vectors is not None
        # A search and its count ask for the same span.
        self._texts_of = None if texts_of is None else lru_cache(LIKE_SPANS_KEPT)(texts_of)
        # Without parts there is still an index, in memory, so that queries are checked all the same.
        self._index = tantivy.Index(fields.schema())
        analyzer = of_fingerprint(manifest.fingerprint)
        self.analyzer = analyzer or ENGLISH
        """What made words of the texts, and makes them of queries."""
        if not manifest.part_count:
            fields.register_tokenizers(self._index, self.analyzer.tokenizer())
            return
        if analyzer is None:
            raise UsageError(
                f"index {manifest.index} build {manifest.build} has the settings {manifest.fingerprint}, "
                f"and this version has {', '.join(each.fingerprint for each in ANALYZERS.values())}; use the version "
                f"that built it, or {BUILD_ANEW}"
            )
        open_one = index if isinstance(index, OpenIndex) else OpenIndex(objects, Path(index))
        opened = open_one.searcher(manifest, rows, analyzer)
        self._index, self._searcher = opened.index, opened.searcher
        if manifest.vectors is not None:
            self._open_vectors = partial(_by_meaning, open_one, manifest, opened, self._texts_of, analyzer)
        if opened.documents != manifest.documents:
            raise DamageError(
                f"index {manifest.index} build {manifest.build} has {opened.documents} documents, "
                f"and its manifest says {manifest.documents}; run `tracelake verify`"
            )

    def search(
        self,
        query: str,
        limit: int,
        offset: int = 0,
        service: str | None = None,
        sort: Sort = "score",
        now_ns: int | None = None,
    ) -> list[RawHit]:
        """Return hits `offset` to `offset + limit` in order, equal ones mostly in order of the parts.

        With `service`, only of services of that name, in upper or lower case. `now_ns` is when `last 2h` ends, by
        default now.

        Raises:
            QueryError: The query does not parse; says what is wrong with it, and gives an example.
        """
        assert limit >= 0, limit
        assert offset >= 0, offset
        parsed = self._parsed(query, service, now_ns)
        if parsed is None or self._searcher is None or limit == 0 or offset >= self._searcher.num_docs:
            return []
        # Which of equal scores tantivy keeps at the end of its list depends on how long the list is. So pages
        # are cut from lists of few lengths, or a hit could stand on two of them and another on none.
        ranked = min(
            -(-(offset + limit) // SEARCH_RANKED_STEP_HITS) * SEARCH_RANKED_STEP_HITS, self._searcher.num_docs
        )
        by_time = None if sort == "score" else "start"
        order = tantivy.Order.Asc if sort == "oldest" else tantivy.Order.Desc
        try:
            results = self._searcher.search(parsed, ranked, count=False, order_by_field=by_time, order=order)
        except ValueError as error:
            raise refusal(query, error) from error
        page = results.hits[offset : offset + limit]
        return [raw_hit(self._searcher, 0.0 if by_time else score, address) for score, address in page]

    def count(
        self, query: str, service: str | None = None, facets: Sequence[str] = (), now_ns: int | None = None
    ) -> Counted:
        """Return how many documents a query finds, and facets of these; `service` is one exact name.

        Raises:
            QueryError: The query does not parse, or there is no such facet.
        """
        check(facets)
        parsed = self._parsed(query, service, now_ns)
        if parsed is None or self._searcher is None:
            return Counted(0, {name: RawFacet((), 0) for name in facets})
        try:
            return count(self._searcher, parsed, facets, service)
        except ValueError as error:
            raise refusal(query, error) from error

    def by_meaning(
        self, query: str, mode: Mode, vector: Vector | None, service: str | None, now_ns: int
    ) -> tuple[ByMeaning, Asked] | None:
        """Return who searches by meaning, and what it is asked; None for an index without rows.

        Raises QueryError where the index has no vectors.
        """
        if not self.has_vectors:
            raise QueryError(NO_VECTORS)
        if self._open_vectors is None:
            return None
        if self._by_meaning is None:  # not before: damage of vectors does not stop a search by words
            self._by_meaning = self._open_vectors()
        return self._by_meaning, Asked(query, mode, vector, service, now_ns)

    def _parsed(self, query: str, service: str | None, now_ns: int | None) -> tantivy.Query | None:
        now_ns = time.time_ns() if now_ns is None else now_ns
        parsed = parse(self._index, query, now_ns, self._texts_of, self.analyzer)
        return parsed if parsed is None or service is None else of_service(self._index, parsed, service)

    def completions(self, typed: str) -> list[str]:
        """Return queries that go on where one that is being typed ends (see `complete.completions`)."""
        return completions(self._searcher or self._index.searcher(), typed)


def _by_meaning(
    index: OpenIndex, manifest: Manifest, opened: Opened, texts_of: TextsOf | None, analyzer: Analyzer
) -> ByMeaning:
    assert manifest.vectors is not None
    blocks = index.blocks(manifest, manifest.vectors)
    return ByMeaning(opened, Vectors(manifest.vectors, blocks, rows_gone(opened)), texts_of, analyzer)
