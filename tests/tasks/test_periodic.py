"""Periodic threads: when the step runs, and how the thread ends. Pauses between retries."""

from __future__ import annotations

import logging
import threading
from queue import Queue

import pytest

from tests.patience import HANG_S, wait_until
from tracelake._errors import StorageError
from tracelake.tasks.backoff import FailureLog, PeriodicThread, Throttle, backoff_s


def test_wake_and_stop_end_a_pause() -> None:
    """A thread in a long pause runs its step when it is woken, and ends at once when it is stopped."""
    steps: Queue[None] = Queue()

    def step() -> float:
        steps.put(None)
        return 3600.0

    with PeriodicThread("periodic", step) as thread:
        steps.get(timeout=HANG_S)
        wait_until(thread.is_waiting, "the first step did not end")
        thread.wake()
        steps.get(timeout=HANG_S)
    assert thread.stop(0.0)
    assert (steps.empty(), thread.has_died()) == (True, False)


def test_a_step_can_end_its_thread() -> None:
    """None ends the thread; it then counts as one that died, because nothing stopped it."""
    thread = PeriodicThread("periodic", lambda: None)
    assert (thread.has_died(), thread.stopping()) == (False, False)
    thread.start()
    wait_until(thread.has_died, "the thread did not end")


def test_stop_waits_no_longer_than_asked() -> None:
    """`stop` reports a step that did not end in time, and a thread that was never started has ended."""
    release = threading.Event()
    thread = PeriodicThread("periodic", lambda: 3600.0 if release.wait(HANG_S) else None)
    thread.start()
    assert not thread.stop(0.01)
    release.set()
    assert thread.stop(HANG_S)
    late = PeriodicThread("periodic", lambda: 0.0, first_pause_s=3600.0)
    assert late.stop(0.0)


def test_failures_are_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    """A failed step is retried after a pause. Its message is logged again only if it changes or the step succeeded;
    an internal error has a traceback."""
    results: list[Exception | float] = [
        StorageError("the disk is full"),
        StorageError("the disk is full"),
        ValueError("wrong"),
        3.0,
        StorageError("the disk is full"),
    ]

    def step() -> float:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    failures = FailureLog(logging.getLogger("tracelake.tests"), "nothing was done", 7.0)
    thread = PeriodicThread("periodic", step, failures=failures)
    assert [thread.turn() for _ in range(5)] == [7.0, 7.0, 7.0, 3.0, 7.0]
    full = "nothing was done: the disk is full"
    messages = [full, "nothing was done: internal error ValueError: wrong", full]
    assert [record.getMessage() for record in caplog.records] == messages
    assert [record.exc_info is not None for record in caplog.records] == [False, True, False]


@pytest.mark.parametrize(("failures", "pause_s"), [(0, 0.5), (1, 1.0), (3, 4.0), (4, 5.0), (10_000, 5.0)])
def test_pauses_double_up_to_the_longest(failures: int, pause_s: float) -> None:
    """Each failure doubles the pause; no number of failures overflows."""
    assert backoff_s(0.5, failures, 5.0) == pause_s


def throttled(pieces: list[tuple[float, int]]) -> list[float]:
    """Return the pause after each piece of work, which has its seconds and the number of new commits."""
    now_s, commits, slept = [100.0], [0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    throttle = Throttle(lambda: commits[0], lambda: now_s[0], sleep)
    pauses = list[float]()
    for work_s, committed in pieces:
        slept.clear()
        now_s[0] += work_s
        commits[0] += committed
        throttle.pause()
        pauses.append(round(sum(slept), 6))
    return pauses


def check_throttle() -> None:
    """Work takes a quarter of the time while others commit, and does not pause for its own sake."""
    assert throttled([(1.0, 5), (1.0, 0), (1.0, 0)]) == [0.0, 0.0, 0.0], (
        "what was committed before is no activity"
    )
    assert throttled([(1.0, 0), (0.5, 1), (2.0, 0)]) == [0.0, 1.5, 6.0], "three times as long as it took"
    assert throttled([(1.0, 0), (1.0, 1), (25.0, 0), (20.0, 0), (1.0, 0)]) == [0.0, 3.0, 60.0, 0.0, 0.0]
    assert throttled([(1.0, 0), (0.03, 1), (0.03, 0)]) == [0.0, 0.0, 0.18], (
        "short pieces are paused for together"
    )


def test_a_throttle_leaves_time_to_those_who_commit() -> None:
    """See `check_throttle`."""
    check_throttle()


def test_a_throttle_counts_no_idle_time() -> None:
    """The time between two runs is not work, and commits in it are no activity."""
    now_s, commits, slept = [0.0], [0], list[float]()
    throttle = Throttle(lambda: commits[0], lambda: now_s[0], slept.append)
    now_s[0] += 1.0
    throttle.pause()
    now_s[0] += 10_000.0
    commits[0] += 500
    throttle.start()
    now_s[0] += 1.0
    throttle.pause()
    assert slept == []
