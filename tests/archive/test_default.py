"""The default retention: in layout `lake`, payloads leave the hot tier minutes after their commit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from tests.archive.place import HotLake
from tests.archive.test_archive import payload_of
from tests.server.client import Client
from tests.tracking.requests import request, trace_id
from tracelake._settings import duration_ns
from tracelake.archive.archive_pass import ArchivePass
from tracelake.archive.retention import DEFAULT_RETENTION
from tracelake.archive.store import ARCHIVE_FREE_SHARE, reclaim_disk
from tracelake.server.app import create_app
from tracelake.tracking.ingest_queue import Inbox
from tracelake.tracking.outbox import Uncommitted
from tracelake.tracking.schema import archive_settings, trace_info, trace_parts


@pytest.fixture
def lake(new_url: Callable[[], str], tmp_path: Path) -> Iterator[HotLake]:
    """Return a lake with unchanged archive settings."""
    lake = HotLake(tmp_path / "lake", new_url())
    with closing(lake.tracking), closing(lake.lake):
        yield lake


def age(lake: HotLake, *numbers: int) -> None:
    """Let the last spans of traces be older than the default retention."""
    ids = [trace_id(number) for number in numbers]
    before_ns = time.time_ns() - duration_ns(DEFAULT_RETENTION) - 10**9
    with lake.tracking.database.writing() as connection:
        of = update(trace_info).where(trace_info.c.trace_id.in_(ids))
        connection.execute(of.values(updated_ns=before_ns))


def spans_of(lake: HotLake, number: int) -> list[str]:
    """Return the names of a trace's spans, as a reader finds them."""
    return sorted(str(span["name"]) for span in lake.lake.trace(trace_id(number)).spans)


def check_leaves(lake: HotLake) -> None:
    """Check that a quiet committed trace leaves, that a trace that received a span does not, and late spans."""
    lake.write((1, 1), (2, 1))
    assert lake.archive.plan()[0].traces == 0
    assert lake.archive.run().fates == {}, "their spans have just arrived"
    age(lake, 1, 2)
    lake.write((2, 2), commit=False)
    assert [(each.source, each.traces) for each in lake.archive.plan()] == [("default", 1)]
    assert lake.archive.run().fates == {"archived": 1}
    assert lake.hot([1, 2]) == [2]
    assert lake.tracking.write([request((1, 2))]) == [None]
    assert spans_of(lake, 1) == ["span 1", "span 2"], "a late span is readable before its commit"
    lake.commit()
    assert (payload_of(lake, 1), spans_of(lake, 1)) == (b"", ["span 1", "span 2"])
    age(lake, 2)
    assert lake.archive.run().fates == {"archived": 1}
    assert spans_of(lake, 2) == ["span 1", "span 2"]


def test_payloads_leave_minutes_after_the_last_span(lake: HotLake) -> None:
    """A trace that still receives spans stays; a trace that left accepts them."""
    check_leaves(lake)


def test_a_trace_without_commit_stays(lake: HotLake) -> None:
    """However old it is: the tracking store has its only copy."""
    lake.write((1, 1), commit=False)
    age(lake, 1)
    assert lake.archive.run().fates == {"waiting": 1}
    assert (lake.hot([1]), spans_of(lake, 1)) == ([1], ["span 1"])


