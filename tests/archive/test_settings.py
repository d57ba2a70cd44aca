"""Concurrent changes of archive settings, also during passes: each change persists, each object remains reachable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import obstore
import pytest
from sqlalchemy import event, text

from tests.archive.place import HotLake
from tests.archive.test_lock_order import at_once
from tests.archive.test_lock_order import waiting as waits
from tests.patience import wait_until
from tests.storage.servers.postgres import PostgresServer
from tests.tracking.requests import span_numbers, trace_id
from tracelake._errors import DamageError, UsageError
from tracelake._settings import duration_ns
from tracelake.archive import service as archives
from tracelake.archive.model import ArchiveReport, ArchiveSettings, change_settings
from tracelake.archive.store import ArchiveStore

Make = Callable[..., HotLake]


def test_of_two_changes_at_once_each_stands(make: Make) -> None:
    """A second user sets another option while the first change is checked, or makes the first setting of all."""
    lake = make("trace")

    def at_the_same_time(duration: str) -> int:
        patch.undo()
        lake.archive.configure(layout="pack", allowlist=["7"])
        return duration_ns(duration)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "duration_ns", at_the_same_time)
        settings = lake.archive.configure(retention="2d")
    assert (settings.layout, settings.retention, settings.allowlist) == ("pack", "2d", ("7",))
    assert lake.archive.settings() == settings


def test_who_changes_settings_waits_for_who_does(postgres: PostgresServer, tmp_path: Path) -> None:
    """If two changes run concurrently on PostgreSQL, the second reads the state that the first has written."""
    numbers = count()

    def check() -> None:
        url = postgres.url(postgres.new_schema())
        lake = HotLake(tmp_path / f"{next(numbers)}", url, layout="trace", retention="1m")
        locking = text("SELECT 1 FROM tracelake_archive_settings FOR UPDATE")
        with closing(lake.tracking), closing(lake.lake):
            at_once(
                lake.tracking,
                locking,
                lambda: lake.archive.configure(layout="pack"),
                lambda: lake.archive.configure(retention="2d"),
            )
            settings = lake.archive.settings()
            assert (settings.layout, settings.retention) == ("pack", "2d")

    check()


def whole(lake: HotLake) -> None:
    """Check that a trace is hot or can be restored, and that no object is in an abandoned place."""
    if not lake.hot([1]):
        assert lake.archive.restore(trace_id(1))
    assert span_numbers(lake.tracking.traces([trace_id(1)])[trace_id(1)].data) == [1]
    lake.archive.sweep(0)
    assert uploaded(lake) == 0


def uploaded(lake: HotLake) -> int:
    """Return the number of traces in the lake's default repository."""
    return sum(each.path.endswith(".pb") for each in lake.lake.objects.list("archive/"))


def interrupted(*_given: Any) -> Any:
    """Interrupt a pass as a signal does."""
    raise KeyboardInterrupt


def test_a_repository_that_is_moved_while_a_pass_begins(make: Make, tmp_path: Path) -> None:
    """The pass had read the old location: it uploads nothing there, and the next one archives the trace."""
    numbers = count()

    def check() -> None:
        lake, location = make("trace"), f"file://{tmp_path}/moved-{next(numbers)}"
        lake.write((1, 1))
        begin = ArchiveStore.begin

        def late(self: ArchiveStore, *given: Any) -> Any:
            patch.undo()
            lake.archive.configure(location=location)
            return begin(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArchiveStore, "begin", late)
            report = lake.archive.run()
        assert report.fates == {"changed": 1}
        assert "the repository has changed" in report.failures[trace_id(1)]
        assert lake.archive.run().fates == {"archived": 1}
        assert lake.archive.traces()[0].location.startswith(location)  # type: ignore[union-attr]
        with pytest.raises(UsageError, match="the current repository contains archived traces"):
            lake.archive.configure(location="")
        whole(lake)

    check()


def check_moved_beside(
    postgres: PostgresServer, folder: Path, statement: str, move: Callable[[HotLake, str], object]
) -> ArchiveReport:
    """Move a new lake's repository while a pass's transaction is open after a statement; check that all is intact.

    Returns the report of the pass.
    """
    lake = HotLake(folder / "lake", postgres.url(postgres.new_schema()), layout="trace", retention="1m")

    def moved() -> None:
        with suppress(UsageError):
            move(lake, f"file://{folder}/moved")

    with closing(lake.tracking), closing(lake.lake):
        lake.write((1, 1))
        with beside(lake, statement, moved):
            report = lake.archive.run()
        whole(lake)
        return report


