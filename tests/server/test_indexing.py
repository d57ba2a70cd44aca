"""The server's index warmer continues after any failure until it is stopped."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.patience import HANG_S, wait_until
from tracelake import limits
from tracelake._errors import StorageError
from tracelake.server import run
from tracelake.server.run import HotIndexWarmer


def test_it_goes_on_after_a_failure_until_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeated failure is logged once and retried; further work is done at once."""
    monkeypatch.setattr(limits, "UNCOMMITTED_AHEAD_EVERY_S", 0.0)
    monkeypatch.setattr(run, "UNCOMMITTED_AHEAD_TURN_S", 0.0)
    monkeypatch.setattr(run, "UNCOMMITTED_AHEAD_FAILED_S", 0.0)
    calls = 0

    def step() -> bool:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise StorageError("the tracking store is away")
        if calls == 5:
            raise ValueError("odd")
        return calls % 2 == 0

    ahead = HotIndexWarmer(step)
    with caplog.at_level(logging.WARNING, "tracelake.server"), ahead:
        wait_until(lambda: calls > 9, "it does not go on", moving=lambda: calls)
    assert not ahead._thread.is_alive()
    told = [record for record in caplog.records if record.name == "tracelake.server"]
    assert [record.getMessage().rpartition(": ")[2] for record in told] == [
        "the tracking store is away",
        "odd",
    ]
    assert [record.exc_info is not None for record in told] == [False, True]


def test_a_step_that_does_not_end_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stopping server waits for the step up to the limit, and then logs that it still runs."""
    monkeypatch.setattr(run, "UNCOMMITTED_AHEAD_STOP_MAX_S", 0.01)
    begun, go_on = threading.Event(), threading.Event()

    def step() -> bool:
        begun.set()
        assert go_on.wait(HANG_S)
        return False

    ahead = HotIndexWarmer(step)
    try:
        with caplog.at_level(logging.WARNING, "tracelake.server"), ahead:
            assert begun.wait(HANG_S)
        assert "was abandoned; no data is lost" in caplog.text
        assert not go_on.is_set()
    finally:
        go_on.set()
        ahead._thread.join(HANG_S)
    assert not ahead._thread.is_alive()
