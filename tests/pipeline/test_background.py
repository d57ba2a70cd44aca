"""The loop that runs the pipeline in the server."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from threading import Event

import pytest

from tests.patience import HANG_S
from tracelake import limits
from tracelake._errors import StorageError, UnreadInputsError
from tracelake.pipeline.continuous import PipelineLoop


class Runs:
    """A pipeline whose first runs fail; signals after a number of runs."""

    def __init__(self, failures: int, until: int) -> None:
        """Fail this many times, then find nothing."""
        self.count = 0
        self.reached = Event()
        self.during: Callable[[], None] = lambda: None
        self.error: type[StorageError] = StorageError
        self._failures, self._until = failures, until

    def run_once(self) -> None:
        """Run."""
        self.count += 1
        self.during()
        if self.count >= self._until:
            self.reached.set()
        if self.count <= self._failures:
            raise self.error("no store" if self.error is UnreadInputsError else f"no store, run {self.count}")


def test_failures_are_shown_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged and shown; after a successful run it is no longer shown."""
    runs, seen = Runs(failures=2, until=4), []
    loop = PipelineLoop(runs.run_once, 0.001)
    runs.during = lambda: seen.append(loop.problem())
    loop.start()
    assert runs.reached.wait(HANG_S)
    loop.stop()
    assert seen[0] is None
    assert "failed 1 times, last: no store, run 1" in str(seen[1])
    assert "failed 2 times" in str(seen[2])
    assert loop.problem() is None
    assert "the inbox keeps its input" in caplog.text


def test_pauses_grow_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backoff after failures grows to its limit."""
    monkeypatch.setattr(limits, "PIPELINE_PAUSE_MAX_S", 0.02)
    runs = Runs(failures=100, until=10)
    loop = PipelineLoop(runs.run_once, 0.01)
    loop.start()
    assert runs.reached.wait(HANG_S)
    loop.stop()


def test_inputs_that_cannot_be_read_slow_no_other_down() -> None:
    """The loop keeps its pace and logs unreadable inputs once; `problem` reports them as long as they last."""
    told: list[float] = []
    runs = Runs(failures=20, until=21)
    runs.error = UnreadInputsError
    loop = PipelineLoop(runs.run_once, 0.001, lambda _, pause_s: told.append(pause_s))
    runs.during = lambda: problems.append(loop.problem())
    problems: list[str | None] = []
    loop.start()
    assert runs.reached.wait(HANG_S)
    loop.stop()
    assert (told, problems[:3]) == ([0.001], [None, "no store", "no store"])
    assert loop.problem() is None


def test_inputs_that_cannot_be_read_are_told_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """An unreadable source is logged without a traceback, because its owner must repair it and code locations do
    not help."""
    runs = Runs(failures=3, until=4)
    runs.error = UnreadInputsError
    loop = PipelineLoop(runs.run_once, 0.001)
    loop.start()
    assert runs.reached.wait(HANG_S)
    loop.stop()
    assert [(record.message, record.exc_info) for record in caplog.records] == [("no store", None)]


def test_stop_lets_a_run_finish() -> None:
    """Stop returns after the run in progress, and no other begins."""
    runs, release = Runs(failures=0, until=1), Event()
    runs.during = lambda: release.set() if not release.is_set() else None
    loop = PipelineLoop(runs.run_once, 60.0)
    loop.start()
    assert release.wait(HANG_S)
    loop.stop()
    assert runs.count == 1


def test_a_full_disk_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """While attempts keep finding a full disk, the log has one line about it, without a traceback."""

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    runs = Runs(failures=0, until=5)
    runs.during = full
    loop = PipelineLoop(runs.run_once, 0.001)
    loop.start()
    deadline = time.monotonic() + HANG_S
    while runs.count < 5:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    loop.stop()
    (record,) = caplog.records
    assert record.exc_info is None
    assert "a disk is full" in record.message
