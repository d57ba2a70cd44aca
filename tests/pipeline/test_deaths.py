"""Runs that die repeatedly at the same input: the input is bisected and the poison input is quarantined."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

import tracelake
from tests.pipeline.poison import Poisoned, good, names, poisoned
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import StorageError
from tracelake.limits import TRANSACTION_TRIES_MAX
from tracelake.pipeline.decode_task import ReadTask
from tracelake.pipeline.input_failures import TRY_NOTES_MAX
from tracelake.pipeline.merge_task import TransactionMergeTask
from tracelake.tasks.runners import InProcess, TaskRunner

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
TASKS = {"read": ReadTask, "merge": TransactionMergeTask}


class Killed(BaseException):
    """Ends a process without an error message."""


class Killing(Poisoned):
    """Kills the process that reads, or merges, the poison input."""

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        try:
            return super().run(function, tasks, on_done)
        except OverflowError:
            raise Killed from None


class Preempted(InProcess):
    """Runner that is killed from outside, this many times, as it begins the tasks of a stage."""

    def __init__(self, stage: str, deaths: int) -> None:
        self.left = deaths
        self._kind = TASKS[stage]

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        if self.left and isinstance(tasks[0], self._kind):
            self.left -= 1
            raise Killed
        return super().run(function, tasks, on_done)


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _looks_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.pipeline.input_failures.TRY_BEAT_S", 0.0)


def run(lake: Lake, tasks: TaskRunner) -> bool:
    """Run once, as a separate process on a separate machine; return whether it survived."""
    try:
        lake.pipeline(runner=tasks).run_once()
    except Killed:
        return False
    return True


def runs_that_died(lake: Lake, tasks: TaskRunner) -> int:
    """Run until one run survives; return the number of deaths."""
    deaths = 0
    while not run(lake, tasks):
        deaths += 1
        assert deaths <= 3 * TRANSACTION_TRIES_MAX
    return deaths


def notes(lake: Lake) -> list[Any]:
    """Return the crash markers."""
    return lake._opened.key_value.notes("tries/main")


@pytest.mark.parametrize("stage", TASKS)
def test_what_kills_each_run_is_set_aside(lake: Lake, stage: str) -> None:
    """After enough deaths the input is bisected and the poison input is named; all others are ingested."""
    for number in range(4):
        lake.objects.put(f"inbox/{number}.segment", poisoned(number) if number == 2 else good(number))
    assert runs_that_died(lake, Killing(stage)) == TRANSACTION_TRIES_MAX + 1 + TRANSACTION_TRIES_MAX
    assert names(lake) == {0, 1, 3}
    (aside,) = lake.quarantine.all()
    assert (aside.path, aside.state, aside.tries) == ("inbox/2.segment", "set aside", TRANSACTION_TRIES_MAX)
    assert "ended without an error" in aside.reason
    assert [info.path for info in lake.objects.list("inbox/")] == ["inbox/2.segment"]
    assert notes(lake) == []
    assert lake.verify().ok


@pytest.mark.parametrize("stage", TASKS)
def test_what_kills_alone_kills_as_often_before_it_is_set_aside(lake: Lake, stage: str) -> None:
    """A single input is tried once more, alone, because deaths do not tell their reason."""
    lake.objects.put("inbox/0.segment", poisoned(0))
    tasks = Killing(stage)
    assert runs_that_died(lake, tasks) == 2 * TRANSACTION_TRIES_MAX
    (aside,) = lake.quarantine.all()
    assert (aside.state, aside.tries) == ("set aside", TRANSACTION_TRIES_MAX)
    tasks.mended = True
    lake.quarantine.retry(aside.transaction)
    assert run(lake, tasks)
    assert (names(lake), lake.quarantine.all(), notes(lake)) == ({0}, [], [])
    assert lake.verify().ok


@pytest.mark.parametrize("stage", TASKS)
def test_new_input_does_not_wait_for_what_kills(lake: Lake, stage: str) -> None:
    """Segments that arrive between the deaths are ingested no later than the first bisection."""
    lake.objects.put("inbox/0.segment", poisoned(0))
    tasks = Killing(stage)
    for number in range(1, 2 * TRANSACTION_TRIES_MAX):
        assert not run(lake, tasks)
        lake.objects.put(f"inbox/{number}.segment", good(number))
        if number > TRANSACTION_TRIES_MAX + 1:
            assert names(lake) >= set(range(1, number - 1))
    runs_that_died(lake, tasks)
    assert names(lake) == set(range(1, 2 * TRANSACTION_TRIES_MAX))
    assert [aside.path for aside in lake.quarantine.all()] == ["inbox/0.segment"]


def test_a_file_that_kills_whoever_reads_it_is_counted_across_transactions(
    lake: Lake, tmp_path: Path
) -> None:
    """Deaths count across transactions: other files are ingested between them."""
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(a_line(a_span(0, 0, note="poison")))
    deaths = 0
    for number in range(1, 3 * TRANSACTION_TRIES_MAX):
        fine = tmp_path / f"{number}.jsonl"
        fine.write_bytes(a_line(a_span(number, number)))
        for path in (fine, bad):
            try:
                lake.ingest(path, runner=Killing("read"))
            except Killed:
                deaths += 1
    assert deaths == 2 * TRANSACTION_TRIES_MAX
    assert [(aside.path, aside.state) for aside in lake.quarantine.all()] == [(str(bad), "set aside")]
    assert names(lake) == set(range(1, 3 * TRANSACTION_TRIES_MAX))


@pytest.mark.parametrize("stage", TASKS)
@pytest.mark.parametrize("inputs", [1, 4])
def test_good_input_that_is_killed_from_outside_is_taken(lake: Lake, stage: str, inputs: int) -> None:
    """TRANSACTION_TRIES_MAX deaths make an input suspected; it is then tried alone, taken, and no marker remains."""
    for number in range(inputs):
        lake.objects.put(f"inbox/{number}.segment", good(number))
    tasks = Preempted(stage, deaths=TRANSACTION_TRIES_MAX)
    assert runs_that_died(lake, tasks) == TRANSACTION_TRIES_MAX
    assert Counter(lake.sql("select span_id from spans")["span_id"].to_pylist()).most_common(1)[0][1] == 1
    assert names(lake) == set(range(inputs))
    commits = lake.log()
    assert sum(int(commit.metadata["spans_new"]) for commit in commits) == inputs
    assert ["set_aside" in commit.metadata for commit in commits].count(True) == (stage == "merge")
    assert (lake.quarantine.all(), list(lake.objects.list("inbox/")), notes(lake)) == ([], [], [])
    assert lake.verify().ok


@pytest.mark.parametrize("stage", TASKS)
def test_fewer_deaths_change_nothing(lake: Lake, stage: str) -> None:
    """With one death less, everything is taken in one transaction."""
    for number in range(4):
        lake.objects.put(f"inbox/{number}.segment", good(number))
    assert runs_that_died(lake, Preempted(stage, TRANSACTION_TRIES_MAX - 1)) == TRANSACTION_TRIES_MAX - 1
    assert len(lake.log()) == 1
    assert (names(lake), notes(lake)) == (set(range(4)), [])


def test_failures_that_are_told_are_no_deaths(lake: Lake) -> None:
    """Failures of the store or machine, or a user's stop, quarantine nothing, however often they happen."""
    for number in range(2):
        lake.objects.put(f"inbox/{number}.segment", poisoned(number) if number else good(number))
    for stage in TASKS:
        tasks = Killing(stage)
        for error in (StorageError("away"), OSError(28, "no space left"), KeyboardInterrupt()):
            tasks.error = error  # type: ignore[assignment]
            for _ in range(TRANSACTION_TRIES_MAX):
                with pytest.raises(type(error)):
                    lake.pipeline(runner=tasks).run_once()
        assert notes(lake) == []
    tasks.mended = True
    assert run(lake, tasks)
    assert (names(lake), lake.quarantine.all()) == ({0, 1}, [])


