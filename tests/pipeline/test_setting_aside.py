"""Input that no task can process is quarantined, named and left to the user's decision; everything else continues."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.poison import Poisoned, good, names, poisoned
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import DamageError, StorageError
from tracelake.doctor.doctor import _of_lake
from tracelake.limits import TRANSACTION_TRIES_MAX
from tracelake.pipeline.sources.registry import content_of
from tracelake.tasks.runners import InProcess


class Broken(InProcess):
    """Runner that fails every task."""

    def run(self, *_: Any) -> list[Any]:
        """Fail."""
        raise ValueError("no such codec")


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def fill(lake: Lake, segments: int, poison: int) -> str:
    """Put segments into the inbox, one of them poison; return its path."""
    for number in range(segments):
        data = poisoned(number) if number == poison else good(number)
        lake.objects.put(f"inbox/{number}.segment", data)
    return f"inbox/{poison}.segment"


def left(lake: Lake, prefix: str) -> list[str]:
    """Return the objects below a prefix."""
    return [info.path for info in lake.objects.list(prefix)]


@pytest.mark.parametrize("stage", ["read", "merge"])
@pytest.mark.parametrize("poison", [0, 2, 4])
def test_one_poisoned_segment_takes_no_other_down(lake: Lake, stage: str, poison: int) -> None:
    """After one run the good segments are in the tables; the poison one is named, and retried once repaired."""
    path = fill(lake, 5, poison)
    tasks = Poisoned(stage)
    pipeline = lake.pipeline(runner=tasks)
    report = pipeline.run_once()
    assert report is not None
    assert names(lake) == {0, 1, 2, 3, 4} - {poison}
    (aside,) = report.set_aside
    assert lake.quarantine.all() == [aside]
    assert (aside.path, aside.state, aside.reason) == (path, "set aside", "the sum does not fit")
    assert aside.tries == TRANSACTION_TRIES_MAX
    assert left(lake, "inbox/") == [path], "the acknowledged bytes stay"
    assert left(lake, "staging/") == []
    assert lake.inbox().segments == 0
    assert pipeline.run_once() is None, "it is not taken again by itself"
    assert lake.verify().ok
    assert f"pipeline retry {aside.transaction}" in aside.explain()

    tasks.mended = True
    (offered,) = lake.quarantine.retry(aside.transaction)
    assert offered.state == "offered"
    again = pipeline.run_once()
    assert again is not None
    assert again.spans_new == 1
    assert names(lake) == {0, 1, 2, 3, 4}
    assert (lake.quarantine.all(), left(lake, "inbox/"), pipeline.run_once()) == ([], [], None)
    assert lake.verify().ok


@pytest.mark.parametrize("stage", ["read", "merge"])
def test_what_is_discarded_is_named_for_ever(lake: Lake, stage: str) -> None:
    """Its segment is deleted, it is not taken again, and a second decision changes nothing."""
    fill(lake, 2, poison=1)
    pipeline = lake.pipeline(runner=Poisoned(stage))
    pipeline.run_once()
    (aside,) = lake.quarantine.all()
    (discarded,) = lake.quarantine.discard(aside.transaction)
    assert discarded.state == "discarded"
    assert left(lake, "inbox/") == []
    assert [item.state for item in lake.quarantine.retry(aside.transaction)] == ["discarded"]
    assert pipeline.run_once() is None
    assert [item.path for item in lake.quarantine.all()] == ["inbox/1.segment"]
    assert names(lake) == {0}
    assert lake.verify().ok


@pytest.mark.parametrize("stage", ["read", "merge"])
def test_retried_too_early_it_is_set_aside_again(lake: Lake, stage: str) -> None:
    """A retry of input that still fails ends in quarantine again, with or without other transactions in between."""
    fill(lake, 1, poison=0)
    pipeline = lake.pipeline(runner=Poisoned(stage))
    for number in range(3):
        pipeline.run_once()
        (aside,) = lake.quarantine.all()
        assert aside.state == "set aside"
        lake.quarantine.retry(aside.transaction)
        if number == 1:
            lake.objects.put("inbox/5.segment", good(5))
    pipeline.run_once()
    assert [item.state for item in lake.quarantine.all()] == ["set aside"]
    assert names(lake) == {5}
    assert left(lake, "inbox/") == ["inbox/0.segment"]


@pytest.mark.parametrize("stage", ["read", "merge"])
def test_a_poisoned_file_is_set_aside_by_its_content(lake: Lake, tmp_path: Path, stage: str) -> None:
    """Each ingest that meets the file names it, under any name; once repaired, it has other content and is
    ingested."""
    bad, fine = tmp_path / "bad.jsonl", tmp_path / "fine.jsonl"
    bad.write_bytes(a_line(a_span(0, 0, note="poison")))
    fine.write_bytes(a_line(a_span(1, 1)))
    tasks = Poisoned(stage)
    report = lake.ingest(bad, fine, runner=tasks)
    assert [item.path for item in report.set_aside] == [str(bad)]
    assert names(lake) == {1}
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(bad.read_bytes())
    failures = sum(tasks.failures.values())
    again = lake.ingest(copy, runner=tasks)
    assert [item.path for item in again.set_aside] == [str(copy)]
    assert sum(tasks.failures.values()) == failures, "it is not read again"
    bad.write_bytes(a_line(a_span(0, 0, note="mended")))
    lake.quarantine.retry(report.set_aside[0].transaction)
    assert lake.ingest(fine, runner=tasks).spans_new == 1, "what is offered is taken by any run"
    assert (names(lake), lake.quarantine.all()) == ({0, 1}, [])


def test_an_offered_file_that_changes_while_it_is_read_stays_offered(lake: Lake, tmp_path: Path) -> None:
    """An offered file stays offered if it changes during the read; the next run takes it."""
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(a_line(a_span(0, 0, note="poison")))
    tasks = Poisoned("read")
    report = lake.ingest(bad, runner=tasks)
    lake.quarantine.retry(report.set_aside[0].transaction)

    class Writer(InProcess):
        def run(self, *task: Any) -> list[Any]:
            bad.write_bytes(a_line(a_span(0, 0, note="new")))
            return super().run(*task)

    lake.pipeline(runner=Writer()).run_once()
    assert (names(lake), [item.state for item in lake.quarantine.all()]) == (set(), ["offered"])
    lake.pipeline(runner=InProcess()).run_once()
    assert (names(lake), lake.quarantine.all()) == ({0}, [])


def test_nothing_is_set_aside_when_no_task_works(lake: Lake) -> None:
    """If even a good input fails, the machine is at fault: the error is raised and nothing is quarantined."""

    fill(lake, 2, poison=5)
    with pytest.raises(ValueError, match="no such codec"):
        lake.pipeline(runner=Broken()).run_once()
    assert lake.quarantine.all() == []
    lake.pipeline(runner=InProcess()).run_once()
    assert names(lake) == {0, 1}


@pytest.mark.parametrize(
    "error", [StorageError("away"), OSError(28, "no space left"), DamageError("a part is torn")]
)
@pytest.mark.parametrize("stage", ["read", "merge"])
def test_failures_of_stores_and_machines_do_not_count(lake: Lake, stage: str, error: Exception) -> None:
    """Store and machine failures are raised at once; nothing is quarantined and staged rows are removed."""
    fill(lake, 2, poison=0)
    tasks = Poisoned(stage)
    tasks.error = error
    for _ in range(TRANSACTION_TRIES_MAX + 1):
        with pytest.raises(type(error)):
            lake.pipeline(runner=tasks).run_once()
        assert left(lake, "staging/pipeline/") == [], "a failing try leaves none of its rows"
    assert sum(tasks.failures.values()) == TRANSACTION_TRIES_MAX + 1
    assert lake.quarantine.all() == []
    tasks.mended = True
    lake.pipeline(runner=tasks).run_once()
    assert names(lake) == {0, 1}


def fail_to_open(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> None:
    """Make each attempt to open a file fail with a system error."""
    real_open = os.open

    def failing(name: Any, *rest: Any, **more: Any) -> int:
        if name == str(path):
            raise OSError(number, os.strerror(number))
        return real_open(name, *rest, **more)

    monkeypatch.setattr(os, "open", failing)


def stuck_on_a_changed_file(lake: Lake, folder: Path) -> tuple[Path, Path]:
    """Leave transaction 0 recorded, with two files and a segment, one of which then changes."""
    changed, same = folder / "changed.jsonl", folder / "same.jsonl"
    changed.write_bytes(a_line(a_span(0, 0)))
    same.write_bytes(a_line(a_span(1, 1)))
    for path in (changed, same):
        os.utime(path, (1, 1))
    lake.objects.put("inbox/2.segment", good(2))
    pipeline = lake.pipeline(watch=[str(folder / "*.jsonl")], runner=InProcess())

    def fail_after_the_seal(step: tracelake.Progress) -> None:
        if step.stage == "writing":
            raise StorageError("no store")

    with pytest.raises(StorageError):
        pipeline.run_once(fail_after_the_seal)
    changed.write_bytes(a_line(a_span(7, 7)))
    with pytest.raises(tracelake.SourceChangedError, match=r"retry 0.*discard 0"):
        lake.pipeline(runner=InProcess()).run_once()
    return changed, same


def test_j11_a_changed_source_can_be_taken_as_it_is_now(lake: Lake, tmp_path: Path) -> None:
    """J11: retry quarantines the stuck transaction, and all of its inputs are read again."""
    stuck_on_a_changed_file(lake, tmp_path)
    assert {item.state for item in lake.quarantine.retry(0)} == {"offered"}
    lake.pipeline(runner=InProcess()).run_once()
    assert names(lake) == {1, 2, 7}
    assert (lake.quarantine.all(), left(lake, "inbox/")) == ([], [])
    assert lake.verify().ok


def test_j11_a_changed_source_can_be_given_up(lake: Lake, tmp_path: Path) -> None:
    """J11: discard drops exactly the changed input, also if the file is gone."""
    changed, _ = stuck_on_a_changed_file(lake, tmp_path)
    changed.unlink()
    states = {Path(item.path).name: item.state for item in lake.quarantine.discard(0)}
    assert states == {"changed.jsonl": "discarded", "same.jsonl": "offered", "2.segment": "offered"}
    lake.pipeline(runner=InProcess()).run_once()
    assert names(lake) == {1, 2}
    assert [item.state for item in lake.quarantine.all()] == ["discarded"]
    assert "changed since the journal" in lake.quarantine.all()[0].reason
    assert lake.verify().ok


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_what_cannot_be_read_just_now_has_not_changed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A machine failure decides nothing: no input is dropped that would be readable a moment later."""
    _, same = stuck_on_a_changed_file(lake, tmp_path)
    fail_to_open(monkeypatch, same, number)
    for decide in (lake.quarantine.discard, lake.quarantine.retry):
        with pytest.raises(StorageError, match=r"same\.jsonl cannot be read: .*Nothing was decided"):
            decide(0)
    assert lake.quarantine.all() == []
    monkeypatch.undo()
    states = {Path(item.path).name: item.state for item in lake.quarantine.discard(0)}
    assert states == {"changed.jsonl": "discarded", "same.jsonl": "offered", "2.segment": "offered"}


