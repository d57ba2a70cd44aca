"""DuckDB's full text, as benchmarks/search.py measures it, in the environment that scripts/setup-search makes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.search_measure import HITS, Answer, Query, read


class DuckDb:
    """Its extension `fts`, whose index is made over a whole table, and made anew for whatever comes."""

    cpu_s = staticmethod(time.process_time)
    """It works with threads of its own."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Read the corpus; the database is to lie in the folder."""
        self._corpus, self._path = corpus, folder / "fts.duckdb"
        duckdb: Any = importlib.import_module("duckdb")
        self._db: Any = duckdb.connect(str(self._path))
        package = find_spec("duckdb_extension_fts")
        assert package is not None
        assert package.origin is not None
        [extension] = Path(package.origin).parent.rglob("fts.duckdb_extension")
        self._db.execute(f"load '{extension}'")

    def build(self, transactions: int) -> Iterator[int]:
        """Insert all at once, then index: transactions would make no difference to its index."""
        del transactions
        rows = read(self._corpus / "flat.arrow")
        names: list[Any] = rows["name"].to_pylist()
        texts: list[Any] = rows["texts"].to_pylist()
        words = pa.array(["\n".join([*name, *text]) for name, text in zip(names, texts, strict=True)])
        self._db.register("rows", rows.select(["number", "start", "service"]).append_column("words", words))
        self._db.execute("create table spans as select * from rows")
        self._db.execute(
            "pragma create_fts_index('spans', 'number', 'words', stemmer = 'english', stopwords = 'none')"
        )
        self._db.execute("checkpoint")
        yield 1

    def size_bytes(self) -> int:
        """Return how large the database is, texts included."""
        return self._path.stat().st_size

    def open(self) -> None:
        """Nothing to do."""

    def add(self, rows: int) -> None:
        """Its index would have to be made anew."""
        raise NotImplementedError

    def search(self, query: Query) -> Answer | None:
        """Ask for words, and for all of several; it has nothing else."""
        if query.kind in ("phrase", "boolean", "fuzzy", "prefix"):
            return None
        score = "fts_main_spans.match_bm25(number, ?)"
        where = "where score is not null" + (" and service = ?" if query.kind == "filtered" else "")
        given = [query.words[0], *([query.service] if query.kind == "filtered" else [])]
        order = "start" if query.kind == "sorted" else "score"
        found = f"from (select *, {score} as score from spans) {where}"
        hits = self._db.execute(f"select number, score {found} order by {order} desc limit {HITS}", given)
        answer = Answer(hits.fetchall())
        if query.kind == "faceted":
            counts = self._db.execute(f"select service, count(*) {found} group by 1", given).fetchall()
            answer = Answer(answer.hits, dict(counts))
        return answer

    def close(self) -> None:
        """Let go of the database."""
        self._db.close()
