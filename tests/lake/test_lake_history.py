"""A lake whose history expires: kept commits read the same, and the rest is freed."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from pyspark.sql.streaming.datasource import ReadMaxFiles
from pyspark.sql.types import StructType
from typer.testing import CliRunner

import tracelake
from tests.lake.test_formats_of_lakes import unpacked
from tests.lake.test_lake_maintenance import ingest
from tracelake import Lake
from tracelake._errors import CommitExpiredError, ExpiredError, UsageError
from tracelake._settings import find_history
from tracelake.cli import app
from tracelake.context import LakeContext
from tracelake.datasets.files import write_file
from tracelake.datasets.model import Example, Provenance, example_path, to_bytes
from tracelake.lake import maintenance
from tracelake.lake.maintenance import CollectionLoop, Maintenance
from tracelake.location import open_location
from tracelake.results import GcReport
from tracelake.spark.source import Options, StreamReader
from tracelake.tables.maintenance import collect
from tracelake.tasks.runners import InProcess
from tracelake.versions import expiry
from tracelake.versions.protocol import DAY_S


@contextmanager
def days_later(days: float) -> Iterator[None]:
    """Let history expire as it would some days later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiry, "time", SimpleNamespace(time=lambda: time.time() + days * DAY_S))
        yield


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake with twelve transactions, each of which replaces a span and a trace."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        for number in range(12):
            ingest(lake, tmp_path, number)
        yield lake


def context(lake: Lake) -> LakeContext:
    """Return the stores of a lake."""
    return LakeContext(open_location(lake.place, None))


def read_at(lake: Lake, commit: str) -> tuple[str, str, list[tuple[str, float]]]:
    """Return everything that a commit shows: both tables, and a search with its scores."""
    hits = [(hit.span_id, hit.score) for hit in lake.search("work", at=commit, limit=50)]
    return lake.table("spans", at=commit).content_hash(), lake.table("traces", at=commit).content_hash(), hits


def stored(lake: Lake, beginning: str = "") -> tuple[int, int]:
    """Return the number and bytes of the lake's objects."""
    infos = list(lake.objects.list(beginning))
    return len(infos), sum(info.size_bytes for info in infos)


def test_retained_commits_read_the_same_and_the_rest_is_freed(lake: Lake, tmp_path: Path) -> None:
    """After expiry, head, tag and dataset commits read as before; other commits, old indexes and history are freed."""
    by_transaction = {c.metadata.get("transaction"): c.id for c in lake.log()}
    lake.tag("v1", by_transaction["6"])
    lake.datasets.create("golden", message="mine", committer="me")
    lake.maintenance.compact(runner=InProcess())
    before = {name: read_at(lake, lake.log(name, 1)[0].id) for name in ("main", "v1")}
    objects_before = stored(lake)
    commits_before = len(lake.log())
    with days_later(40):
        expired = lake.maintenance.gc(dry_run=True, epoch_min_s=0)[-3].expired
        for number in range(3):
            reports = lake.maintenance.gc(epoch_min_s=0)
            assert all(report.damage == () for report in reports)
            assert reports[-3].expired == (0 if number else expired)
    log = lake.log()
    assert len(log) == commits_before - expired
    assert [c.metadata.get("transaction") for c in log if "transaction" in c.metadata] == ["11", "10", "6"]
    assert {name: read_at(lake, lake.log(name, 1)[0].id) for name in ("main", "v1")} == before
    assert stored(lake)[0] < objects_before[0] / 1.5
    assert lake.verify().findings == ()
    with pytest.raises(CommitExpiredError, match=log[-1].id[:12]):
        lake.table("spans", at=by_transaction["3"] or "")
    ingest(lake, tmp_path, 12)
    assert lake.verify().findings == ()


def test_without_a_tag_history_rows_go(lake: Lake) -> None:
    """Rows that only expired commits showed are deleted, and the tables begin at the oldest kept transaction."""
    lake.maintenance.compact(runner=InProcess())
    head = lake.log(limit=1)[0].id
    before = read_at(lake, head)
    with days_later(40):
        for _ in range(3):
            lake.maintenance.gc(epoch_min_s=0)
    assert read_at(lake, head) == before
    state = context(lake).shard("traces").state()
    assert state.since == 10
    lake.maintenance.compact(runner=InProcess())
    changes = list(lake.listen("traces", since=-1, timeout_s=0))
    assert [each.transaction for each in changes] == [10, 11], (
        "a new listener starts with all rows of the oldest"
    )
    signs = [sign for each in changes for sign in each.rows["_change"].to_pylist()]
    assert signs.count(1) - signs.count(-1) == len(lake.table("traces").to_arrow())
    with pytest.raises(ExpiredError, match="no longer"):
        list(lake.listen("traces", since=3, timeout_s=0))
    reader = StreamReader(Options.of({"lake": lake.place, "table": "traces"}), StructType())
    start = reader.initialOffset()
    ends = [reader.latestOffset(start, ReadMaxFiles(files))["transaction"] for files in (1, 11, 12)]
    assert ends == [10, 10, 11]
    assert lake.verify().findings == ()


