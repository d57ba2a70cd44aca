"""Pages of the SQLite file that a request changes. Each is written twice: to the log, and at a checkpoint."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path

from tests.tracking.requests import request
from tracelake.otlp.partition import COLUMNS
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import add_mirrors, migrate
from tracelake.tracking.store import TrackingStore

_START = COLUMNS.index("start_ns")


def check_changed_pages(folder: Path, at_most: float) -> None:
    """In a group of ten requests of one span each, with random trace ids, a request changes at most `at_most` pages on
    average."""
    chance, starts = random.Random(1), count(1)
    with closing(TrackingDatabase(f"sqlite://{folder}/tracking.db")) as database:
        migrate(database)
        add_mirrors(database)
        store = TrackingStore(database, "lake-a")

        def write(groups: int) -> None:
            for _ in range(groups):
                group = [
                    request((chance.getrandbits(120) + 1, 1), text=f"{chance.random()}" * 70)
                    for _ in range(10)
                ]
                for trace in (trace for each in group for trace in each.traces.values()):
                    trace.rows = [(*row[:_START], next(starts), *row[_START + 1 :]) for row in trace.rows]
                store.write(group)

        write(100)
        with closing(sqlite3.connect(database.name, isolation_level=None)) as reader:
            reader.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            (page_bytes,) = reader.execute("PRAGMA page_size").fetchone()
            reader.execute("BEGIN")
            reader.execute(
                "SELECT count(*) FROM tracelake_outbox"
            ).fetchall()  # from here on, the log only grows
            write(20)
            log_bytes = Path(f"{database.name}-wal").stat().st_size
        pages = log_bytes / (page_bytes + 24) / 200
        assert pages <= at_most, pages


def test_a_request_changes_few_pages(tmp_path: Path) -> None:
    """New rows share pages, except in the three orders by trace id."""
    check_changed_pages(tmp_path, 5.5)
