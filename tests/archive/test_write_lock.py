"""Work in a transaction that blocks writers: a batch runs as many statements as a single trace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, update

from tests.archive.place import HotLake
from tests.tracking.requests import trace_id
from tracelake.archive import archive_pass
from tracelake.archive.model import HotSnapshot, StoredUpload
from tracelake.tracking.database import _SQLITE_PRAGMAS, TrackingDatabase
from tracelake.tracking.schema import trace_parts

Make = Callable[..., HotLake]
OF_SQL = {
    "archive.store",
    "archive.protocol",
    "archive.candidates",
    "archive.model",
    "archive.settings",
    "tracking.database",
    "tracking.erasure",
    "tracking.outbox",
    "storage.postgres",
}
"""Functions that may run in a write transaction: those that build statements, and those that decide on rows."""


@dataclass
class Writes:
    """The work of write transactions."""

    modules: set[str] = field(default_factory=set)
    """Tracelake's modules whose code ran in one."""
    statements: list[int] = field(default_factory=list)
    """The number of statements of each."""
    is_open: bool = False
    """Whether a write transaction is open: reads between two of them block no writer."""


@contextmanager
def watched(lake: HotLake) -> Iterator[Writes]:
    """Watch the transactions of this thread that write."""
    writes, whole, engine = Writes(), TrackingDatabase.writing, lake.tracking.database.engine

    def profile(frame: Any, what: str, _: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if what == "call" and module.startswith("tracelake."):
            writes.modules.add(module.removeprefix("tracelake."))

    @contextmanager
    def writing(self: TrackingDatabase) -> Iterator[Any]:
        with whole(self) as connection:
            writes.statements.append(0)
            writes.is_open = True
            before = sys.getprofile()
            sys.setprofile(profile)
            try:
                yield connection
            finally:
                sys.setprofile(before)
                writes.is_open = False

    def count(*_: object) -> None:
        if writes.is_open:
            writes.statements[-1] += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrackingDatabase, "writing", writing)
        event.listen(engine, "before_cursor_execute", count)
        try:
            yield writes
        finally:
            event.remove(engine, "before_cursor_execute", count)


@pytest.mark.parametrize("layout", ["lake", "pack"])
def test_nothing_but_sql_is_done_in_a_transaction_that_writes(make: Make, layout: str) -> None:
    """No data is decompressed, encoded, uploaded or read, and `main` is not queried, while writers wait."""
    lake = make(layout)

    def check() -> None:
        lake.archive.delete([trace_id(number) for number in (1, 2, 3)])
        lake.write((1, 1), (2, 1), (3, 1))
        damage = {"payload": b"damaged"}
        with lake.tracking.database.writing() as connection:
            connection.execute(
                update(trace_parts).where(trace_parts.c.trace_id == trace_id(3)).values(**damage)
            )
        with watched(lake) as writes:
            assert lake.archive.run().fates == {"archived": 2, "malformed": 1}
            assert lake.archive.restore(trace_id(1))
            assert lake.archive.delete([trace_id(1), trace_id(2)]) == [trace_id(1), trace_id(2)]
            lake.archive.sweep(0)
        assert "archive.store" in writes.modules
        assert writes.modules <= OF_SQL

    check()


def test_a_batch_has_as_many_statements_as_a_trace(make: Make) -> None:
    """The database itself does the work of a transaction for each trace."""
    lake = make("trace")

    def check() -> None:
        most = []
        for traces in (1, 12):
            ids = [trace_id(number) for number in range(1, traces + 1)]
            lake.archive.delete(ids)
            lake.write(*((number, 1) for number in range(1, traces + 1)))
            with watched(lake) as writes:
                assert lake.archive.run().fates == {"archived": traces}
            most.append(max(writes.statements))
        assert most[0] == most[1]

    check()


def test_what_is_cleared_is_not_written_again(tmp_path: Path) -> None:
    """Pages freed by a payload are not overwritten while writers wait, for any build of SQLite."""

    def check() -> None:
        with closing(TrackingDatabase(f"sqlite://{tmp_path}/tracking.db")) as database:
            with database.writing() as connection:
                connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS payloads (payload BLOB)")
                connection.exec_driver_sql("INSERT INTO payloads VALUES (zeroblob(1000000))")
            with database.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            with database.writing() as connection:
                connection.exec_driver_sql("DELETE FROM payloads")
            assert (tmp_path / "tracking.db-wal").stat().st_size < 100_000

    check()
    always = [pragma.replace("secure_delete = FAST", "secure_delete = ON") for pragma in _SQLITE_PRAGMAS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelake.tracking.database._SQLITE_PRAGMAS", always)
        with pytest.raises(AssertionError):
            check()


def test_what_one_transaction_clears_is_bounded() -> None:
    """A transaction clears a bounded number of traces and bytes; a larger trace is cleared alone, and each is
    cleared."""
    large = archive_pass.ARCHIVE_FINALIZE_BYTES
    sizes = [1, 1, 1, large, 1, large - 1, 1, large + 1, 1]
    of = {
        str(number): HotSnapshot(str(number), "0", 1, 1, b" " * size, "") for number, size in enumerate(sizes)
    }
    stored = [StoredUpload(each, 1, 1, "", "", 0, "") for each in of]

    def check() -> None:
        pieces = [[int(each.trace_id) for each in piece] for piece in archive_pass._pieces(stored, of, 2)]
        assert pieces == [[0, 1], [2], [3], [4, 5], [6], [7], [8]]

    check()
