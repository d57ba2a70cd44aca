"""Failures of the machine during compaction, such as a full disk, are not blamed on the input."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.machine import FAILURES
from tests.shards.modelled_shard import ORDER, Lab
from tracelake._errors import DamageError, StorageError, TaskError
from tracelake.limits import MAINTENANCE_TRIES
from tracelake.shards.compaction import CompactTask
from tracelake.shards.protocol import COMPACTION_FAN_OUT as FAN_OUT
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks.backoff import MAINTENANCE_PAUSE_MAX_S
from tracelake.tasks.runners import InProcess, ReceiptT, TaskT

DUE = 2 * FAN_OUT
"""Batches of two due runs: one of large batches, then one of small ones."""


class Failing(InProcess):
    """Runner that fails as the machine does, a given number of times or always at the first batch; counts its
    tasks."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.always: Exception | None = None
        self.first = ""
        self.calls = 0

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks, or fail."""
        self.calls += 1
        if self.always is not None and any(self.first in repr(task) for task in tasks):
            raise self.always
        if self.errors:
            raise self.errors.pop()
        assert all(isinstance(task, CompactTask) for task in tasks)
        return super().run(function, tasks, on_done)


class Compacting:
    """Maintainer with a separate clock and a shard with two due runs."""

    def __init__(self, folder: Path) -> None:
        self.lab, self.runner, self.now_s = Lab(folder), Failing(), 0.0
        for number in range(DUE):
            rows = FAN_OUT**2 if number < FAN_OUT else 1
            self.lab.upsert({f"k{number}-{row}": row for row in range(rows)})
        self.runner.first = self.lab.shard.batch(self.lab.shard.state().batches[0]).parts[0].path
        self.maintainer = self.lab.maintainer(self.runner)
        self.maintainer._again["s"]._pauses._clock = lambda: self.now_s

    def batches(self) -> int:
        """Compact the due runs, and return the number of batches."""
        self.maintainer.maintain(self.lab.shard, ORDER)
        return len(self.lab.shard.state().batches)

    def waits_s(self) -> float:
        """Advance the clock until the maintainer retries, and return the time that this took."""
        before_s = self.now_s
        while not self.maintainer.tries_again():
            assert self.now_s <= before_s + 2 * MAINTENANCE_PAUSE_MAX_S, "it waits for ever"
            self.now_s += 0.25
        return self.now_s - before_s


def check_left(folder: Path, error: Exception) -> None:
    """Check that one error ends a call, skips no run, and that all is compacted one pause later, without input."""
    compacting = Compacting(folder)
    compacting.runner.errors = [error]
    assert (compacting.batches(), compacting.runner.calls) == (DUE, 1), "nothing is passed by"
    assert (compacting.batches(), compacting.runner.calls) == (DUE, 1), "not before the pause is over"
    assert 0 < compacting.waits_s() <= 2
    assert compacting.batches() == 2
    assert not compacting.maintainer.tries_again()
    compacting.lab.check()


@pytest.mark.parametrize("error", FAILURES, ids=str)
def test_an_error_of_the_machine_passes_nothing_by_and_is_tried_again(
    tmp_path: Path, error: Exception
) -> None:
    """An error of the machine skips no run; it is retried after a pause, with or without new input."""
    check_left(tmp_path, error)


def check_damage(folder: Path, error: Exception) -> None:
    """Check that a damaged run is skipped at once, and retried later."""
    compacting = Compacting(folder)
    compacting.runner.always = error
    assert compacting.batches() == FAN_OUT + 1
    compacting.waits_s()
    compacting.runner.always = None
    assert compacting.batches() == 2
    assert not compacting.maintainer.tries_again()


@pytest.mark.parametrize(
    "error", [DamageError("torn"), TaskError("torn", kind="tracelake._errors.DamageError")], ids=repr
)
def test_damage_has_a_run_passed_by(tmp_path: Path, error: Exception) -> None:
    """A damaged run is skipped, whether the damage shows here or in a task, and retried without new input."""
    check_damage(tmp_path, error)


def check_bound(folder: Path, error: Exception) -> None:
    """Check that a run at which the machine always fails blocks other runs for a limited number of tries."""
    compacting = Compacting(folder)
    compacting.runner.always = error
    pauses_s = []
    for number in range(MAINTENANCE_TRIES + 8):
        assert compacting.batches() == (DUE if number < MAINTENANCE_TRIES else FAN_OUT + 1)
        pauses_s.append(compacting.waits_s())
    assert pauses_s == sorted(pauses_s)
    assert pauses_s[-1] > pauses_s[0]
    for _ in range(9):
        compacting.batches()
        assert compacting.waits_s() <= MAINTENANCE_PAUSE_MAX_S
    compacting.runner.always = None
    assert compacting.batches() == 2


@pytest.mark.parametrize("error", [MemoryError(), StorageError("not this one")], ids=str)
def test_what_fails_for_ever_is_passed_by_after_some_tries(tmp_path: Path, error: Exception) -> None:
    """A run that always fails is skipped after some tries, and retried with growing pauses until it succeeds."""
    check_bound(tmp_path, error)


def check_transactions(folder: Path) -> None:
    """Check that new transactions make a maintainer retry, but not each of them."""
    compacting = Compacting(folder)
    compacting.runner.errors = [OSError(errno.ENOSPC, "No space left on device")]
    compacting.batches()
    for number in range(FAN_OUT):
        assert compacting.runner.calls == 1, number
        compacting.lab.upsert({f"later{number}": number})
        compacting.batches()
    assert compacting.runner.calls > 1
    assert len(compacting.lab.shard.state().batches) == 2


def test_transactions_make_it_try_again(tmp_path: Path) -> None:
    """New transactions trigger a retry however long the pause is, because otherwise batches would accumulate."""
    check_transactions(tmp_path)


def test_who_maintains_once_goes_on_at_once(tmp_path: Path) -> None:
    """A one-time maintainer skips at once: it remembers no tries, so a permanent failure would block all newer
    runs."""
    compacting = Compacting(tmp_path)
    compacting.runner.always = MemoryError()
    once = Maintainer(
        compacting.lab.key_value, compacting.lab.objects, compacting.runner, lambda _: DUE, tries=0
    )
    once.maintain(compacting.lab.shard, ORDER)
    assert len(compacting.lab.shard.state().batches) == FAN_OUT + 1