def test_a_file_that_cannot_be_read_to_be_set_aside_waits(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poison file that cannot be opened at that moment is named, and the next run quarantines it."""
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(a_line(a_span(0, 0, note="poison")))
    os.utime(bad, (1, 1))
    tasks = Poisoned("read")
    pipeline = lake.pipeline(watch=[str(bad)], runner=tasks)

    def fail_once_it_was_tried(_: object) -> bool:
        fail_to_open(monkeypatch, bad, errno.EMFILE)
        return True

    monkeypatch.setattr("tracelake.pipeline.staging.InputReader.tasks_work", fail_once_it_was_tried)
    with pytest.raises(StorageError, match=r"including .*bad\.jsonl: cannot be read"):
        pipeline.run_once()
    monkeypatch.undo()
    pipeline.run_once()
    assert [item.path for item in lake.quarantine.all()] == [str(bad)]


def test_only_what_is_stuck_or_set_aside_can_be_decided(lake: Lake) -> None:
    """A decision on a finished or nonexistent transaction is refused by name."""
    lake.objects.put("inbox/0.segment", good(0))
    lake.pipeline(runner=InProcess()).run_once()
    for t in (0, 1, -1):
        with pytest.raises(tracelake.UsageError, match=f"no input of transaction {t} is set aside"):
            lake.quarantine.retry(t)


def test_a_lake_that_begins_with_poison_has_an_index(lake: Lake) -> None:
    """If the first transaction is empty, searches find nothing, and later input once it arrives."""
    fill(lake, 1, poison=0)
    lake.pipeline(runner=Poisoned("merge")).run_once()
    assert lake.search("work") == []
    (commit,) = lake.log()
    assert (commit.metadata["set_aside"], commit.metadata["spans_new"]) == ("pipeline", "0")
    assert "set aside" in commit.message
    lake.objects.put("inbox/1.segment", good(1))
    lake.pipeline(runner=InProcess()).run_once()
    assert len(lake.search("work")) == 1


def test_inputs_of_a_transaction_are_bounded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction's inputs are bounded by number and by the size of the journal's record; the rest waits for the
    next."""
    monkeypatch.setattr("tracelake.pipeline.decode_task.TRANSACTION_INPUTS_MAX", 4)
    monkeypatch.setattr("tracelake.pipeline.input_queue.STEP_RECORD_MAX_BYTES", 390)
    fill(lake, 9, poison=9)
    report = lake.pipeline(runner=InProcess()).run_once()
    assert report is not None
    assert report.transactions == (0, 1, 2, 3, 4)
    assert names(lake) == set(range(9))
    assert (left(lake, "inbox/"), left(lake, "staging/")) == ([], [])


@pytest.mark.parametrize("source", ["inbox", "files"])
def test_what_a_peer_takes_meanwhile_is_not_set_aside(lake: Lake, tmp_path: Path, source: str) -> None:
    """A replica that cannot read an input writes its record, then checks whether a peer could read it."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(a_line(a_span(0, 0, note="poison")))
    if source == "inbox":
        lake.objects.put("inbox/0.segment", poisoned(0))

    def overtaken(*of: Any) -> tuple[int, str]:
        content = content_of(*of)
        if source == "inbox":
            lake.pipeline(runner=InProcess()).run_once()
        else:
            lake.ingest(path, runner=InProcess())
        return content

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tracelake.pipeline.input_failures.content_of", overtaken)
        if source == "inbox":
            lake.pipeline(runner=Poisoned("read")).run_once()
        else:
            lake.ingest(path, runner=Poisoned("read"))
    assert (names(lake), lake.quarantine.all()) == ({0}, [])
    assert lake.verify().ok


@pytest.mark.parametrize("source", ["inbox", "files"])
@pytest.mark.parametrize("stage", ["read", "merge"])
def test_a_damaged_record_stops_nothing_but_its_own_input(
    lake: Lake, tmp_path: Path, source: str, stage: str
) -> None:
    """All other input is ingested; its own input is kept and named by each run until the record is restored."""
    path = tmp_path / "bad.jsonl"
    path.write_bytes(a_line(a_span(0, 0, note="poison")))
    tasks = Poisoned(stage)
    if source == "inbox":
        lake.objects.put("inbox/0.segment", poisoned(0))
        lake.pipeline(runner=tasks).run_once()
    else:
        lake.ingest(path, runner=tasks)
    records = lake._opened.key_value
    (entry,) = records.scan("suspects/main")
    records.set("suspects/main", entry.key, entry.value[:-1])
    failures = sum(tasks.failures.values())
    for number in (1, 2):
        lake.objects.put(f"inbox/{number}.segment", good(number))
        if source == "inbox":
            with pytest.raises(StorageError, match=rf"inbox/0\.segment: record suspects/main/{entry.key}"):
                lake.pipeline(runner=tasks).run_once()
        else:
            lake.pipeline(runner=tasks).run_once()
            report = lake.ingest(path, runner=tasks)
            assert "record suspects/main" in report.bad[0].problems[0].reason
        assert names(lake) == set(range(1, number + 1))
    assert sum(tasks.failures.values()) == failures, "it is not read again"
    assert left(lake, "inbox/") == ["inbox/0.segment"] * (source == "inbox")
    assert (lake.quarantine.all(), lake.inbox().segments) == ([], source == "inbox")
    assert [finding.path for finding in lake.verify().findings] == [f"suspects/main/{entry.key}"]
    check = next(check for check in _of_lake(lake) if check.name == "quarantine")
    verdict = check.run()
    assert (verdict.status, entry.key in verdict.message) == ("warning", True)
    records.set("suspects/main", entry.key, entry.value)
    assert check.run().status == "ok"
    assert [item.state for item in lake.quarantine.all()] == ["set aside"]
    lake.quarantine.retry(lake.quarantine.all()[0].transaction)
    tasks.mended = True
    lake.pipeline(runner=tasks).run_once()
    assert (names(lake), lake.quarantine.all()) == ({0, 1, 2}, [])


def test_a_transaction_is_passed_where_the_record_of_one_of_its_inputs_is_damaged(lake: Lake) -> None:
    """A transaction with an input whose record is damaged between retries is skipped, and the pipeline continues."""
    fill(lake, 1, poison=0)
    tasks = Poisoned("merge")
    lake.pipeline(runner=tasks).run_once()
    (entry,) = lake._opened.key_value.scan("suspects/main")
    lake.quarantine.retry(0)

    def damage(step: tracelake.Progress) -> None:
        if step.stage == "reading":
            lake._opened.key_value.set("suspects/main", entry.key, b"torn")

    tasks.error = OverflowError("too much")
    lake.pipeline(runner=tasks).run_once(damage)
    lake.objects.put("inbox/1.segment", good(1))
    with pytest.raises(StorageError, match="suspects/main"):
        lake.pipeline(runner=tasks).run_once()
    assert names(lake) == {1}
    assert left(lake, "inbox/") == ["inbox/0.segment"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_size_that_cannot_be_told_is_not_none(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A file of temporarily unknown size is not taken, forgotten or recorded; the others are ingested."""
    paths = [tmp_path / f"{index}.jsonl" for index in range(3)]
    for index, path in enumerate(paths):
        path.write_bytes(a_line(a_span(index, index, note=None if index else "poison")))
    tasks = Poisoned("read")
    lake.ingest(paths[0], runner=tasks)
    lake.quarantine.retry(lake.quarantine.all()[0].transaction)
    tasks.mended = True
    failing = {str(path) for path in paths[:2]}
    real_stat = Path.stat

    def fail(path: Path, **more: Any) -> os.stat_result:
        if str(path) in failing:
            raise OSError(number, os.strerror(number))
        return real_stat(path, **more)

    monkeypatch.setattr(Path, "stat", fail)
    report = lake.ingest(*paths[1:], runner=tasks)
    told = {Path(bad.path).name: bad.problems[0].reason for bad in report.bad}
    assert told == dict.fromkeys(("0.jsonl", "1.jsonl"), f"cannot be read: {os.strerror(number)}")
    assert names(lake) == {2}
    assert [item.state for item in lake.quarantine.all()] == ["offered"]
    failing.clear()
    assert lake.ingest(*paths[1:], runner=tasks).bad == ()
    assert (names(lake), lake.quarantine.all()) == ({0, 1, 2}, [])
