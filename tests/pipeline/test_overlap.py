"""Prefetch: the input of T+1 is read while T is merged and published, and used if it is unchanged at its turn."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

import tracelake
from tests.patience import HANG_S
from tests.pipeline.poison import good, names
from tracelake import Lake
from tracelake._errors import StorageError
from tracelake.journal.model import Step
from tracelake.journal.protocol import (
    Abandon,
    Append,
    Feed,
    OpenInputs,
    Publish,
    QuarantineInputs,
    ReadState,
    Stop,
)
from tracelake.pipeline.decode_task import ReadTask
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_failures import CrashMarkers
from tracelake.pipeline.input_queue import StartWork, in_thread, run_inline
from tracelake.pipeline.merge_task import TransactionMergeTask
from tracelake.pipeline.protocol import keeps, matches_prefetch, may_prefetch
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.pipeline.staging import STAGING
from tracelake.tasks.runners import InProcess, Progress
from tracelake.testing import Crashed

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")


class Watched(InProcess):
    """Runner in process that counts reads and calls a test's hook before a task."""

    def __init__(self, before: Callable[[Any], None] = lambda _: None) -> None:
        self.read: Counter[str] = Counter()
        self._before = before

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        for task in tasks:
            self._before(task)
            if isinstance(task, ReadTask):
                self.read.update(share.path for share in task.shares)
        return super().run(function, tasks, on_done)


def path_of(number: int) -> str:
    """Return the path of a segment by its number."""
    return f"inbox/{number}.segment"


def reads(task: object, number: int) -> bool:
    """Return whether a task reads a segment."""
    return isinstance(task, ReadTask) and any(share.path == path_of(number) for share in task.shares)


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Yield a lake with three segments, one for each transaction."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as lake:
        for number in range(3):
            lake.objects.put(path_of(number), good(number))
        yield lake


def run(lake: Lake, runner: InProcess, beside: StartWork = run_inline, **given: Any) -> list[int]:
    """Make a transaction of each segment; return the made ones."""
    pipeline = Pipeline("main", lake._opened.key_value, lake.objects, 1, runner, start_work=beside)
    runs = [[Input(INBOX, info.path, info.size_bytes)] for info in lake.objects.list("inbox/")]
    return pipeline.run(runs, **given).transactions


def test_input_is_read_while_the_transaction_before_is_merged(lake: Lake) -> None:
    """A merge that waits for the read of the next input succeeds; each input is read once."""
    is_read = threading.Event()

    def before(task: object) -> None:
        if reads(task, 1):
            is_read.set()
        if isinstance(task, TransactionMergeTask):
            assert is_read.wait(HANG_S)

    runner = Watched(before)
    assert run(lake, runner, in_thread) == [0, 1, 2]
    assert names(lake) == {0, 1, 2}
    assert runner.read == {path_of(number): 1 for number in range(3)}
    assert not list(lake.objects.list(STAGING))


@pytest.mark.parametrize("may_be_there", [False, True])
def test_what_a_peer_took_meanwhile_is_not_recorded(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, may_be_there: bool
) -> None:
    """A segment that a peer took before its turn is in no transaction, even if its absence cannot be confirmed."""
    head = lake.objects.head

    def unsure(path: str) -> Any:
        if path == path_of(1):
            raise StorageError("no reply")
        return head(path)

    def before(task: object) -> None:
        if isinstance(task, TransactionMergeTask) and task.transaction == 0:
            lake.objects.delete(path_of(1))
            if may_be_there:
                monkeypatch.setattr(lake.objects, "head", unsure)

    runner = Watched(before)
    assert run(lake, runner) == [0, 1]
    assert names(lake) == {0, 2}
    assert not list(lake.objects.list(STAGING))


def test_who_is_told_to_stop_leaves_what_was_read_ahead(lake: Lake) -> None:
    """A stop finishes the transaction in progress, begins no other, and leaves only the segments."""
    stopping = threading.Event()

    def before(task: object) -> None:
        if isinstance(task, TransactionMergeTask):
            stopping.set()

    runner = Watched(before)
    assert run(lake, runner, stopping=stopping.is_set) == [0]
    assert runner.read[path_of(1)] == 1
    assert not list(lake.objects.list(STAGING))
    assert run(lake, Watched()) == [1, 2]
    assert names(lake) == {0, 1, 2}


def test_a_transaction_that_fails_drops_what_was_read_ahead(lake: Lake) -> None:
    """The transaction is retried without prefetch; all inputs are ingested."""
    failures = iter([OverflowError("the sum does not fit")])

    def before(task: object) -> None:
        if isinstance(task, TransactionMergeTask) and (failure := next(failures, None)):
            raise failure
        if isinstance(task, TransactionMergeTask) and task.transaction == 0:
            assert (
                len({info.path.split("/")[2].partition("-")[0] for info in lake.objects.list(STAGING)}) == 1
            ), "its own rows alone"

    runner = Watched(before)
    assert run(lake, runner) == [0, 1, 2]
    assert names(lake) == {0, 1, 2}
    assert runner.read == {path_of(0): 2, path_of(1): 2, path_of(2): 1}
    assert not list(lake.objects.list(STAGING))


def test_what_fails_ahead_counts_when_its_turn_has_come(lake: Lake) -> None:
    """A segment on which tasks fail is quarantined alone at its turn; the concurrent transaction is unaffected."""

    def before(task: object) -> None:
        if reads(task, 1):
            raise OverflowError("the sum does not fit")

    assert run(lake, Watched(before)) == [0, 1]
    assert names(lake) == {0, 2}
    assert [(suspect.path, suspect.transaction) for suspect in lake.quarantine.all()] == [(path_of(1), 1)]


