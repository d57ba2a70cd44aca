"""SQLite, PostgreSQL and DuckDB, as benchmarks/search.py measures them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import psutil
import psycopg
import pyarrow as pa

from benchmarks.search_corpus import FLAT
from benchmarks.search_measure import HITS, Answer, Query, read, slices
from tests.storage.servers.postgres import PostgresServer

TEXT_MAX_CHARS: Final = 250_000
"""PostgreSQL's own vectors end at a MiB."""

Row = tuple[int, int, str | None, str, str]


def _rows(table: pa.Table) -> Iterator[Row]:
    """Yield number, start, service, name and text."""
    for batch in table.to_batches(max_chunksize=1_000):
        columns = [batch.column(name).to_pylist() for name in ("number", "start", "service", "name", "texts")]
        for number, start, service, names, texts in zip(*columns, strict=True):
            yield number, start, service, "\n".join(names), "\n".join(texts).replace("\0", " ")


class Sqlite:
    """FTS5 without content, with Porter's stems, beside a table of the columns."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Read the corpus; the index is to lie in the folder."""
        self._rows = read(corpus / FLAT)
        self._path = folder / "fts.db"
        self._added = 10**9
        self._db = self._connect()
        self._adder: sqlite3.Connection | None = None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=60)
        db.execute("pragma journal_mode = wal")
        return db

    def build(self, transactions: int) -> float:
        """Insert with a commit for each transaction."""
        begun = time.process_time()
        self._db.execute(
            "create virtual table words using fts5(name, text, content='', tokenize='porter unicode61')"
        )
        self._db.execute("create table spans (number integer primary key, start integer, service text)")
        self._db.execute("create index by_service on spans (service)")
        for first, last in slices(self._rows.num_rows, transactions):
            self._insert(self._db, list(_rows(self._rows.slice(first, last - first))))
        return time.process_time() - begun

    @staticmethod
    def _insert(db: sqlite3.Connection, rows: list[Row]) -> None:
        db.execute("begin immediate")
        db.executemany("insert into spans values (?, ?, ?)", [row[:3] for row in rows])
        db.executemany(
            "insert into words (rowid, name, text) values (?, ?, ?)", [(row[0], *row[3:]) for row in rows]
        )
        db.execute("commit")

    def size_bytes(self) -> int:
        """Return how large the database is."""
        self._db.execute("pragma wal_checkpoint(truncate)")
        return self._path.stat().st_size

    def open(self) -> None:
        """Connect anew."""
        self._db = self._connect()

    def add(self, rows: int) -> None:
        """Insert some documents from a connection of its own."""
        self._adder = self._adder or self._connect()
        some = list(_rows(self._rows.slice(0, rows)))
        self._insert(self._adder, [(self._added + at, *row[1:]) for at, row in enumerate(some)])
        self._added += len(some)

    def search(self, query: Query) -> Answer | None:
        """Ask in FTS5's language; it has no fuzzy words."""
        if query.kind == "fuzzy":
            return None
        words = (query.words * 3)[:3]
        text = {
            "phrase": f'"{" ".join(query.words)}"',
            "boolean": '"{}" AND ("{}" OR "{}")'.format(*words),
            "prefix": f'"{words[0]}"*',
        }.get(query.kind, f'"{words[0]}"')
        joined = "from words join spans on number = words.rowid where words match ?"
        best = "bm25(words, 1.5, 1.0)"
        match query.kind:
            case "sorted":
                sql, given = f"select number, 0 {joined} order by start desc limit {HITS}", [text]
            case "filtered":
                sql = f"select number, -{best} {joined} and service = ? order by {best} limit {HITS}"
                given = [text, query.service or ""]
            case _:
                sql = f"select rowid, -{best} from words where words match ? order by {best} limit {HITS}"
                given = [text]
        facets: dict[str, int] = {}
        if query.kind == "faceted":
            facets = dict(
                self._db.execute(f"select service, count(*) {joined} group by 1", [text]).fetchall()
            )
        return Answer(self._db.execute(sql, given).fetchall(), facets)

    def close(self) -> None:
        """Nothing to stop."""


