"""Failures of the machine during a merge, such as a full disk or a brief store error, do not count as damage."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import tracelake
from tests.lake.test_lake_merges import counts
from tests.lake.test_lake_search import ingest
from tests.machine import FAILURES
from tests.pipeline.spans import a_span
from tracelake import Lake, StorageError
from tracelake.indexing.build import IndexBuilder
from tracelake.indexing.merge import IndexMerger
from tracelake.limits import MAINTENANCE_TRIES
from tracelake.search.protocol import INDEX_FAN_OUT as FAN_OUT
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks.backoff import MAINTENANCE_PAUSE_MAX_S
from tracelake.tasks.runners import InProcess, ReceiptT, TaskT

RUNS = 2


class Failing(InProcess):
    """A merge task that fails like the machine a given number of times, and counts its inputs."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.always: dict[int, Exception] = {}
        """The error for each part that begins with this transaction."""
        self.calls = 0

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks, or fail."""
        self.calls += 1
        lower = getattr(getattr(tasks[0], "rows", None), "lower", -1)
        if lower in self.always:
            raise self.always[lower]
        if self.errors:
            raise self.errors.pop()
        return super().run(function, tasks, on_done)


class Merging:
    """A merger with a controllable clock."""

    def __init__(self, lake: Lake) -> None:
        self.runner, self.now_s = Failing(), 0.0
        stores = lake._opened.stores
        self.merger = IndexMerger(IndexBuilder(stores.key_value, stores.objects, 2, self.runner))
        self.merger._again._pauses._clock = lambda: self.now_s

    def waits_s(self) -> float:
        """Advance the clock until the merger retries, and return the elapsed time."""
        before_s = self.now_s
        while not self.merger.tries_again():
            assert self.now_s <= before_s + 2 * MAINTENANCE_PAUSE_MAX_S, "it waits for ever"
            self.now_s += 0.25
        return self.now_s - before_s


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Yield a lake with some runs that are due to be merged."""
    with opened(tmp_path) as lake:
        yield lake


def opened(folder: Path) -> Lake:
    """Return a lake with some runs that are due: of large transactions, and then of small ones."""
    lake = tracelake.init(folder / "lake", buckets=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
        patch.setattr(Maintainer, "maintain", lambda *_: None)
        for number in range(RUNS * FAN_OUT):
            spans = FAN_OUT**2 if number < FAN_OUT else 1
            ingest(lake, folder, number, *(a_span(100 * number + n, 0, note="word") for n in range(spans)))
    assert counts(lake)[1] == RUNS * FAN_OUT
    return lake


def check_left(lake: Lake, error: Exception) -> None:
    """Check that one error ends a call and skips nothing, and that a later call merges all without a commit."""
    merging = Merging(lake)
    merging.runner.errors = [error]
    merging.merger.maintain()
    assert (counts(lake)[1], merging.runner.calls) == (RUNS * FAN_OUT, 1), "nothing is passed by"
    merging.merger.maintain()
    assert merging.runner.calls == 1, "not before the pause is over"
    assert 0 < merging.waits_s() <= 2
    merging.merger.maintain()
    assert counts(lake)[1] == RUNS
    assert not merging.merger.tries_again()


@pytest.mark.parametrize("error", FAILURES, ids=str)
def test_an_error_of_the_machine_passes_nothing_by_and_is_tried_again(lake: Lake, error: Exception) -> None:
    """The merger retries after a pause, with or without new transactions."""
    check_left(lake, error)


def check_bound(lake: Lake, error: Exception) -> None:
    """Check that a run with permanent machine errors delays other merges for a few tries only."""
    merging = Merging(lake)
    merging.runner.always = {0: error}
    pauses_s = []
    for number in range(MAINTENANCE_TRIES + 8):
        merging.merger.maintain()
        assert (counts(lake)[1] < RUNS * FAN_OUT) == (number >= MAINTENANCE_TRIES)
        pauses_s.append(merging.waits_s())
    assert counts(lake)[1] == FAN_OUT + 1
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] > pauses_s[0]
    for _ in range(9):
        merging.merger.maintain()
        assert merging.waits_s() <= MAINTENANCE_PAUSE_MAX_S
    merging.runner.always = {}
    merging.merger.maintain()
    assert counts(lake)[1] == RUNS


@pytest.mark.parametrize("error", [MemoryError(), StorageError("not this one")], ids=str)
def test_what_fails_for_ever_is_passed_by_after_some_tries(lake: Lake, error: Exception) -> None:
    """Failing parts are retried with growing pauses, and merged once the cause is fixed."""
    check_bound(lake, error)


def check_transactions(lake: Lake, folder: Path) -> None:
    """Check that new transactions make a merger retry, and do not wait for failures."""
    merging = Merging(lake)
    merging.runner.errors = [OSError(errno.ENOSPC, "No space left on device")] * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Maintainer, "maintain", lambda *_: None)
        patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
        merging_maintain = patch_free(merging)
        merging_maintain()
        for number in range(FAN_OUT):
            ingest(lake, folder, 500 + number, a_span(5_000 + number, 0, note="word"))
            merging_maintain()
    assert merging.runner.calls == 2, "as many transactions later it is tried once more"
    assert len(lake.search("word", limit=1_000)) == FAN_OUT**3 + 2 * FAN_OUT


MAINTAIN = IndexMerger.maintain


def patch_free(merging: Merging) -> Callable[[], None]:
    """Return a call of a merger's function that is patched for other callers."""
    return lambda: MAINTAIN(merging.merger)


def test_transactions_go_on_beside_merges_that_fail(lake: Lake, tmp_path: Path) -> None:
    """A store that failed is retried before very many parts exist, for any length of its pause."""
    check_transactions(lake, tmp_path)
