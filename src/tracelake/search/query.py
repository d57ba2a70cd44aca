"""Search over exactly the parts of one manifest, scored as if they were one index (F15)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import tantivy

from tracelake._errors import DamageError, UsageError
from tracelake.limits import SEARCH_RANKED_STEP_HITS
from tracelake.search import fields
from tracelake.search.complete import completions
from tracelake.search.model import BUILD_ANEW, Manifest
from tracelake.search.opening import OpenIndex
from tracelake.search.syntax import of_service, parse, refusal
from tracelake.storage.ports import ObjectStore


@dataclass(frozen=True, slots=True)
class RawHit:
    """One row of table `spans` that matches: ids in lower-case hex, and the transaction of the row."""

    trace_id: str
    span_id: str
    transaction: int
    score: float


class Searcher:
    """An index as of one manifest. It never changes, and any number of threads may use it."""

    def __init__(self, objects: ObjectStore, manifest: Manifest, index: str | Path | OpenIndex) -> None:
        """Open the parts of the manifest; `index` is one that is open already, or a directory for its cache.

        Raises:
            DamageError: A part is missing or altered; names it (F14).
            LimitError: There are more parts than this machine can map; nothing is wrong with them.
            UsageError: The index was built with other settings than this version has.
        """
        self._searcher: tantivy.Searcher | None = None
        # Without parts there is still an index, in memory, so that queries are checked all the same.
        self._index = tantivy.Index(fields.schema())
        if not manifest.part_count:
            fields.register_tokenizers(self._index)
            return
        if manifest.fingerprint != fields.FINGERPRINT:
            raise UsageError(
                f"index {manifest.index} build {manifest.build} has the settings {manifest.fingerprint}, "
                f"and this version has {fields.FINGERPRINT}; use the version that built it, "
                f"or {BUILD_ANEW}"
            )
        opened = index if isinstance(index, OpenIndex) else OpenIndex(objects, Path(index))
        self._index, self._searcher = opened.searcher(manifest)
        if self._searcher.num_docs != manifest.documents:
            raise DamageError(
                f"index {manifest.index} build {manifest.build} has {self._searcher.num_docs} documents, "
                f"and its manifest says {manifest.documents}; run `tracelake verify`"
            )

    def search(
        self, query: str, limit: int, offset: int = 0, service: str | None = None, now_ns: int | None = None
    ) -> list[RawHit]:
        """Return hits `offset` to `offset + limit`, best first, equal scores mostly in order of the parts.

        With `service`, only of services of that name, in upper or lower case. `now_ns` is when `last 2h` ends, by
        default now.

        Raises:
            QueryError: The query does not parse; says what is wrong with it, and gives an example.
        """
        assert limit >= 0, limit
        assert offset >= 0, offset
        parsed = parse(self._index, query, time.time_ns() if now_ns is None else now_ns)
        if parsed is None or self._searcher is None or limit == 0 or offset >= self._searcher.num_docs:
            return []
        if service is not None:
            parsed = of_service(self._index, parsed, service)
        # Which of equal scores tantivy keeps at the end of its list depends on how long the list is. So pages
        # are cut from lists of few lengths, or a hit could stand on two of them and another on none.
        ranked = min(
            -(-(offset + limit) // SEARCH_RANKED_STEP_HITS) * SEARCH_RANKED_STEP_HITS, self._searcher.num_docs
        )
        try:
            found = self._searcher.search(parsed, ranked, count=False)
        except ValueError as error:
            raise refusal(query, error) from error
        page = found.hits[offset : offset + limit]
        return [self._hit(self._searcher, score, address) for score, address in page]

    def completions(self, typed: str) -> list[str]:
        """Return queries that go on where one that is being typed ends (see `complete.completions`)."""
        return completions(self._searcher or self._index.searcher(), typed)

    @staticmethod
    def _hit(searcher: tantivy.Searcher, score: float, address: tantivy.DocAddress) -> RawHit:
        stored: bytes = searcher.doc(address)["id"][0]
        trace_id, span_id, transaction = fields.decode_id(stored)
        return RawHit(trace_id, span_id, transaction, score)
