"""Runs that are killed at a transaction, again and again: it is narrowed, and what is at fault is set aside."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import pytest

import tracelake
from tests.pipeline.poison import Poisoned, good, names, poisoned
from tracelake import Lake
from tracelake._errors import StorageError
from tracelake.limits import TRANSACTION_TRIES_MAX
from tracelake.pipeline.executors import InProcess

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")


class Killed(BaseException):
    """Ends a process without a word."""


class Killing(Poisoned):
    """Kills the process that merges the poison."""

    def __init__(self) -> None:
        super().__init__("merge")

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        try:
            return super().run(function, tasks, on_done)
        except OverflowError:
            raise Killed from None


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


def run(lake: Lake, tasks: InProcess, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run once, as a process of its own; return whether it lived to the end."""
    monkeypatch.setattr("tracelake.pipeline.tries.PROCESS", uuid.uuid4().hex)
    try:
        lake.pipeline(executor=tasks).run_once()
    except Killed:
        return False
    return True


def test_what_kills_each_run_is_set_aside(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many deaths the transaction is narrowed, and the input that kills alone is named; all others are in."""
    for number in range(4):
        lake.objects.put(f"inbox/{number}.segment", poisoned(number) if number == 2 else good(number))
    tasks = Killing()
    deaths = 0
    while not run(lake, tasks, monkeypatch):
        deaths += 1
        assert deaths <= 3 * TRANSACTION_TRIES_MAX
    assert deaths == TRANSACTION_TRIES_MAX + 1 + TRANSACTION_TRIES_MAX
    assert names(lake) == {0, 1, 3}
    (aside,) = lake.quarantine()
    assert (aside.path, aside.state, aside.tries) == ("inbox/2.segment", "set aside", TRANSACTION_TRIES_MAX)
    assert "ended without a word" in aside.reason
    assert [info.path for info in lake.objects.list("inbox/")] == ["inbox/2.segment"]
    assert lake._key_value.notes("tries/main") == []
    assert lake.verify().ok


def test_failures_that_are_told_are_no_deaths(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the store fails, the machine, or the user ends it: nothing is set aside."""
    for number in range(2):
        lake.objects.put(f"inbox/{number}.segment", poisoned(number) if number else good(number))
    tasks = Killing()
    tasks.stage = "merge"
    for error in (StorageError("away"), OSError(28, "no space left"), StorageError("away")):
        tasks.error = error
        for _ in range(TRANSACTION_TRIES_MAX):
            monkeypatch.setattr("tracelake.pipeline.tries.PROCESS", uuid.uuid4().hex)
            with pytest.raises(type(error)):
                lake.pipeline(executor=tasks).run_once()
    assert lake._key_value.notes("tries/main") == []
    tasks.mended = True
    assert run(lake, tasks, monkeypatch)
    assert (names(lake), lake.quarantine()) == ({0, 1}, [])


def test_a_machine_on_which_no_task_works_sets_nothing_aside(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the deaths a good input fails, too: the error is raised, and the tries count from the beginning."""
    lake.objects.put("inbox/0.segment", poisoned(0))
    tasks = Killing()
    for _ in range(TRANSACTION_TRIES_MAX):
        assert not run(lake, tasks, monkeypatch)
    monkeypatch.setattr("tracelake.pipeline.taking.tasks_work", lambda *_: False)
    with pytest.raises(tracelake.TracelakeError, match="ended without a word"):
        run(lake, tasks, monkeypatch)
    assert lake.quarantine() == []
    tasks.mended = True
    assert run(lake, tasks, monkeypatch)
    assert names(lake) == {0}
