"""`verify` of the tracking store and its archive: each kind of damage is named, and intact data is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import zstandard
from sqlalchemy import delete, insert, select, update

from tests.archive.place import HotLake
from tests.tracking.requests import payload, request, trace_id
from tracelake._errors import StorageError
from tracelake.archive import verify as archive_verify
from tracelake.archive.verify import check_archive, check_tables, spans_of_archived
from tracelake.results import Finding
from tracelake.storage import FileObjectStore
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.schema import (
    archive_objects,
    archive_settings,
    metadata,
    outbox,
    spans,
    trace_info,
    trace_parts,
)
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.verify import check_store

LAKE, FILE, PACK, HOT, RESTORED, WAITING = range(1, 7)


@pytest.fixture
def lake(make: Callable[..., HotLake]) -> HotLake:
    """Return a lake with a trace in each place: tables, with a pending late span; file; pack; hot in three ways."""
    lake = make("trace")
    lake.write((FILE, 1))
    lake.archive.run()
    for layout, number in (("pack", PACK), ("lake", LAKE)):
        lake.archive.configure(layout=layout)
        lake.write((number, 1), (number, 2))
        lake.archive.run()
    lake.write((RESTORED, 1), (RESTORED, 2))
    lake.archive.run()
    assert lake.archive.restore(trace_id(RESTORED))
    lake.write((HOT, 1), (HOT, 2))
    lake.tracking.write([request((WAITING, 1), (LAKE, 3))])
    return lake


def findings(lake: HotLake, settled: tuple[int, ...] = ()) -> list[Finding]:
    """Return the damage found in the tracking store, its archive, and their rows in the tables."""
    return [
        *check_store(lake.tracking, settled),
        *check_archive(lake.tracking, lake.lake.url),
        *check_tables(spans_of_archived(lake.tracking), lake.lake._opened.view("main")),
    ]


def named(lake: HotLake) -> set[tuple[str, str]]:
    """Return the kind and name of each finding."""
    return {(finding.what, finding.path) for finding in findings(lake)}


@contextmanager
def damaged(lake: HotLake, *statements: Any) -> Iterator[None]:
    """Change the database until the end of the block."""
    with lake.tracking.database.reading() as connection:
        before = {
            table: [dict(row._mapping) for row in connection.execute(select(table))]
            for table in metadata.sorted_tables
        }
    with lake.tracking.database.writing() as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount
    yield
    with lake.tracking.database.writing() as connection:
        for table, rows in before.items():
            connection.execute(delete(table))
            if rows:
                connection.execute(insert(table), rows)


def of(table: Any, number: int) -> Any:
    """Return the condition for rows of a trace."""
    return table.c.trace_id == trace_id(number)


def a_row(table: Any, number: int, **others: Any) -> dict[str, Any]:
    """Return a row of a trace that does not exist."""
    key = {"lake": 1, "trace_id": trace_id(number), "sequence": 99}
    payload = zstandard.compress(b"")
    rows: Mapping[str, dict[str, Any]] = {
        trace_parts.name: {"spans": 0, "size_bytes": 0, "payload": payload},
        spans.name: {"span_id": f"{9:016x}", "name": "", "kind": "", "start_ns": 1, "end_ns": 1}
        | {"workspace": "default"},
    }
    return key | rows[table.name] | others


OTHER_SPANS: Final = payload((HOT, 1), text=bytes.fromhex(trace_id(WAITING)).decode())
"""Spans of another trace that contain this one's id somewhere: a reader cannot see the difference."""
TRACE: Final = "trace"
ANY: Final = 0
DAMAGES: Final[dict[str, tuple[list[Any], tuple[str, int]]]] = {
    "hot, and no payload": ([delete(trace_parts).where(of(trace_parts, HOT))], (TRACE, HOT)),
    "a payload cut": ([update(trace_parts).where(of(trace_parts, HOT)).values(payload=b"cut")], (TRACE, HOT)),
    "another size": ([update(trace_parts).where(of(trace_parts, HOT)).values(size_bytes=3)], (TRACE, HOT)),
    "other spans": ([update(trace_parts).where(of(trace_parts, HOT)).values(spans=7)], (TRACE, HOT)),
    "no message": (
        [
            update(trace_parts)
            .where(of(trace_parts, HOT))
            .values(payload=zstandard.compress(b"no trace"), size_bytes=8)
        ],
        (TRACE, HOT),
    ),
    "of another trace": (
        [
            update(trace_parts)
            .where(of(trace_parts, WAITING))
            .values(payload=zstandard.compress(OTHER_SPANS), size_bytes=len(OTHER_SPANS))
        ],
        (TRACE, WAITING),
    ),
    "no columns": ([delete(spans).where(of(spans, HOT))], (TRACE, HOT)),
    "a restored span without columns": (
        [delete(spans).where(of(spans, RESTORED), spans.c.span_id == f"{2:016x}")],
        (TRACE, RESTORED),
    ),
    "no trace_info row": ([delete(trace_info).where(of(trace_info, HOT))], (TRACE, HOT)),
    "in no place": (
        [update(trace_info).where(of(trace_info, HOT)).values(spans_location="ELSEWHERE")],
        (TRACE, HOT),
    ),
    "in two places": ([insert(trace_parts).values(a_row(trace_parts, PACK))], (TRACE, PACK)),
    "late, and not on its way": ([delete(outbox)], (TRACE, LAKE)),
    "an object of too many": (
        [update(archive_objects).where(archive_objects.c.path.like("packs/%")).values(traces=2)],
        ("archive object", ANY),
    ),
    "an object without a row": ([delete(archive_objects)], ("archive object", ANY)),
    "not in the tables": ([insert(spans).values(a_row(spans, LAKE))], ("archived trace", LAKE)),
    "not in the tables as a span of this workspace": (
        [insert(spans).values(a_row(spans, LAKE, span_id=f"{1:016x}", workspace="other"))],
        ("archived trace", LAKE),
    ),
    "another checksum": (
        [update(trace_info).where(of(trace_info, FILE)).values(archive_sha256="0" * 64)],
        ("archived trace", FILE),
    ),
    "settings of the archive": ([update(archive_settings).values(settings="torn")], ("record", ANY)),
}
"""The damage, and the name it is reported by."""