def test_what_was_not_read_whole_ahead_is_read_again(lake: Lake) -> None:
    """An incompletely prefetched input is read again: the transaction has its current content."""
    whole = lake.objects.get(path_of(1))

    def before(task: object) -> None:
        if reads(task, 1) and runner.read[path_of(1)] == 0:
            lake.objects.put(path_of(1), whole[:-9])
        if isinstance(task, TransactionMergeTask):
            lake.objects.put(path_of(1), whole)

    runner = Watched(before)
    assert run(lake, runner) == [0, 1, 2]
    assert names(lake) == {0, 1, 2}
    assert runner.read[path_of(1)] == 2
    assert not list(lake.objects.list(STAGING))


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_where_nothing_can_be_read_beside_it_is_read_in_turn(lake: Lake, error: Exception) -> None:
    """If no thread can start, the input is read in turn, and no marker remains."""

    def refused(_: Callable[[], None]) -> Callable[[], None]:
        assert len(lake._opened.key_value.notes("tries/main")) == 2
        raise error

    assert run(lake, Watched(), refused) == [0, 1, 2]
    assert names(lake) == {0, 1, 2}
    assert not lake._opened.key_value.notes("tries/main")


def test_who_is_told_to_stop_does_not_wait_until_it_is_read(lake: Lake) -> None:
    """A stop ends the read in progress after its next task."""
    stopping = threading.Event()
    read: list[bool] = []

    def before(task: object) -> None:
        if isinstance(task, TransactionMergeTask):
            stopping.set()

    def follow(step: Progress) -> None:
        if step.stage == "reading":
            read.append(stopping.is_set())

    assert run(lake, Watched(before), lambda work: work, stopping=stopping.is_set, progress=follow) == [0]
    assert set(read) == {False}
    assert not list(lake.objects.list(STAGING))


@pytest.mark.parametrize(("path", "totals"), [("inbox/gone.segment", [2, 3, 3]), (path_of(2), [2, 2, 3])])
def test_only_who_died_of_this_input_stands_in_its_way(lake: Lake, path: str, totals: list[int]) -> None:
    """Only crashes on this input block its prefetch; a leftover marker of a vanished input does not disable
    prefetch for ever."""
    earlier = -1
    CrashMarkers(lake._opened.key_value, "main").begin(earlier, [Input(INBOX, path, 5)])
    assert read_before_merges(lake) == totals


def read_before_merges(lake: Lake) -> list[int]:
    """Run; return the number of inputs read at the start of each merge."""
    totals: list[int] = []

    def before(task: object) -> None:
        if isinstance(task, TransactionMergeTask):
            totals.append(runner.read.total())

    runner = Watched(before)
    assert run(lake, runner) == [0, 1, 2]
    assert names(lake) == {0, 1, 2}
    return totals


def test_who_dies_reading_ahead_leaves_a_note_of_both(lake: Lake) -> None:
    """A death during prefetch leaves markers of both inputs, so the next run uses workers and no prefetch at first."""

    def before(task: object) -> None:
        if reads(task, 1):
            raise Crashed("killed")

    with pytest.raises(Crashed):
        run(lake, Watched(before))
    assert len(lake._opened.key_value.notes("tries/main")) == 2
    assert read_before_merges(lake) == [1, 2, 3]


def test_nothing_is_read_beside_a_replay(lake: Lake) -> None:
    """A recorded and unpublished transaction is finished first; then transactions overlap again."""

    def before(task: object) -> None:
        if isinstance(task, TransactionMergeTask):
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        run(lake, Watched(before))
    assert not list(lake.objects.list(STAGING))
    assert read_before_merges(lake) == [1, 3, 3]


STEP = Step(3, {}, "1")


@pytest.mark.parametrize(
    ("action", "kept"),
    [
        (ReadState(3), True),
        (OpenInputs(3), True),
        (Feed(STEP), False),
        (Append(3, 0), False),
        (Publish(3), False),
        (QuarantineInputs(3), False),
        (Abandon(3), False),
        (Stop(), False),
    ],
)
def test_only_the_next_new_input_may_follow(action: Any, *, kept: bool) -> None:
    """Any other action first (a peer's step, a failure, the end) discards the prefetched input."""
    assert keeps(action) is kept


@pytest.mark.parametrize(
    ("is_new", "is_alone", "is_stopping"), [(i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)]
)
def test_nothing_is_read_beside_what_is_suspected(is_new: int, is_alone: int, is_stopping: int) -> None:
    """Nothing is prefetched during a replay, next to another process's crash or work, or before the end."""
    expected = bool(is_new and is_alone and not is_stopping)
    assert (
        may_prefetch(is_new=bool(is_new), is_alone=bool(is_alone), is_stopping=bool(is_stopping)) is expected
    )


def test_what_was_read_ahead_stands_for_the_same_inputs_alone() -> None:
    """Prefetched rows count only for the same inputs, of the same sizes, in the same order."""
    one, two = Input(INBOX, "1", 5), Input(INBOX, "2", 5)
    assert matches_prefetch([one, two], [one, two])
    for other in ([two, one], [one], [one, two, two], [one, Input(INBOX, "2", 6)], []):
        assert not matches_prefetch([one, two], other)