def test_transactions_during_a_collection_stay_searchable(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The indexes of transactions that commit while a collection runs are not taken for superseded ones."""
    numbers = iter(range(12, 16))

    def with_input(*args: Any, **options: Any) -> GcReport:
        for number in numbers:
            ingest(lake, tmp_path, number)
        return collect(*args, **options)

    monkeypatch.setattr("tracelake.lake.maintenance.collect", with_input)
    with days_later(40):
        lake.maintenance.gc(epoch_min_s=0)
    assert next(numbers, None) is None
    for commit in lake.log():
        assert lake.search("work", at=commit.id)
    assert lake.verify().ok


def test_none_keeps_all(lake: Lake) -> None:
    """With `none`, nothing expires."""
    with days_later(4000):
        assert lake.maintenance.gc(history_age="none")[-3].expired == 0
    assert len([c for c in lake.log() if "transaction" in c.metadata]) == 12


def test_a_lake_of_an_earlier_release(tmp_path: Path) -> None:
    """With the default settings, an old lake keeps what its tags, branches and people's commits show."""
    assert find_history() == (7 * DAY_S, 30 * DAY_S)
    with tracelake.open(unpacked("journal-3", tmp_path)) as lake:
        (old,) = lake.log()
        lake.tag("release", old.id)
        for number in range(8):
            ingest(lake, tmp_path, number)
            if number == 2:
                lake.create_branch("side")
            if number == 4:
                lake.datasets.create("golden", message="mine", committer="me")
        mine = next(each.id for each in lake.log() if each.committer == "me")
        names = ("main", "side", "release", mine)
        before = {name: lake.table("spans", at=name).content_hash() for name in names}
        for days in (0, 8, 40, 400):
            with days_later(days):
                reports = [report for _ in range(3) for report in lake.maintenance.gc(epoch_min_s=0)]
            assert not any(report.damage for report in reports)
            assert {name: lake.table("spans", at=name).content_hash() for name in names} == before
            assert lake.verify().ok
        assert len(lake.log()) < 10
        ingest(lake, tmp_path, 8)
        assert lake.verify().ok


def test_commits_that_examples_name_stay(lake: Lake, tmp_path: Path) -> None:
    """The commit of the spans of an example stays, although no tag names it."""
    source = lake.log(limit=1)[0].id
    example = Example("0" * 32, "question", "answer", {}, Provenance("1" * 32, "2" * 16, source))
    file = write_file(context(lake).objects, to_bytes(example), context(lake).repository.epoch())
    context(lake).repository.commit_entries({example_path("golden", example.id): file}, message="add")
    for number in range(12, 15):
        ingest(lake, tmp_path, number)
    with days_later(40):
        lake.maintenance.gc(epoch_min_s=0)
    assert source in [commit.id for commit in lake.log()]


def test_the_command_and_the_log_say_what_expired(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """`gc` reports the number of expired commits, and `log` the oldest that can be read."""
    runner = CliRunner()
    monkeypatch.setenv("TRACELAKE_LAKE", lake.place)
    monkeypatch.setenv("COLUMNS", "200")
    with days_later(40):
        dry = runner.invoke(app, ["gc", "--dry-run"])
        assert "11 commits would expire" in dry.output
        told = runner.invoke(app, ["gc"])
        assert "11 commits expired" in told.output
    oldest = lake.log()[-1]
    log = runner.invoke(app, ["log"])
    assert f"11 older commits have expired; the oldest that can be read is {oldest.id[:12]}" in log.output
    missing = runner.invoke(app, ["tables", "--at", "main@3"])
    assert missing.exit_code != 0
    assert oldest.id[:12] in str(missing.exception)
    assert runner.invoke(app, ["log", "--json"]).output.startswith("[")


def test_the_log_says_why_a_commit_stays(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """`log` shows for each commit why it does not expire, and until when; --json adds two keys."""
    transactions = lake.log()
    lake.tag("v1", transactions[3].id)
    example = Example("0" * 32, "question", "", {}, Provenance("1" * 32, "2" * 16, transactions[6].id))
    file = write_file(context(lake).objects, to_bytes(example), context(lake).repository.epoch())
    context(lake).repository.commit_entries({example_path("golden", example.id): file}, committer="me")
    lake.create_branch("side", transactions[9].id)
    context(lake).repository.commit_entries({example_path("other", example.id): file}, "side")
    monkeypatch.setenv("COLUMNS", "250")

    def stays() -> dict[str, tuple[str, str | None]]:
        output = CliRunner().invoke(app, ["log", "--lake", lake.place, "--json"]).output
        return {each["id"]: (each["retained_because"], each["retained_until"]) for each in json.loads(output)}

    head, *_ = lake.log()
    at_once = stays()
    assert at_once[head.id] == ("head of main", None)
    assert at_once[transactions[0].id] == ("before a person's commit", None)
    assert at_once[transactions[1].id] == ("base of the next transaction", None)
    assert at_once[transactions[3].id] == ("tag v1", None)
    assert at_once[transactions[6].id] == ("named by a dataset", None)
    assert at_once[transactions[9].id] == ("several commits follow it", None)
    reason, until = at_once[transactions[2].id]
    assert reason == "young"
    end = datetime.fromisoformat(transactions[1].created_at) + timedelta(days=7)
    assert until == end.isoformat(timespec="seconds")
    text = CliRunner().invoke(app, ["log", "--lake", lake.place, "--limit", "3"]).output
    assert "head of main" in text
    monkeypatch.setenv("TRACELAKE_HISTORY_AGE", "none")
    assert set(stays().values()) == {("history does not expire", None)}


@pytest.mark.parametrize(
    ("age", "daily", "wanted"),
    [("7d", "30d", (7 * DAY_S, 30 * DAY_S)), ("none", "none", (None, 0.0)), ("1m", "2h", (60.0, 7200.0))],
)
def test_ages(age: str, daily: str, wanted: tuple[float | None, float]) -> None:
    """Ages are durations, or `none`."""
    assert find_history(age, daily) == wanted


@pytest.mark.parametrize("age", ["", "0m", "7", "7 days", "-1d", "all"])
def test_wrong_ages_are_refused(age: str) -> None:
    """Any other text is refused, and nothing is collected."""
    with pytest.raises(UsageError, match="duration"):
        find_history(age, "none")


def test_gc_runs_by_itself_once_an_epoch(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """A loop collects when an epoch is due, logs the result, and leaves the rest of the epoch to others."""
    loop, other = CollectionLoop(lake.maintenance), CollectionLoop(lake.maintenance)
    with days_later(40), caplog.at_level(logging.INFO, "tracelake.maintenance"):
        assert loop.turn() == 60.0
        assert "11 commits expired" in caplog.text
        caplog.clear()
        other.turn()
        assert caplog.text == ""
    assert lake.maintenance.gc_when_due() is None


def test_a_failing_collection_is_logged(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """A failure does not end the loop."""
    loop = CollectionLoop(lake.maintenance)
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "tracelake.maintenance"):
        patch.setattr(Maintenance, "gc_when_due", lambda _: int("x"))
        assert loop.turn() == 60.0
    assert "internal error" in caplog.text


def test_gc_can_be_switched_off(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the setting `gc`, no loop collects."""
    monkeypatch.setenv("TRACELAKE_GC", "false")
    with days_later(40):
        CollectionLoop(lake.maintenance).turn()
    assert len([c for c in lake.log() if "transaction" in c.metadata]) == 12


_WORDS = [f"{random.Random(number).getrandbits(30):x}" for number in range(4_000)]


def spans_of(minute: int) -> bytes:
    """Return a request of 100 spans with texts of 1 KB."""
    chance, data = random.Random(minute), TracesData()
    scope = data.resource_spans.add().scope_spans.add()
    for number in range(100):
        start_ns = time.time_ns() + number
        span = scope.spans.add(
            trace_id=random.Random(minute * 10 + number // 10).randbytes(16),
            span_id=chance.randbytes(8),
            name="work",
            start_time_unix_nano=start_ns,
            end_time_unix_nano=start_ns + 1_000,
        )
        text = " ".join(chance.choices(_WORDS, k=150))
        span.attributes.add(key="input.value").value.string_value = text
    return data.SerializeToString()


@pytest.mark.slow
def test_an_hour_of_small_transactions_takes_no_more_space_than_its_live_data(tmp_path: Path) -> None:
    """With history that expires after 7 minutes, an hour of transactions leaves tables and index of at most 1.15 times
    their size after one load. The number of objects is bounded at any time."""
    real, real_ns = time.time, time.time_ns
    clock = SimpleNamespace(ahead_s=-float(DAY_S))

    def size(lake: Lake) -> tuple[int, int]:
        objects, size_bytes = zip(stored(lake, "shards/"), stored(lake, "search/"), strict=True)
        return sum(objects), sum(size_bytes)

    def settle(lake: Lake) -> int:
        lake.maintenance.compact(runner=InProcess())
        clock.ahead_s += 3_600
        for _ in range(3):
            lake.maintenance.gc(epoch_min_s=0)
        return size(lake)[1]

    with (
        mock.patch("time.time", side_effect=lambda: real() + clock.ahead_s),
        mock.patch("time.time_ns", side_effect=lambda: real_ns() + int(clock.ahead_s * 1e9)),
        mock.patch.object(maintenance, "find_history", return_value=(420.0, 0.0)),
    ):
        with tracelake.init(tmp_path / "hour") as lake:
            for minute in range(60):
                file = tmp_path / f"{minute}.pb"
                file.write_bytes(spans_of(minute))
                lake.ingest(file, runner=InProcess())
                clock.ahead_s += 60
                if minute % 7 == 6:
                    lake.maintenance.gc(epoch_min_s=0)
                    assert size(lake)[0] <= 100, minute
                    assert len(lake.log(limit=1_000)) <= 10, minute
            after_hour = settle(lake)
            assert lake.table("spans").info().rows == 6_000
        with tracelake.init(tmp_path / "load") as lake:
            lake.ingest(str(tmp_path / "*.pb"), runner=InProcess())
            assert after_hour <= 1.15 * settle(lake)