def check_damages(lake: HotLake) -> None:
    """Cause each kind of damage, and check the report."""
    assert findings(lake) == []
    for kind, (statements, (what, number)) in DAMAGES.items():
        with damaged(lake, *statements):
            said = named(lake)
        paths = {path for each, path in said if each == what}
        assert paths if number == ANY else trace_id(number) in paths, (kind, said)


def test_each_kind_of_damage_is_named(lake: HotLake) -> None:
    """`verify` reads the tracking store, reports nothing intact, and names each kind of damage."""
    assert lake.lake.verify().ok
    check_damages(lake)
    (row,) = findings(lake, settled=tuple(range(100)))
    assert (row.kind, row.what) == ("mismatch", "outbox row")
    with damaged(lake, update(outbox).values(size_bytes=1)):
        report = lake.lake.verify()
    assert [finding.what for finding in report.findings] == ["outbox row"]
    pack = next(each for each in lake.lake.objects.list("archive/packs/"))
    lake.lake.objects.delete(pack.path)
    assert named(lake) == {("archived trace", trace_id(PACK))}


def check_repository_away(lake: HotLake, patch: pytest.MonkeyPatch) -> None:
    """Check the report on a repository that cannot be opened, or that fails with each read."""
    repository, elsewhere = lake.path / "archive", lake.path / "elsewhere"
    torn = update(outbox).values(size_bytes=1)
    with damaged(lake, torn):
        repository.rename(elsewhere)
        repository.write_bytes(b"no directory")
        report = lake.lake.verify()
        assert [(each.what, each.path) for each in report.findings] == [
            ("outbox row", report.findings[0].path),
            ("archive repository", repository.as_uri()),
        ]
        assert "2 archived traces are in it: cannot open" in report.findings[1].detail
        repository.unlink()
        elsewhere.rename(repository)

    def away(objects: FileObjectStore, path: str, *_range: int) -> bytes:
        if objects.url.endswith("/archive"):
            asked.append(path)
            raise StorageError("the bucket does not answer")
        return read(objects, path)

    asked: list[str] = []
    read = FileObjectStore.get
    patch.setattr(FileObjectStore, "get", away)
    patch.setattr(FileObjectStore, "get_range", away)
    with damaged(lake, torn):
        whats = [each.what for each in lake.lake.verify().findings]
    assert whats == ["outbox row", "archived trace", "archived trace", "archive object"]
    assert len(asked) == 3
    patch.setattr(archive_verify, "VERIFY_ALIKE_MAX", 1)
    ((what, path),) = named(lake) - {("archived trace", trace_id(FILE))}
    assert (what, path, len(asked)) == ("archive repository", repository.as_uri(), 4)
    patch.undo()


def unreadable(file: Path) -> None:
    """Damage most pages."""
    whole = file.read_bytes()
    file.write_bytes(whole[:8192] + b"x" * (len(whole) - 8192))


def an_index_is_wrong(file: Path) -> None:
    """Change a row, but not its index entry."""
    schema = "sqlite_master where name = 'tracelake_trace_info_by_place'"
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        row = db.execute(f"select * from {schema}").fetchone()
        db.execute("pragma writable_schema = on")
        db.execute(f"delete from {schema}")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("update tracelake_trace_info set start_ns = start_ns + 1")
        db.execute("pragma writable_schema = on")
        db.execute("insert into sqlite_master values (?, ?, ?, ?, ?)", row)


def a_text_is_a_blob(file: Path) -> None:
    """Change a value's type, and no byte of its content."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("update tracelake_trace_info set name = cast(name as blob)")


def named_of_copy(lake: HotLake, damage: Callable[[Path], None]) -> set[str]:
    """Damage a copy of the SQLite file; return the findings."""
    copy = lake.path / "copy.db"
    copy.write_bytes(Path(lake.tracking.database.name).read_bytes())
    with closing(TrackingDatabase(f"sqlite://{copy}")) as database:
        store = TrackingStore(database, lake.tracking.lake_id)
        database.close()  # and reopen it once it is damaged
        damage(copy)
        return {each.what for each in check_store(store, ())}
