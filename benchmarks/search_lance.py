"""Lance's full text, as benchmarks/search.py measures it, in the environment that scripts/setup-search makes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.search_measure import HITS, Answer, Query, read, slices


class Lance:
    """A dataset with an inverted index over name and text together."""

    cpu_s = staticmethod(time.process_time)
    """It works with threads of its own."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Take the corpus; the dataset is to lie in the folder, or lies there."""
        self._lance: Any = importlib.import_module("lance")
        self._queries: Any = importlib.import_module("lance.query")
        self._corpus = corpus
        self._uri = str(folder / "lance")
        self._data: Any = None

    def _rows(self, first: int = 0, length: int | None = None) -> pa.Table:
        rows = read(self._corpus / "flat.arrow").slice(first, length)
        names: list[Any] = rows["name"].to_pylist()
        texts: list[Any] = rows["texts"].to_pylist()
        joined = ["\n".join([*name, *text]) for name, text in zip(names, texts, strict=True)]
        return rows.select(["number", "start", "service"]).append_column("text", pa.array(joined))

    def build(self, transactions: int) -> Iterator[int]:
        """Append in so many transactions, then index."""
        rows = self._rows()
        for number, (first, last) in enumerate(slices(rows.num_rows, transactions), 1):
            self._lance.write_dataset(rows.slice(first, last - first), self._uri, mode="append")
            yield number
        self.open()
        self._data.create_scalar_index(
            "text",
            "INVERTED",
            with_position=True,
            base_tokenizer="simple",
            language="English",
            stem=True,
            remove_stop_words=False,
            ascii_folding=False,
            max_token_length=100,
        )
        self._data.create_scalar_index("service", "BITMAP")

    def size_bytes(self) -> int:
        """Return how large the indexes are, without the data."""
        indexes = Path(self._uri) / "_indices"
        return sum(path.stat().st_size for path in indexes.rglob("*") if path.is_file())

    def open(self) -> None:
        """Open the newest version."""
        self._data = self._lance.dataset(self._uri)

    def add(self, rows: int) -> None:
        """Append some documents, which searches look through without the index."""
        self._lance.write_dataset(self._rows(0, rows), self._uri, mode="append")
        self.open()

    def close(self) -> None:
        """Nothing to stop."""

    def search(self, query: Query) -> Answer | None:
        """Ask in Lance's queries; it has no facets, and no prefixes without n-grams."""
        if query.kind in ("prefix", "faceted"):
            return None
        asked = self._queries

        def match(word: str) -> Any:
            return asked.MatchQuery(word, "text", fuzziness=1 if query.kind == "fuzzy" else 0)

        wanted = match(query.words[0])
        if query.kind == "phrase":
            wanted = asked.PhraseQuery(" ".join(query.words), "text")
        elif query.kind == "boolean":
            others = asked.BooleanQuery([(asked.Occur.SHOULD, match(word)) for word in query.words[1:3]])
            wanted = asked.BooleanQuery([(asked.Occur.MUST, wanted), (asked.Occur.MUST, others)])
        more: dict[str, Any] = {"limit": HITS}
        if query.kind == "filtered":
            more |= {"filter": f"service = '{query.service}'", "prefilter": True}
        if query.kind == "sorted":
            ordering = importlib.import_module("lance.dataset").ColumnOrdering
            more |= {"order_by": [ordering("start", ascending=False)]}
        found = self._data.scanner(columns=["number", "_score"], full_text_query=wanted, **more).to_table()
        return Answer(list(zip(found["number"].to_pylist(), found["_score"].to_pylist(), strict=True)))
