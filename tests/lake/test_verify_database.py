"""`verify` checks the databases: pages, indexes, each row of the metadata and each column of the tracking store."""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import tracelake
from tests.archive.place import HotLake
from tests.faults.flip_metadata import Campaign
from tests.pipeline.spans import a_line, a_span
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.requests import request
from tracelake import VerifyReport
from tracelake.tasks.runners import InProcess

PROGRAM = Path(sys.executable).with_name("tracelake")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """Start a server."""
    with closing(PostgresServer()) as server:
        yield server


def make(folder: Path, metadata: str | None = None) -> Path:
    """Make a lake of one transaction."""
    (folder / "a.jsonl").write_bytes(a_line(a_span(1, 1)))
    with tracelake.init(folder / "lake", buckets=1, metadata=metadata) as lake:
        lake.ingest(folder / "a.jsonl", runner=InProcess())
    return folder / "lake"


def verified(place: Path) -> VerifyReport:
    """Return the report of `verify`."""
    with tracelake.open(place) as lake:
        return lake.verify()


def execute(database: Path, *statements: str) -> None:
    """Run SQL on a database file."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        for statement in statements:
            assert db.execute(statement).rowcount != 0, statement


def check_altered_rows(folder: Path) -> None:
    """A row with an altered key, partition, value or version is reported, for any content of its record."""
    place = make(folder)
    whole = (place / "metadata.db").read_bytes()
    of_commits = (
        "WHERE rowid = (SELECT max(rowid) FROM records WHERE CAST(partition AS TEXT) LIKE '%inputs/main')"
    )
    for change in (
        f"UPDATE records SET key = CAST('0' || CAST(key AS TEXT) AS BLOB) {of_commits}",
        f"UPDATE records SET partition = CAST('other' AS BLOB) {of_commits}",
        f"UPDATE records SET version = 'a' || substr(version, 2) {of_commits} AND substr(version, 1, 1) <> 'a'",
        f"UPDATE records SET version = CAST(version AS BLOB) {of_commits}",
        f"UPDATE records SET value = CAST(value AS TEXT) {of_commits}",
        f"UPDATE records SET version = substr(version, 1, 40) {of_commits}",
    ):
        (place / "metadata.db").write_bytes(whole)
        with closing(sqlite3.connect(place / "metadata.db", isolation_level=None)) as db:
            db.execute(change)
            is_changed = db.total_changes > 0
        try:
            findings = verified(place).findings
        except tracelake.DamageError:
            continue
        assert not is_changed or any(each.what == "record" for each in findings), change


def check_tracking_columns(folder: Path, *texts: bytes) -> None:
    """Each copy of these texts in the tracking store is reported if a bit of it is flipped: names of spans and traces,
    and previews."""
    lake = HotLake(folder / "hot")
    lake.tracking.write([request((1, 1), text="a preview of this trace")])
    assert lake.lake.verify().ok
    database = Path(lake.tracking.database.name)
    lake.lake.close()
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    data = database.read_bytes()
    for text in texts or (b"a preview of this trace", b"span 1"):
        places = [match.start() for match in re.finditer(text, data)]
        assert places
        for at in places:
            flipped = bytearray(data)
            flipped[at] ^= 1
            database.write_bytes(flipped)
            with tracelake.open(lake.path) as opened:
                assert opened.verify().findings, (text, at)


def test_altered_rows_are_reported(tmp_path: Path) -> None:
    """See `check_altered_rows`."""
    check_altered_rows(tmp_path)


def test_altered_columns_of_the_tracking_store_are_reported(tmp_path: Path) -> None:
    """See `check_tracking_columns`."""
    check_tracking_columns(tmp_path)


def test_a_few_flips_of_the_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flipped bit is reported, or changes no row."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    campaign = Campaign(tmp_path, random.Random(3))
    for _ in zip(range(15), campaign.flips(), strict=False):
        pass
    assert campaign.wrong == []
    assert campaign.seen > 10


def test_a_damaged_page_ends_the_check(tmp_path: Path) -> None:
    """If the index of the metadata differs from its table, `verify` reports that, and the checks that it skipped."""
    place = make(tmp_path)
    execute(place / "metadata.db", "PRAGMA wal_checkpoint(TRUNCATE)")
    execute(
        place / "metadata.db",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = (SELECT max(rootpage) FROM sqlite_master) WHERE name = 'records'",
    )
    done = subprocess.run(
        [PROGRAM, "verify", "--lake", place, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "metadata" in (done.stdout + done.stderr)


def test_rows_of_an_earlier_release_are_not_checked(tmp_path: Path) -> None:
    """Rows without a checksum are not damage; `verify` reports that it did not check them, as text and as JSON."""
    place = make(tmp_path)
    execute(place / "metadata.db", "UPDATE records SET version = substr(version, 1, 32)")
    report = verified(place)
    assert report.ok
    (unread,) = report.unread
    assert re.fullmatch(r"\d+ rows of metadata.db have no checksum, because an earlier release .*", unread)
    said = [
        subprocess.run(
            [PROGRAM, "verify", "--lake", place, *more], capture_output=True, text=True, check=True
        )
        for more in ([], ["--json"])
    ]
    assert f"Not checked: {unread}." in said[0].stdout.replace("\n", " ")
    assert json.loads(said[1].stdout)["unread"] == [unread]
    with tracelake.open(place) as lake:  # everything written from now on has one
        lake.tag("v1")
        rows = "SELECT version FROM records WHERE CAST(partition AS TEXT) LIKE '%/tags'"
        with closing(sqlite3.connect(place / "metadata.db")) as db:
            assert [len(version) for (version,) in db.execute(rows)] == [65]


def test_a_closed_lake_has_no_open_file(tmp_path: Path) -> None:
    """After `close` the process has no file of the lake open, of the metadata or of the tracking store."""
    lake = HotLake(tmp_path / "hot")
    lake.write((1, 1))
    assert lake.lake.verify().ok
    lake.lake.close()
    names = [os.path.realpath(name) for name in Path("/proc/self/fd").iterdir()]
    assert [name for name in names if name.startswith(str(tmp_path))] == []


def test_damage_that_came_while_the_lake_was_open(tmp_path: Path) -> None:
    """Pages that open connections have cached are read again."""
    lake = HotLake(tmp_path / "hot")
    lake.write((1, 1))
    database = Path(lake.tracking.database.name)
    execute(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    assert lake.lake.verify().ok
    with database.open("r+b") as file:
        file.seek(database.read_bytes().index(b"UNSPECIFIED"))
        file.write(b"X")
    assert not lake.lake.verify().ok


def test_postgres(tmp_path: Path, postgres: PostgresServer) -> None:
    """Rows in PostgreSQL are checked, too; a cluster without page checksums is reported as not checked."""
    url = postgres.url(postgres.new_schema())
    place = make(tmp_path, url)

    def report() -> VerifyReport:
        with tracelake.open(place, metadata=url) as lake:
            return lake.verify()

    whole = report()
    assert whole.ok
    with psycopg.connect(url, autocommit=True) as db:
        (checksums,) = db.execute("SHOW data_checksums").fetchone() or ("",)
        assert any("data_checksums" in each for each in whole.unread) == (checksums == "off")
        changed = db.execute(
            "UPDATE tracelake_records SET key = key || '0'::bytea"
            " WHERE convert_from(partition, 'UTF8') LIKE '%inputs/main'"
        )
        assert changed.rowcount == 1
    assert {each.what for each in report().findings} == {"record"}