def test_a_read_while_a_trace_leaves(lake: HotLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that listed the payloads before they left finds all spans in the commit that it chooses afterwards."""
    lake.write((1, 1))
    lake.write((1, 2), commit=False)  # so that readers need the tracking store
    parts = Uncommitted.of_traces

    def late(self: Uncommitted, wanted: Any) -> Any:
        monkeypatch.undo()
        lake.commit()
        age(lake, 1)
        assert lake.archive.run().fates == {"archived": 1}
        return parts(self, wanted)

    monkeypatch.setattr(Uncommitted, "of_traces", late)
    assert spans_of(lake, 1) == ["span 1", "span 2"]
    assert payload_of(lake, 1) == b""


def test_a_span_that_arrives_while_its_trace_leaves(lake: HotLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace stays hot with both spans."""
    lake.write((1, 1))
    age(lake, 1)
    take = ArchivePass.take

    def late(self: ArchivePass, *given: Any) -> None:
        archive = self.archive

        def overtaken(batches: Any) -> Any:
            lake.write((1, 2), commit=False)
            return archive(batches)

        self.archive = overtaken
        take(self, *given)

    monkeypatch.setattr(ArchivePass, "take", late)
    assert lake.archive.run().fates == {"waiting": 1}
    assert (lake.hot([1]), spans_of(lake, 1)) == ([1], ["span 1", "span 2"])


def check_settings(lake: HotLake) -> None:
    """Check that the default stays until a retention is set."""
    archive = lake.archive

    def shown() -> tuple[str | None, str | None]:
        settings = archive.settings()
        return settings.retention, settings.default_retention

    assert shown() == (None, DEFAULT_RETENTION)
    archive.configure(allowlist=["7"])
    assert shown() == (None, DEFAULT_RETENTION)
    archive.configure(layout="pack")
    assert shown() == (None, None)
    archive.configure(layout="lake")
    assert shown() == (None, DEFAULT_RETENTION)
    archive.configure(retention="7d")
    assert shown() == ("7d", None)
    archive.configure(retention="")
    archive.configure(allowlist=[])
    assert shown() == (None, None)


def test_settings_of_the_user_replace_the_default(lake: HotLake) -> None:
    """The default applies in layout `lake` until a user sets a retention, or none."""
    check_settings(lake)


def test_settings_of_earlier_releases(lake: HotLake) -> None:
    """They contain a retention as soon as anything was set. None remains unlimited, because a user may have set it."""
    before: dict[str, Any] = {"layout": "lake", "location": None, "retention": None, "allowlist": []}
    with lake.tracking.database.writing() as connection:
        connection.execute(archive_settings.delete())
        row = {"lake": lake.tracking.lake, "settings": json.dumps(before)}
        connection.execute(insert(archive_settings), row)
    settings = lake.archive.settings()
    assert (settings.retention, settings.default_retention) == (None, None)
    lake.write((1, 1))
    age(lake, 1)
    assert lake.archive.run().fates == {}


def test_the_default_limits_no_retention_of_a_user(lake: HotLake) -> None:
    """An experiment or workspace may keep its traces hot for longer without being on the allowlist."""
    lake.write((1, 1))
    age(lake, 1)
    with lake.tracking.database.writing() as connection:
        connection.execute(update(trace_info).values(start_ns=time.time_ns() - 3_600 * 10**9))
    lake.archive.set_retention("30d", experiment="0")
    assert lake.archive.run().fates == {}
    lake.archive.set_retention("", experiment="0")
    lake.archive.set_retention("2h", workspace="default")
    assert lake.archive.run().fates == {}
    lake.archive.set_retention("50m", experiment="0")
    assert lake.archive.run().fates == {"archived": 1}


def test_every_page_of_the_server_shows_the_default(lake: HotLake) -> None:
    """The API and the page of the archive name it."""
    with closing(Inbox(lake.lake.objects)) as inbox:
        client = Client(create_app(lake.lake, inbox))
        lake.write((1, 1))
        age(lake, 1)
        assert lake.archive.run().fates == {"archived": 1}
        answer = client.get("/api/v1/archive").json()
        assert answer["settings"]["default_retention"] == DEFAULT_RETENTION
        assert answer["experiments"][0]["source"] == "default"
        assert f"<dd>{DEFAULT_RETENTION}</dd>" in client.get("/archive").text
        assert len(client.get(f"/api/v1/traces/{trace_id(1)}").json()["spans"]) == 1
        (found,) = client.get("/api/v1/search", params={"q": "hello"}).json()["hits"]
        assert found["trace_id"] == trace_id(1)


def check_space(lake: HotLake) -> None:
    """Check that few free pages stay for new rows, and that many are returned."""

    def pages() -> tuple[int, int]:
        with lake.tracking.database.reading() as connection:
            free, pages = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
                for name in ("freelist_count", "page_count")
            )
        return free, pages

    of = trace_parts.c
    part = {"lake": lake.tracking.lake, "spans": 1, "size_bytes": 9, "payload": b"x" * 100_000}
    with lake.tracking.database.writing() as connection:
        rows = [{**part, "trace_id": trace_id(number), "sequence": number} for number in range(1, 41)]
        connection.execute(insert(trace_parts), rows)
    for above, is_shrunk in ((35, False), (10, True)):
        with lake.tracking.database.writing() as connection:
            connection.execute(trace_parts.delete().where(of.sequence > above))
        free, before = pages()
        assert (free / before > ARCHIVE_FREE_SHARE) is is_shrunk
        reclaim_disk(lake.tracking.database)
        free_after, after = pages()
        assert (free_after, after < before) == ((0, True) if is_shrunk else (free, False))


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_free_pages_are_reused(lake: HotLake) -> None:
    """A file that shrinks after each pass is written once more for it, and grows again."""
    check_space(lake)