@pytest.mark.parametrize("stage", TASKS)
def test_a_machine_on_which_no_task_works_sets_nothing_aside(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """After the deaths a good input fails, too: the error is raised, and the count starts from zero."""
    lake.objects.put("inbox/0.segment", poisoned(0))
    tasks = Killing(stage)
    for _ in range(TRANSACTION_TRIES_MAX):
        assert not run(lake, tasks)
    monkeypatch.setattr("tracelake.pipeline.staging.tasks_work", lambda *_: False)
    with pytest.raises(tracelake.TracelakeError, match="ended without an error"):
        run(lake, tasks)
    assert lake.quarantine.all() == []
    tasks.mended = True
    assert run(lake, tasks)
    assert names(lake) == {0}


@pytest.mark.parametrize("stage", TASKS)
def test_who_shows_that_he_lives_is_not_counted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Processes on other machines that still send heartbeats at the same input are not counted as crashed."""
    for number in range(2):
        lake.objects.put(f"inbox/{number}.segment", good(number))
    for _ in range(TRANSACTION_TRIES_MAX):
        assert not run(lake, Preempted(stage, 1))

    def others_go_on(seconds: float) -> None:
        del seconds
        for entry in notes(lake):
            number = int(entry.value.split(b'"beats":')[1].split(b",")[0])
            value = entry.value.replace(b'"beats":%d' % number, b'"beats":%d' % (number + 1))
            lake._opened.key_value.note("tries/main", entry.key, value)

    monkeypatch.setattr("tracelake.pipeline.input_failures.time.sleep", others_go_on)
    assert run(lake, InProcess())
    (commit,) = lake.log()
    assert (commit.metadata["spans_new"], lake.quarantine.all()) == ("2", [])


def test_notes_have_an_end(lake: Lake) -> None:
    """A bounded number of unused markers is kept, and a damaged one is dropped."""
    lake._opened.key_value.note("tries/main", "zz", b"torn")
    for number in range(TRY_NOTES_MAX + 5):
        path = f"inbox/{number}.segment"
        lake.objects.put(path, good(number))
        assert not run(lake, Preempted("read", 1))
        lake.objects.delete(path)
    assert len(notes(lake)) == TRY_NOTES_MAX + 1
    assert b"torn" not in [entry.value for entry in notes(lake)]
