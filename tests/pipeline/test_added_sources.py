"""Sources that are added, paused, resumed and removed while a pipeline runs, their fair order, and their lag (J13)."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelake
from tests.pipeline.bucket_place import Place, fixture_place
from tests.pipeline.lost_replies import LosesReplies
from tests.pipeline.spans import a_line, a_span
from tests.torn import lake_in_bucket, tear
from tracelake import InboxPipeline, Lake, LimitError, SourceInfo, UnreadInputsError, UsageError
from tracelake.lake.sources import merged
from tracelake.otlp.framing import write_segment
from tracelake.pipeline import registrations
from tracelake.pipeline.protocol import counts, in_turn
from tracelake.pipeline.registrations import AddedSources, SourceRecords
from tracelake.pipeline.sources import files, server_inputs
from tracelake.pipeline.sources.base import Lag
from tracelake.pipeline.sources.poller import SourcePoller
from tracelake.replicas.protocol import Replica, SourceAccount
from tracelake.replicas.replica import BacklogEntry
from tracelake.storage import KeyValueStore
from tracelake.storage.local import MemoryKeyValueStore
from tracelake.tasks.runners import InProcess

__all__ = ["fixture_place"]


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Return a new lake in memory."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def old_file(path: Path, number: int) -> Path:
    """Write a file with one unique span whose last write is long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(a_line(a_span(number, 0)))
    os.utime(path, (1, 1))
    return path


def arrive(lake: Lake, number: int) -> None:
    """Put a segment into the inbox."""
    lake.objects.put(f"inbox/{number:03}.segment", write_segment([("json", a_line(a_span(number, 0)))]))


def new(pipeline: InboxPipeline, **options: Any) -> int:
    """Run once, and return the number of new spans."""
    report = pipeline.run_once(**options)
    return 0 if report is None else report.spans_new


def told(lake: Lake, *pipelines: InboxPipeline) -> dict[str, SourceInfo]:
    """Return a lake's report on its sources, given the state of these replicas."""
    records = AddedSources(lake._opened.key_value).records()
    replicas = [pipeline._account.record() for pipeline in pipelines]
    now_s = max(replica.heartbeat_s for replica in replicas)
    return {info.name: info for info in merged(records, replicas, now_s)}


def test_j13_added_paused_resumed_and_removed_while_pipelines_run(lake: Lake, tmp_path: Path) -> None:
    """J13: both replicas see each change at their next poll, without a restart; nothing is lost or taken twice."""
    a, b = (lake.pipeline(replica=name, runner=InProcess()) for name in "ab")
    assert (new(a), new(b)) == (0, 0)
    info = lake.sources.add("drops", str(tmp_path / "in" / "*.jsonl"))
    assert (info.name, info.kind, info.state, info.added) == ("drops", "files", "unwatched", True)
    old_file(tmp_path / "in" / "0.jsonl", 0)
    assert (new(a), new(b)) == (1, 0)
    assert lake.sources.pause("drops").state == "paused"
    old_file(tmp_path / "in" / "1.jsonl", 1)
    arrive(lake, 2)
    assert (new(a), new(b)) == (1, 0), "of the inbox"
    assert told(lake, a, b)["drops"].state == "paused"
    lake.sources.resume("drops")
    assert (new(b), new(a)) == (1, 0)
    known = told(lake, a, b)["drops"]
    assert (known.state, known.taken_inputs, known.replicas) == ("active", 2, ("a", "b"))
    lake.sources.remove("drops")
    old_file(tmp_path / "in" / "3.jsonl", 3)
    assert (new(a), new(b)) == (0, 0)
    assert set(told(lake, a, b)) == {"inbox", "outbox"}
    lake.sources.add("again", str(tmp_path / "in"))  # a folder without archived traces
    lake.sources.add("drops", str(tmp_path / "in" / "*"))
    report = a.run_once()
    assert report is not None
    assert (report.files, report.files_known, report.spans_new) == (3, 2, 1), (
        "what it has is known by content"
    )
    assert lake.verify().ok


def test_an_unfinished_transaction_of_a_removed_source_is_finished(lake: Lake, tmp_path: Path) -> None:
    """J13: recorded input is read again and committed although its source is no longer watched."""
    lake.sources.add("drops", str(tmp_path / "*.jsonl"))
    old_file(tmp_path / "0.jsonl", 0)

    def die(step: tracelake.Progress) -> None:
        if step.stage == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.pipeline(runner=InProcess()).run_once(die)
    lake.sources.remove("drops")
    assert new(lake.pipeline(runner=InProcess())) == 1


