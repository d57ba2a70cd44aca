"""Rules of rows that no other mutant breaks: the contents of columns, and the size of a payload."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zstandard
from sqlalchemy import event

from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import DamageError
from tracelake.tracking import store as rows
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import current, migrate
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.schema import HEAD
from tracelake.tracking.store import TrackingStore, unpacked


def test_columns_hold_what_both_databases_do() -> None:
    """A text is cut at the column's length, and contains no NUL, which PostgreSQL never accepts."""

    def check() -> None:
        assert rows._cut("a\0b" + "x" * limits.TRACKING_NAME_MAX_CHARS, 3) == "a\ufffdb"
        assert rows._cut("a\0", 3) == "a\ufffd"

    check()


def test_a_payload_has_the_bytes_that_its_row_says() -> None:
    """A payload that decompresses to less than was stored is damage, not a trace with fewer spans."""
    packed = zstandard.ZstdCompressor().compress(b"12")

    def check() -> None:
        with pytest.raises(DamageError, match="2 bytes, not 3"):
            unpacked(trace_id(1), packed, 3)

    check()


def test_a_payload_that_says_it_is_huge_is_damage() -> None:
    """A damaged size of a payload is reported as damage like any other, not as a lack of memory."""
    packed = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(b"ab" * 200)

    def check() -> None:
        damaged = 0
        for value in range(256):
            try:
                # Byte 4 gives the number of bytes of the size.
                assert unpacked(trace_id(1), packed[:4] + bytes([value]) + packed[5:], 400) == b"ab" * 200
            except DamageError as error:
                assert trace_id(1) in str(error)  # noqa: PT017  of most values, and not of all
                damaged += 1
        assert damaged > 200

    check()


def test_writes_lock_traces_in_one_order() -> None:
    """Two writers with the same traces in different orders do not deadlock."""

    def check() -> None:
        assert list(rows.group_by_trace([request((3, 1), (1, 1)), request((2, 1))])) == [
            *map(trace_id, (1, 2, 3))
        ]

    check()


def test_a_number_is_never_given_again(tmp_path: Path) -> None:
    """The table guarantees unique numbers. SQLite by itself would reuse the number of a trimmed row."""

    def check(database: TrackingDatabase) -> None:
        store = TrackingStore(database, "lake-a")
        outbox, numbers = Outbox(store), []
        for number in (1, 2):
            store.write([request((number, 1))])
            numbers.append(outbox.waiting()[-1].sequence)
            outbox.trim(numbers)
        assert numbers[0] < numbers[1]

    with closing(TrackingDatabase(f"sqlite://{tmp_path}/tracking.db")) as database:
        migrate(database)
        check(database)
        with database.writing() as connection:
            (made,) = connection.exec_driver_sql(
                "SELECT sql FROM sqlite_master WHERE name = 'tracelake_outbox'"
            ).scalars()
            assert "AUTOINCREMENT" in made
            connection.exec_driver_sql("DROP TABLE tracelake_outbox")
            connection.exec_driver_sql(made.replace("AUTOINCREMENT", ""))
        with pytest.raises(AssertionError):
            check(database)


def test_a_migration_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    """After a failure at any statement nothing of the migration remains, and it can be repeated."""
    paths = (tmp_path / f"{number}.db" for number in range(100))

    def check() -> None:
        for failing in (3, 9, 20):
            with closing(TrackingDatabase(f"sqlite://{next(paths)}")) as database:
                statements = iter(range(1_000))

                def fail(*_: object, failing: int = failing, statements: Iterator[int] = statements) -> None:
                    if next(statements) == failing:
                        raise OSError("killed")

                event.listen(database.engine, "after_cursor_execute", fail)
                with pytest.raises(OSError, match="killed"):
                    migrate(database)
                with database.reading() as connection:
                    assert current(connection) is None
                migrate(database)
                with database.reading() as connection:
                    assert current(connection) == HEAD

    check()