def test_a_repository_is_not_moved_while_uploads_are_noted(
    postgres: PostgresServer, folders: Iterator[Path]
) -> None:
    """In either order, uploads of an uncommitted transaction count too."""

    def check() -> None:
        check_moved_beside(
            postgres,
            next(folders),
            "INSERT INTO tracelake_archive_objects",
            lambda lake, place: lake.archive.configure(location=place),
        )

    check()


def test_a_repository_that_is_moved_while_a_pass_finalizes(
    postgres: PostgresServer, folders: Iterator[Path]
) -> None:
    """In either order, a finalize in an uncommitted transaction counts, and its object stays."""

    def check() -> None:
        report = check_moved_beside(
            postgres,
            next(folders),
            "UPDATE tracelake_archive_objects",
            lambda lake, place: change_settings(lake.tracking, {"location": place}),
        )
        assert report.fates == {"archived": 1}

    check()


@pytest.mark.parametrize("answers", [False, True])
def test_a_repository_that_cannot_be_reached_can_be_left(
    make: Make, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A mistyped location can be replaced, because no pass archives anything there, whatever it began to upload.

    The location does not answer, or answers 404.
    """

    def nothing(*_given: Any) -> None:
        raise FileNotFoundError("Object at location a not found: status code: 404")

    if answers:
        monkeypatch.setattr(obstore, "put", nothing)
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    lake = make("trace", location="s3://mistyped")
    lake.write((1, 1))
    assert lake.archive.run().fates == {"failed": 1}
    lake.archive.configure(location="")
    assert lake.archive.space().uploads == 0
    assert lake.archive.run().fates == {"archived": 1}
    whole(lake)


def test_what_a_killed_pass_left_goes_where_its_repository_is_left(make: Make, tmp_path: Path) -> None:
    """Leftovers are removed while the repository is reachable: once another one is set, no sweep visits it."""
    lake = make("trace")
    lake.write((1, 1))
    left: list[int] = []

    def check() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArchiveStore, "finalize", interrupted)
            with pytest.raises(KeyboardInterrupt):
                lake.archive.run()
        assert uploaded(lake) == 1
        lake.archive.configure(location=f"file://{tmp_path}/{len(left)}")
        left.append(uploaded(lake))
        lake.archive.configure(location="")
        assert left[-1] == 0

    check()


@contextmanager
def beside(lake: HotLake, words: str, do: Callable[[], None]) -> Iterator[None]:
    """Run an action of another session after a statement, until the action ends or waits for the transaction."""
    begun: list[threading.Thread] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_given: Any) -> None:
        if statement.startswith(words) and not begun:
            begun.append(threading.Thread(target=do))
            begun[0].start()
            wait_until(lambda: not begun[0].is_alive() or waits(lake.tracking))

    engine = lake.tracking.database.engine
    event.listen(engine, "after_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", note)
        begun[0].join()


def test_a_repository_in_memory_is_refused(make: Make) -> None:
    """It would disappear with the archiving process, and the archived traces with it."""
    lake = make("trace")
    with pytest.raises(UsageError, match="ends with this process"):
        lake.archive.configure(location="memory://box")


def test_bytes_of_a_command_line_that_are_no_text(make: Make) -> None:
    """They are refused: page and API could not show them, and failed for every user until new settings were made."""
    lake = make("trace")
    before = lake.archive.settings()

    def check() -> None:
        for words in ({"allowlist": ["\udc80"]}, {"location": f"file://{lake.path}/\udc80"}):
            with pytest.raises(UsageError, match="cannot store such a value"):
                lake.archive.configure(**words)
        assert lake.archive.settings() == before

    check()


def test_settings_that_cannot_be_read_are_set_anew(make: Make) -> None:
    """Unreadable settings are replaced by a call that sets all of them; otherwise the error names the missing ones."""
    lake = make("trace")
    lake.write((1, 1))
    assert lake.archive.run().fates == {"archived": 1}
    with lake.tracking.database.writing() as connection:
        connection.execute(text("UPDATE tracelake_archive_settings SET settings = 'torn'"))
    for change in (lake.archive.settings, lambda: lake.archive.configure(retention="2d")):
        with pytest.raises(
            DamageError, match="set layout, location, retention and allowlist again, all at once"
        ):
            change()
    lake.archive.configure(layout="trace", location="", retention="2d", allowlist=[])
    assert lake.archive.settings() == ArchiveSettings("trace", None, "2d")
    whole(lake)
