"""Only completely read inputs count: no span is lost, whatever happens to an input between two tasks."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import IngestReport, Lake
from tracelake.otlp import decode
from tracelake.otlp.framing import write_segment
from tracelake.pipeline import decode_task
from tracelake.pipeline.decode_task import ReadTask
from tracelake.tasks.runners import InProcess

LINES = b"\n".join(a_line(a_span(number, 0)) for number in range(12))
OTHER = LINES.replace(b"work", b"play")


@pytest.fixture(name="lake")
def fixture_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a new lake that reads small inputs with four tasks."""
    monkeypatch.setattr(decode_task, "STRIPE_INPUT_BYTES", len(LINES) // 4)
    monkeypatch.setattr(decode_task, "STRIPES_MAX", 4)
    with tracelake.init(tmp_path / "lake") as opened:
        yield opened


def _stripes(task: ReadTask) -> list[tuple[int, str]]:
    return [(share.stripe, share.path) for share in task.shares]


class Meddling(InProcess):
    """Changes the inputs once before the task that reads a given stripe."""

    def __init__(self, stripe: int, path: Path | str, meddle: Callable[[], object]) -> None:
        self._at = (stripe, str(path))
        self._meddle: list[Callable[[], object]] = [meddle]

    def run(self, function: Any, tasks: Sequence[Any], on_done: Any) -> list[Any]:
        def meddled(task: Any) -> Any:
            if isinstance(task, ReadTask) and self._meddle and self._at in _stripes(task):
                self._meddle.pop()()
            return function(task)

        return super().run(meddled, tasks, on_done)


def nothing_is_left_over(lake: Lake) -> bool:
    """Return whether no rows of inputs that were not taken remain, and the lake is intact."""
    return not list(lake.objects.list("staging/")) and lake.verify().ok


@pytest.mark.parametrize("stripe", range(4))
@pytest.mark.parametrize("what", ["renamed", "replaced", "cut", "now a pipe"])
def test_a_file_that_changes_between_its_tasks(lake: Lake, tmp_path: Path, what: str, stripe: int) -> None:
    """No row of the changed file is taken, it is named and not recorded; the other file is ingested. The next run
    takes it."""
    path, good = tmp_path / "big.jsonl", tmp_path / "good.jsonl"
    path.write_bytes(LINES)
    good.write_bytes(a_line(a_span(100, 0)))

    def meddle() -> None:
        path.rename(tmp_path / "away")
        if what == "replaced":
            path.write_bytes(OTHER)
        elif what == "cut":
            path.write_bytes(LINES[: len(LINES) // 2])
        elif what == "now a pipe":
            os.mkfifo(path)

    report = lake.ingest(path, good, runner=Meddling(stripe, path, meddle))
    if what == "replaced" and stripe == 0:  # all tasks have read the same file
        assert (report.spans_new, report.bad) == (13, ())
        return
    assert report.spans_new == 1
    (bad,) = report.bad
    assert (bad.path, bad.problems_total) == (str(path), 1)
    if stripe > 0:
        how = {"renamed": r" \(cannot be read: No such file.*\)", "now a pipe": r" \(a named pipe.*\)"}.get(
            what, ""
        )
        assert re.match(f"changed while it was read{how}, so nothing", bad.problems[0].reason)
    assert nothing_is_left_over(lake)
    (tmp_path / "away").replace(path)
    again = lake.ingest(path, runner=InProcess())
    assert (again.files_known, again.spans_new, again.bad) == (0, 12, ())


def test_what_is_appended_while_it_is_read_is_the_next_input(lake: Lake, tmp_path: Path) -> None:
    """A file that grows during its tasks is taken as it was; the next run takes the rest."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(LINES)

    def append() -> None:
        with path.open("ab") as file:
            file.write(b"\n" + a_line(a_span(50, 0)))

    first = lake.ingest(path, runner=Meddling(2, path, append))
    assert (first.spans_new, first.bad) == (12, ())
    again = lake.ingest(path, runner=InProcess())
    assert (again.files_known, again.spans_new, again.spans_repeated) == (0, 1, 12)


def failing_open(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> list[int]:
    """Make opening a file fail that many times from the third on, as if no descriptor were free."""
    opened: list[int] = []
    real = os.open

    def opens(name: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(name) == str(path):
            opened.append(flags)
            if 2 < len(opened) <= 2 + number:
                raise OSError(errno.EMFILE, "Too many open files")
        return real(name, flags, *more, **named)

    monkeypatch.setattr("tracelake.otlp.decode.os.open", opens)
    return opened


def test_a_file_that_cannot_be_opened_for_a_moment(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one of four tasks gets no descriptor, no row of the file is taken or recorded."""
    path = tmp_path / "big.jsonl"
    path.write_bytes(LINES)
    failing_open(monkeypatch, path, 1)
    report = lake.ingest(path, runner=InProcess())
    assert report.spans_new == 0
    assert [bad.problems[0].reason for bad in report.bad] == ["cannot be read: Too many open files"]
    again = lake.ingest(path, runner=InProcess())
    assert (again.files_known, again.spans_new) == (0, 12)
    assert nothing_is_left_over(lake)


def test_a_segment_that_cannot_be_opened_for_a_moment_is_kept(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledged segment that cannot be opened is kept with a warning; others are ingested, and the next run
    takes it."""
    big = write_segment([("json", line) for line in LINES.split(b"\n")])
    monkeypatch.setattr(decode_task, "STRIPE_INPUT_BYTES", len(big) // 4)
    lake.objects.put("inbox/1.segment", big)
    lake.objects.put("inbox/2.segment", write_segment([("json", a_line(a_span(100, 0)))]))
    failing_open(monkeypatch, tmp_path / "lake" / "inbox" / "1.segment", 1)
    pipeline = lake.pipeline(runner=InProcess())
    with pytest.raises(tracelake.StorageError, match=r"1\.segment: cannot be read: Too many"):
        pipeline.run_once()
    assert pipeline.replica().status == "waiting"
    assert pipeline.replica().reason.startswith("for 1 of the inputs")
    assert lake.table("spans").info().rows == 1
    assert [info.path for info in lake.objects.list("inbox/")] == ["inbox/1.segment"]
    report = pipeline.run_once()
    assert report is not None
    assert (report.spans_new, pipeline.replica().status) == (12, "idle")
    assert list(lake.objects.list("inbox/")) == []
    assert nothing_is_left_over(lake)


def test_a_disk_that_fails_in_the_middle_of_a_file(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines before the error do not count as the whole file: it is read again, completely."""
    path = tmp_path / "in" / "big.jsonl"
    path.parent.mkdir()
    path.write_bytes(LINES)
    os.utime(path, (1, 1))
    read, failures = decode.InputFile.read, [OSError(errno.EIO, "Input/output error")]

    def failing_read(self: decode.InputFile, size_bytes: int) -> bytes:
        block = read(self, min(size_bytes, 1000))
        if len(block) == 1000 and failures:
            raise failures.pop()
        return block

    monkeypatch.setattr(decode.InputFile, "read", failing_read)
    pipeline = lake.pipeline(watch=[str(path)], runner=InProcess())
    with pytest.raises(tracelake.StorageError, match="cannot be read: Input/output error"):
        pipeline.run_once()
    report = pipeline.run_once()
    assert report is not None
    assert (report.files_known, report.spans_new) == (0, 12)
    assert pipeline.run_once() is None


def test_a_replay_that_cannot_read_for_a_moment(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded file that cannot be opened now is not changed: the run fails, and the next one continues."""
    path = tmp_path / "big.jsonl"
    path.write_bytes(LINES)
    after_the_step(lake, path)
    failing_open(monkeypatch, path, 1)
    with pytest.raises(tracelake.StorageError, match=r"transaction 0: .*Too many open files"):
        lake.ingest(path, runner=InProcess())
    assert lake.ingest(path, runner=InProcess()).recovered == (0,)
    assert lake.table("spans").info().rows == 12


def after_the_step(lake: Lake, path: Path) -> None:
    """Record the file as the input of a transaction, and die."""

    def die(step: tracelake.Progress) -> None:
        if step.stage == "writing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.ingest(path, runner=InProcess(), progress=die)


@pytest.mark.parametrize("stripe", range(4))
def test_a_file_that_is_replaced_while_it_is_replayed(lake: Lake, tmp_path: Path, stripe: int) -> None:
    """Rows of another file never replace those that the journal recorded."""
    path = tmp_path / "big.jsonl"
    path.write_bytes(LINES)
    after_the_step(lake, path)

    def replace() -> None:
        (tmp_path / "other").write_bytes(OTHER)
        (tmp_path / "other").replace(path)

    with pytest.raises(tracelake.SourceChangedError, match=r"big\.jsonl has changed"):
        lake.ingest(path, runner=Meddling(stripe, path, replace))
    assert lake.log() == []
    path.write_bytes(LINES)
    report: IngestReport = lake.ingest(path, runner=InProcess())
    assert (report.recovered, report.spans_new) == ((0,), 12)


def test_a_file_that_grew_after_its_step_is_replayed(lake: Lake, tmp_path: Path) -> None:
    """The recorded bytes still exist: they are the transaction, and the grown file is a new input."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(LINES)
    after_the_step(lake, path)
    path.write_bytes(LINES + b"\n" + a_line(a_span(50, 0)))
    report = lake.ingest(path, runner=InProcess())
    assert (report.recovered, report.transactions, report.bad) == ((0,), (0, 1), ())
    assert (report.spans_new, report.spans_repeated) == (13, 12)
    assert lake.verify().ok