@pytest.mark.parametrize("url", ["memory://{}/repo", "{}"])
def test_a_watched_archive_repository(place: Place, tmp_path: Path, url: str) -> None:
    """A folder or bucket prefix stands for exactly the traces archived below it."""
    name = "7/traces/{}/artifacts/traces.pb"
    payload = (Path(__file__).parents[1] / "everything.py").read_bytes()  # not OTLP: named, and not taken
    address = url.format(tmp_path if url == "{}" else place.bucket.url.partition("://")[2])
    pipeline = place.lake.pipeline(runner=InProcess())
    place.lake.sources.add("archive", address)
    for key in (name.format("a"), "notes.jsonl", "7/traces/a/artifacts/other.pb"):
        place.bucket.put(f"repo/{key}", payload)
        old_file(tmp_path / key, 0).write_bytes(payload)
        os.utime(tmp_path / key, (1, 1))
    report = pipeline.run_once()
    assert report is not None
    assert [item.path.rpartition("/7/")[2] for item in report.bad] == ["traces/a/artifacts/traces.pb"]


def test_a_file_that_is_written_rests_first(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file waits while its last write is newer than WATCHED_FILE_QUIET_S; later growth is the next input."""
    lake.sources.add("drops", str(tmp_path / "*.jsonl"))
    pipeline = lake.pipeline(runner=InProcess())
    path = tmp_path / "0.jsonl"
    path.write_bytes(a_line(a_span(0, 0)) + b"\n")
    written_s = path.stat().st_mtime
    clock = [written_s]
    monkeypatch.setattr(files, "time", SimpleNamespace(time=lambda: clock[0], monotonic=time.monotonic))
    for clock[0], expected in ((written_s + 1.9, 0), (written_s + 2.0, 1), (written_s + 2.1, 0)):
        assert new(pipeline) == expected
    with path.open("ab") as file:
        file.write(a_line(a_span(0, 1)))
    clock[0] = path.stat().st_mtime + 1.9
    assert new(pipeline) == 0
    clock[0] += 0.1
    report = pipeline.run_once()
    assert report is not None
    assert (report.spans_new, report.spans_repeated) == (1, 1)


def test_one_that_cannot_look_is_named_and_stops_no_other(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable folder does not count as empty, nor a topic without its client library; the other sources are
    ingested."""
    (tmp_path / "shut").mkdir()
    lake.sources.add("shut", str(tmp_path / "shut" / "*"))
    lake.sources.add("drops", str(tmp_path / "*.jsonl"))
    old_file(tmp_path / "0.jsonl", 0)
    scan = os.scandir

    def refuse(path: Any = ".") -> Any:
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    pipeline = lake.pipeline(replica="r", runner=InProcess())
    with pytest.raises(
        UnreadInputsError, match=r"source shut: .*Permission denied.*All others were ingested"
    ):
        pipeline.run_once(goes_on=True)
    assert lake.table("spans").info().rows == 1
    info = told(lake, pipeline)["shut"]
    assert (info.state, info.waiting) == ("failing", None)
    assert info.reason.startswith("replica r: ")
    assert told(lake, pipeline)["drops"].state == "active"


def test_a_damaged_record_stops_no_other_source(lake: Lake, tmp_path: Path) -> None:
    """The source with the damaged record is named by the run and in the list, and can be removed and added again."""
    lake.sources.add("drops", str(tmp_path / "*.jsonl"))
    lake.sources.add("torn", str(tmp_path / "torn" / "*"))
    key_value = lake._opened.key_value
    whole = key_value.get("sources/main", "drops/")
    assert whole is not None
    key_value.set("sources/main", "other/", whole.value)
    key_value.set("sources/main", "torn/", whole.value[:-1])
    old_file(tmp_path / "0.jsonl", 0)
    told_of = r"sources/main/other/ belongs to source drops.*; .*sources/main/torn/ cannot be read"
    with pytest.raises(UnreadInputsError, match=told_of):
        lake.pipeline(runner=InProcess()).run_once()
    assert lake.table("spans").info().rows == 1
    assert [(info.name, info.state) for info in lake.sources.all()] == [
        ("drops", "unwatched"),
        ("other", "damaged"),
        ("torn", "damaged"),
    ]
    assert [finding.path for finding in lake.verify().findings] == ["sources/main/torn/"]
    lake.sources.remove("torn")
    assert lake.sources.add("torn", str(tmp_path / "torn" / "*")).state == "unwatched"


def test_a_torn_object_of_a_record_stops_no_other_source(tmp_path: Path) -> None:
    """If records are objects and the store cannot read one, other sources are taken and can be added."""
    with lake_in_bucket(tmp_path) as lake:
        lake.sources.add("drops", str(tmp_path / "*.jsonl"))
        lake.sources.add("torn", str(tmp_path / "elsewhere" / "*"))
        tear(tmp_path, "elsewhere")
        old_file(tmp_path / "0.jsonl", 0)
        with pytest.raises(UnreadInputsError, match=r"source torn: .* is damaged"):
            lake.pipeline(runner=InProcess()).run_once()
        assert lake.table("spans").info().rows == 1
        lake.sources.add("third", str(tmp_path / "third" / "*"))
        lake.sources.add("torn2", str(tmp_path / "torn2" / "*"))
        states = [(info.name, info.state) for info in lake.sources.all()]
        assert states == [
            ("drops", "unwatched"),
            ("third", "unwatched"),
            ("torn2", "unwatched"),
            ("torn", "damaged"),
        ]
        with pytest.raises(UsageError, match=r"torn already exists: .* source remove torn`"):
            lake.sources.add("torn", str(tmp_path / "torn" / "*"))
        lake.sources.remove("torn")
        lake.sources.add("torn", str(tmp_path / "torn" / "*"))
        assert [info.name for info in lake.sources.all()] == ["drops", "third", "torn", "torn2"]
        assert lake.verify().ok


def test_what_cannot_be_added_is_refused_in_words(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, addresses and their number are bounded; a relative path means the same to every replica."""
    for name, address in (
        ("", "a"),
        ("a/b", "a"),
        ("inbox", "a"),
        ("x" * 65, "a"),
        ("a", "ftp://host/x"),
        ("a", "kafka://broker"),
        ("a", "in\0valid"),
        ("a", lake.url + "/inbox/*"),
    ):
        with pytest.raises(UsageError):
            lake.sources.add(name, address)
    with pytest.raises(LimitError):
        lake.sources.add("a", "/x" * 3000)
    for change in (lake.sources.pause, lake.sources.resume, lake.sources.remove):
        for name in ("none", "inbox", "\0", "a/b"):
            with pytest.raises(UsageError, match="no source"):
                change(name)
    monkeypatch.chdir(tmp_path)
    assert lake.sources.add("here", "in/*.gz").address == f"{tmp_path}/in/*.gz"
    with pytest.raises(UsageError, match="already exists"):
        lake.sources.add("here", "in/*.gz")
    monkeypatch.setattr(registrations, "SOURCES_MAX", 1)
    with pytest.raises(LimitError, match="SOURCES_MAX = 1"):
        lake.sources.add("more", "in/*.gz")


def change_without_replies() -> None:
    """Add, pause, resume and remove a source in a store that loses every other reply."""
    for done in (False, True):
        sources = AddedSources(LosesReplies(done=done))
        record = sources.add("a", "/x/*", lambda _: None)
        assert sources.records().readable == [record]
        for on in (True, False):
            assert sources.pause("a", on=on).is_paused is on
            assert sources.records().readable[0].is_paused is on
        sources.remove("a")
        assert sources.records().readable == []


def test_a_lost_reply_is_read_back() -> None:
    """A call has taken effect exactly once when it returns, even if the store's reply was lost."""
    change_without_replies()


def all_in_turn() -> None:
    """Drain a long source and a short one, each with its share, by bytes."""
    order = in_turn([[5] * 100, [1] * 10, [100, 1]])
    assert order[:3] == [(0, 0), (1, 0), (2, 0)]
    assert {(1, n) for n in range(10)} <= set(order[:15])
    assert order.index((2, 1)) > order.index((0, 19)), "it had its share with the first"
    assert sorted(order) == sorted((s, n) for s, many in enumerate((100, 10, 2)) for n in range(many))


@given(st.lists(st.lists(st.integers(1, 50), max_size=20), max_size=5), st.data())
def test_each_source_has_its_share_of_any_beginning(costs: list[list[int]], data: st.DataObject) -> None:
    """Two waiting sources differ by at most one input at any time, and each keeps its order."""
    order = in_turn(costs)
    assert sorted(order) == [(s, n) for s, many in enumerate(costs) for n in range(len(many))]
    end = data.draw(st.integers(0, len(order)))
    had = [[n for s, n in order[:end] if s == source] for source in range(len(costs))]
    assert all(numbers == list(range(len(numbers))) for numbers in had)
    waits_on = [s for s, numbers in enumerate(had) if len(numbers) < len(costs[s])]
    for one in waits_on:
        for other in waits_on:
            assert sum(costs[one][: len(had[one])]) <= sum(costs[other][: len(had[other])]) + max(costs[one])


def take_beside_a_backlog(folder: Path) -> None:
    """Check that the first poll takes some of a large backlog and all of the inbox, without waiting for the rest."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as lake:
        for number in range(60):
            old_file(folder / f"{number}.jsonl", number)
        pipeline = lake.pipeline(replica="r", runner=InProcess(), watch=[str(folder / "*.jsonl")])
        pipeline._sizer._size = type(pipeline._sizer._size)(2**20, 4)
        for number in range(70, 73):
            arrive(lake, number)
        first = pipeline.run_once(goes_on=True)
        assert first is not None
        assert lake.inbox().segments == 0
        assert first.files < 40, "a look has an end"
        account = pipeline.replica()
        assert account.waiting_inputs > 20
        assert told(lake, pipeline)[str(folder / "*.jsonl")].waiting == 60
        arrive(lake, 80)
        assert pipeline.run_once(goes_on=True) is not None
        assert lake.inbox().segments == 0
        while pipeline.run_once(goes_on=True) is not None:
            pass
        assert lake.table("spans").info().rows == 64


def test_a_backlog_starves_no_other_source(tmp_path: Path) -> None:
    """Each transaction has a share of each source, and a poll returns at most some transactions' worth."""
    take_beside_a_backlog(tmp_path)


def test_a_commit_of_a_client_has_all_that_was_acknowledged(lake: Lake) -> None:
    """A client's transaction has all acknowledged input, however small a poll is; later input is not in it."""
    pipeline = lake.pipeline(replica="r", runner=InProcess())
    pipeline._sizer._size = type(pipeline._sizer._size)(1, 1)
    client = lake.transactions.begin()
    for number in range(9):
        arrive(lake, number)
    lake.transactions.end(client.id, "commit")
    while pipeline.run_once(goes_on=True) is not None:
        pass
    assert len(lake.log()) == 1
    assert lake.table("spans").info().rows == 9


def test_lag_and_rate_of_each_kind(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lag counts files and objects by number, bytes and age, also after partial polls, and the inbox by segments."""
    lake = place.lake
    monkeypatch.setattr("tracelake.pipeline.sources.registry.WATCHED_OBJECTS_AT_ONCE", 1)
    for number in range(3):
        old_file(tmp_path / f"{number}.jsonl", number)
        place.put(f"in/{number}", 10 + number)
        arrive(lake, 20 + number)
    lake.sources.add("files", str(tmp_path / "*.jsonl"))
    lake.sources.add("objects", place.url("in/*"))
    pipeline = lake.pipeline(replica="r", runner=InProcess())
    pipeline.run_once(goes_on=True)
    infos = told(lake, pipeline)
    lags = {name: (infos[name].waiting, infos[name].unit) for name in ("files", "objects", "inbox", "outbox")}
    assert lags == {
        "files": (3, "files"),
        "objects": (3, "objects"),
        "inbox": (3, "segments"),
        "outbox": (None, ""),
    }
    for name, taken in (("files", 3), ("objects", 1), ("inbox", 3)):
        info = infos[name]
        assert info.taken_inputs == taken
        assert info.waiting_bytes is not None
        assert info.waiting_bytes * taken == 3 * info.taken_bytes
        assert info.bytes_per_s > 0
        assert info.oldest_waiting_s is not None


def test_what_several_replicas_tell_is_put_together() -> None:
    """The newest poll counts, every failed poll is named with its replica, and gone replicas are ignored."""

    def replica(name: str, heartbeat_s: float, **fields: Any) -> Replica:
        account = SourceAccount(name="w", address="/x/*", id="", kind="files", **fields)
        return Replica(
            name=name,
            instance="",
            host="h",
            pid=1,
            started_s=0,
            heartbeat_s=heartbeat_s,
            moved_s=1000,
            sources=(account,),
        )

    replicas = [
        replica("a", 1000, state="active", waiting=5, looked_s=990.0, taken_inputs=1),
        replica("b", 1000, state="failing", reason="no answer", waiting=9, looked_s=900.0, taken_inputs=2),
        replica("c", 1, state="active", waiting=7, looked_s=999.0, taken_inputs=4),
    ]
    (info,) = merged(SourceRecords([], {}), replicas, 1000.0)
    assert (info.state, info.reason, info.waiting) == ("failing", "replica b: no answer", 5)
    assert (info.taken_inputs, info.replicas, info.added) == (3, ("a", "b"), False)


class Quiet:
    """A source without input that counts its polls."""

    source = "files"
    looks = 0

    def look(self, suspects: Any, *, continuous: bool) -> list[BacklogEntry]:
        del suspects, continuous
        self.looks += 1
        return []

    def took(self, paths: Any) -> None:
        """Note nothing."""

    def lag(self) -> Lag | None:
        """Return None: the lag is unknown."""


def look_while_paused() -> None:
    """Check that a paused or removed source is not polled; a paused one keeps its watch."""
    store: KeyValueStore = MemoryKeyValueStore()
    sources, opened = AddedSources(store), []

    def open_watch(address: str) -> Quiet:
        opened.append(address)
        return watch

    watch = Quiet()
    looks = SourcePoller([], [], sources, open_watch)
    sources.add("a", "/x", lambda _: None)
    changes: list[tuple[Callable[[], object], int]] = [
        (lambda: None, 1),
        (lambda: sources.pause("a", on=True), 1),
        (lambda: sources.pause("a", on=False), 2),
        (lambda: sources.remove("a"), 2),
    ]
    for change, expected in changes:
        change()
        looks.look((), continuous=True)
        assert watch.looks == expected
    assert opened == ["/x"]


def test_a_paused_source_is_not_asked() -> None:
    """A paused source is not polled, because polling may be why it was paused."""
    look_while_paused()


class Changed(Quiet):
    """A source that changes during a poll; then an input appears in it."""

    def __init__(self, change: Callable[[], object]) -> None:
        self._change = change

    def look(self, suspects: Any, *, continuous: bool) -> list[BacklogEntry]:
        super().look(suspects, continuous=continuous)
        self._change()
        return [BacklogEntry("/x/1", 1, 0.0)]


def change_while_looking() -> None:
    """Ignore input that appears after a pause or removal, even if the poll had begun; take all other input."""

    def seen(change: Callable[[AddedSources], object]) -> int:
        sources = AddedSources(MemoryKeyValueStore())
        sources.add("a", "/x/*", lambda _: None)
        watch = Changed(lambda: change(sources))
        return len(SourcePoller([], [], sources, lambda _: watch).look((), continuous=True).waiting)

    def add_again(sources: AddedSources) -> None:
        sources.remove("a")
        sources.add("a", "/x/*", lambda _: None)

    assert seen(lambda sources: sources.pause("a", on=False)) == 1
    assert seen(lambda sources: sources.pause("a", on=True)) == 0
    assert seen(lambda sources: sources.remove("a")) == 0
    assert seen(add_again) == 0, "the next look takes it, as of the new one"


def test_j13_what_was_seen_counts_only_of_what_still_stands() -> None:
    """J13: source records are read again after the poll, and only input of unchanged sources counts."""
    change_while_looking()


def test_whether_what_was_seen_counts() -> None:
    """Polled input counts only for the same source, as it was added then, while it is not paused."""
    assert counts("a", "a", is_paused=False)
    assert not counts("a", "a", is_paused=True)
    assert not counts("a", None, is_paused=False)
    assert not counts("a", "b", is_paused=False)


def test_the_outbox_gives_a_client_all() -> None:
    """When a client's transaction ends, the outbox is polled to its end."""
    asked: list[bool] = []

    class Asked(Quiet):
        source = server_inputs.OUTBOX

        def look(self, suspects: Any, *, continuous: bool) -> list[BacklogEntry]:
            asked.append(continuous)
            return super().look(suspects, continuous=continuous)

    looks = SourcePoller([Asked()], ["/x"], AddedSources(MemoryKeyValueStore()), lambda _: Asked())
    looks.look((), continuous=True)
    looks.look((), continuous=True, ending=True)
    assert asked == [True, True, False, True]