class Postgres:
    """A column of words with a GIN index, in a server of the wheel that the tests use."""

    is_server = True
    """Its processor time is not that of the process that asks."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Read the corpus, and start a server; its data lies in a directory of its own."""
        del folder
        self._rows = read(corpus / FLAT)
        self._server = PostgresServer()
        self._db = self._connect()
        self._adder: psycopg.Connection[Any] | None = None

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._server.url(), autocommit=True)

    def _cpu_s(self) -> float:
        server = psutil.Process(self._server.process.pid)
        times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
        return time.process_time() + sum(one.user + one.system for one in times)

    def build(self, transactions: int) -> float:
        """Insert with a commit for each transaction; the index is made last where there is one."""
        begun = self._cpu_s()
        self._db.execute("create table spans (number bigint, start bigint, service text, words tsvector)")
        if transactions > 1:
            self._db.execute("create index on spans using gin (words)")
        for first, last in slices(self._rows.num_rows, transactions):
            self._insert(self._db, list(_rows(self._rows.slice(first, last - first))))
        if transactions == 1:
            self._db.execute("create index on spans using gin (words)")
        self._db.execute("create index on spans (service)")
        self._db.execute("vacuum analyze spans")
        return self._cpu_s() - begun

    @staticmethod
    def _insert(db: psycopg.Connection[Any], rows: list[Row]) -> None:
        vector = "setweight(to_tsvector('english', %s), 'A') || to_tsvector('english', %s)"
        with db.transaction(), db.cursor() as cursor:
            cursor.executemany(
                f"insert into spans values (%s, %s, %s, {vector})",
                [(*row[:4], row[4][:TEXT_MAX_CHARS]) for row in rows],
            )

    def size_bytes(self) -> int:
        """Return how large the indexes are, without the table."""
        [size] = self._db.execute("select pg_indexes_size('spans')").fetchone() or (0,)
        return int(size)

    def open(self) -> None:
        """Connect anew."""
        self._db = self._connect()

    def add(self, rows: int) -> None:
        """Insert some documents from a connection of its own."""
        self._adder = self._adder or self._connect()
        self._insert(self._adder, list(_rows(self._rows.slice(0, rows))))

    def search(self, query: Query) -> Answer | None:
        """Ask in its queries of words; it has no fuzzy ones."""
        if query.kind == "fuzzy":
            return None
        words = (query.words * 3)[:3]
        asked = {
            "phrase": f"phraseto_tsquery('english', '{' '.join(query.words)}')",
            "boolean": "to_tsquery('english', '{} & ({} | {})')".format(*words),
            "prefix": f"to_tsquery('english', '{words[0]}:*')",
        }.get(query.kind, f"to_tsquery('english', '{words[0]}')")
        found, given = f"from spans, {asked} as asked where words @@ asked", []
        if query.kind == "filtered":
            found, given = f"{found} and service = %s", [query.service]
        order = "start" if query.kind == "sorted" else "2"
        score = "0::real" if query.kind == "sorted" else "ts_rank(words, asked)"
        hits = self._db.execute(f"select number, {score} {found} order by {order} desc limit {HITS}", given)
        facets: dict[str, int] = {}
        if query.kind == "faceted":
            facets = dict(self._db.execute(f"select service, count(*) {found} group by 1").fetchall())
        return Answer(hits.fetchall(), facets)

    def close(self) -> None:
        """Stop the server."""
        self._server.close()


class DuckDb:
    """DuckDB's extension `fts`, where it can be had: it is not in the wheel, and comes from DuckDB's server."""

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Read the corpus, and load the extension."""
        self._rows = read(corpus / FLAT)
        self._folder = folder
        self._db = duckdb.connect(str(folder / "fts.duckdb"))
        self._db.execute("install fts")
        self._db.execute("load fts")

    def build(self, transactions: int) -> float:
        """Insert with a commit for each transaction, then index: the extension has no other way."""
        begun = time.process_time()
        self._db.execute("create table spans (number bigint, start bigint, service text, words text)")
        for first, last in slices(self._rows.num_rows, transactions):
            rows = list(_rows(self._rows.slice(first, last - first)))
            self._db.executemany(
                "insert into spans values (?, ?, ?, ?)", [(*row[:3], row[3] + "\n" + row[4]) for row in rows]
            )
        self._db.execute("pragma create_fts_index('spans', 'number', 'words', stemmer = 'english')")
        return time.process_time() - begun

    def size_bytes(self) -> int:
        """Return how large the database is."""
        return sum(path.stat().st_size for path in self._folder.iterdir())

    def open(self) -> None:
        """Nothing to do."""

    def add(self, rows: int) -> None:
        """Its index would have to be made anew."""

    def search(self, query: Query) -> Answer | None:
        """Ask for words; it has nothing else."""
        if query.kind not in ("term", "filtered", "sorted", "faceted"):
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
        """Nothing to stop."""
