"""Large passes as tasks: the same traces are archived if any process runs a batch, runs it twice, or dies during
it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from tests.archive.place import HotLake
from tests.tracking.requests import span_numbers, trace_id
from tracelake._errors import TaskError
from tracelake.archive import candidates
from tracelake.archive.store import ArchiveStore
from tracelake.tasks.runners import InProcess

Make = Callable[..., HotLake]
TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
NUMBERS = range(1, 8)


class Elsewhere(InProcess):
    """A runner of tasks from their bytes, like another process; before each task, it calls `first` with it."""

    def __init__(
        self, first: Callable[[Callable[[Any], Any], Any], object] = lambda _run, _task: None
    ) -> None:
        self.payloads: list[bytes] = []
        self._first = first

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        self.payloads += [pickle.dumps(task) for task in tasks]
        for task in tasks:
            self._first(function, task)
        copies = [pickle.loads(pickle.dumps(task)) for task in tasks]
        return super().run(function, copies, on_done)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "ARCHIVE_BATCH_TRACES", 2)


@pytest.mark.parametrize("layout", ["lake", "trace", "pack"])
def test_batches_are_tasks_that_name_places_alone(make: Make, layout: str) -> None:
    """The report equals that of a pass in one process; a task's arguments contain no password."""
    lake, runner = make(layout), Elsewhere()
    lake.write(*((number, 1) for number in NUMBERS))
    told: list[int] = []
    report = lake.archive.run(runner=runner, on_progress=lambda so_far: told.append(so_far.fates["archived"]))
    assert report.fates == {"archived": 7}
    assert report.archived_bytes > 0
    assert (report.stored_bytes > 0) == (layout != "lake")
    assert (told, len(runner.payloads)) == ([7], 4)
    assert all(b"password" not in payload and b"PGPASS" not in payload for payload in runner.payloads)
    assert lake.hot(NUMBERS) == []
    assert lake.archive.sweep(0) == 0
    assert all(lake.archive.restore(trace_id(number)) for number in NUMBERS)


def test_a4_a_task_dies_after_its_upload_and_is_run_again(make: Make) -> None:
    """The dead task leaves objects that no trace names, and a sweep deletes them; the second run archives each
    trace once (A4)."""
    lake = make("trace")
    lake.write(*((number, 1) for number in NUMBERS))

    class DiedError(BaseException):
        """An error like a kill: nothing of the task continues."""

    def die(*_: object) -> None:
        raise DiedError

    def first(run: Callable[[Any], Any], task: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ArchiveStore, "finalize", die)
            with pytest.raises(DiedError):
                run(task)

    assert lake.archive.run(runner=Elsewhere(first)).fates == {"archived": 7}
    assert lake.archive.sweep(0) == 7
    assert lake.archive.sweep(0) == 0
    for number in NUMBERS:
        assert lake.archive.restore(trace_id(number))
        assert span_numbers(lake.tracking.traces([trace_id(number)])[trace_id(number)].data) == [1]


def test_a5_a_task_that_is_run_twice_archives_once(make: Make) -> None:
    """The second run of a task archives nothing and leaves no garbage; a failed job stops only later batches (A5)."""
    lake = make("pack")
    lake.write(*((number, 1) for number in NUMBERS))
    twice = Elsewhere(lambda run, task: run(task))
    assert lake.archive.run(runner=twice).fates == {"gone": 7}
    assert lake.hot(NUMBERS) == []
    assert lake.archive.sweep(0) == 0

    def lost(run: Callable[[Any], Any], task: Any) -> None:
        run(task)
        raise OSError("the executor is gone")

    lake.write(*((number, 2) for number in range(11, 15)))
    with pytest.raises(TaskError, match="the executor is gone"):
        lake.archive.run(runner=Elsewhere(lost))
    assert lake.hot(range(11, 15)) == [13, 14], "one batch was through"
    assert lake.archive.run(runner=Elsewhere()).fates == {"archived": 2}
    assert lake.archive.sweep(0) == 0
