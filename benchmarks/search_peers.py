"""SQLite and PostgreSQL, as benchmarks/search.py measures them."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

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
        """Take the corpus; the database is to lie in the folder, or lies there."""
        self._corpus = corpus
        self._path = folder / "fts.db"
        self._added = 10**9
        self._db = self._connect()
        self._adder: sqlite3.Connection | None = None

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None, timeout=60)
        db.execute("pragma journal_mode = wal")
        return db

    def build(self, transactions: int) -> Iterator[int]:
        """Insert with a commit for each transaction."""
        rows = read(self._corpus / FLAT)
        self._db.execute(
            "create virtual table words using fts5(name, text, content='', tokenize='porter unicode61')"
        )
        self._db.execute("create table spans (number integer primary key, start integer, service text)")
        self._db.execute("create index by_service on spans (service)")
        for number, (first, last) in enumerate(slices(rows.num_rows, transactions), 1):
            self._insert(self._db, list(_rows(rows.slice(first, last - first))))
            yield number

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
        some = list(_rows(read(self._corpus / FLAT).slice(0, rows)))
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

    def __init__(self, corpus: Path, folder: Path) -> None:
        """Take the corpus, and start a server on the folder's data, which becomes its own where there is none."""
        self._corpus = corpus
        self._server = PostgresServer()
        self._server.kill()
        data = folder / "data"
        if not data.exists():
            shutil.move(self._server.data, data)
        shutil.rmtree(self._server.data, ignore_errors=True)
        self._server.data.symlink_to(data)
        if self._server.user is not None:
            for path in (data, *data.rglob("*")):
                shutil.chown(path, self._server.user)  # it may be a copy
        self._server.start()
        self._db = self._connect()
        self._adder: psycopg.Connection[Any] | None = None

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self._server.url(), autocommit=True)
        connection.execute("set max_parallel_workers_per_gather = 0")  # their time would not be seen
        return connection

    def cpu_s(self) -> float:
        """Return the processor time of this thread and of the process that answers it."""
        told = Path(f"/proc/{self._db.info.backend_pid}/schedstat").read_text()
        return time.thread_time() + int(told.split()[0]) / 1e9

    def build_cpu_s(self) -> float:
        """Return the processor time of this process and all of the server's."""
        server = psutil.Process(self._server.process.pid)
        times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
        return time.process_time() + sum(one.user + one.system for one in times)

    def build(self, transactions: int) -> Iterator[int]:
        """Insert with a commit for each transaction; the index is made last where there is one."""
        rows = read(self._corpus / FLAT)
        self._db.execute("create table spans (number bigint, start bigint, service text, words tsvector)")
        if transactions > 1:
            self._db.execute("create index on spans using gin (words)")
        for number, (first, last) in enumerate(slices(rows.num_rows, transactions), 1):
            self._insert(self._db, _rows(rows.slice(first, last - first)))
            yield number
        if transactions == 1:
            self._db.execute("create index on spans using gin (words)")
        self._db.execute("create index on spans (service)")
        self._db.execute("vacuum analyze spans")

    @staticmethod
    def _insert(db: psycopg.Connection[Any], rows: Iterable[Row]) -> None:
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
        self._insert(self._adder, _rows(read(self._corpus / FLAT).slice(0, rows)))

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
        """Stop the server; its data stays in the folder."""
        self._db.close()
        self._server.process.send_signal(signal.SIGINT)
        self._server.process.wait()
        shutil.rmtree(self._server.directory)
