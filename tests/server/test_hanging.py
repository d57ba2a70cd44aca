"""A server's pipeline that hangs: distinguished from one that works, rests or retries, then killed and restarted."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

import tracelake
from tests.patience import HANG_S, wait_until
from tracelake import limits
from tracelake.pipeline.continuous import PipelineLoop
from tracelake.replicas.replica import BatchCounts, ReplicaProgress
from tracelake.server import pipeline_process, run
from tracelake.server.pipeline_process import NoProgressTimer, PipelineJob, PipelineProcess, Watchdog

HANGS = """
import sys
sys.stdin.readline()
print('{"problem": null, "replica": null, "steps": 7}', flush=True)
CLOSE
sys.stdin.read()
"""


def check_looks() -> None:
    """Check that a hang is as many polls without a step as the limit has seconds, on any clock; a new step restarts
    the count."""
    stillness = NoProgressTimer(3 * limits.PIPELINE_TOLD_EACH_S)
    assert [stillness.look(each) for each in (None, None, 1, 1, 1, 2, 2, 2)] == [False] * 8
    assert [stillness.look(2) for _ in range(2)] == [True, True]
    assert [stillness.look(1) for _ in range(4)] == [False, False, False, True]
    never = NoProgressTimer(3 * limits.PIPELINE_TOLD_EACH_S)
    assert [never.look(None) for _ in range(3)] == [False, False, True]


def check_steps() -> None:
    """Check that each new action of a replica is a step, also a failed run; a repeated report is no step."""
    account = ReplicaProgress("this", BatchCounts(), 2)
    account.begin("looking")
    account.reach(1, 0, 1, "reading, 1 of 2")
    steps = account.steps
    account.reach(1, 0, 1, "reading, 1 of 2")
    account.sources(())
    account.leave(())
    assert account.steps == steps
    account.reach(1, 0, 2, "reading, 2 of 2")
    account.failed(ValueError())
    account.begin("looking")
    account.reach(1, 0, 1, "reading, 1 of 2")
    account.succeeded()
    assert account.steps == steps + 5


class Beside:
    """A pipeline that rests or works, as the test sets."""

    def __init__(self, rests: bool) -> None:
        self._rests = rests

    def __call__(self, *_: object) -> Beside:
        return self

    def start(self) -> None:
        """Start nothing."""

    stop = has_died = problem = replica = start

    def steps(self) -> int:
        """Return always the same."""
        return 5

    def is_idle(self) -> bool:
        """Return the value that the test set."""
        return self._rests


class Channel:
    """A recorder of reports that is true once it has enough."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def tell(self, document: dict[str, Any]) -> None:
        """Record the report."""
        self.steps.append(document["steps"])

    def __bool__(self) -> bool:
        return len(self.steps) == 3


def check_rests() -> None:
    """Check that each reported rest between two runs counts as a step; otherwise the pipeline's steps count."""
    for rests, expected in ((True, [6, 7, 8]), (False, [5, 5, 5])):
        channel: Any = Channel()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "PROGRESS_POLL_S", 0.0)
            patch.setattr(limits, "PIPELINE_TOLD_EACH_S", 0.0)
            patch.setattr(pipeline_process, "PipelineThread", Beside(rests))
            lake: Any = None
            pipeline_process._run(lake, PipelineJob("", "this", None, 0.1, logging.INFO), channel, channel)
        assert channel.steps == expected


def check_in_run() -> None:
    """Check that a loop rests while it waits for its next run, and not in a run."""
    in_run, go_on = threading.Event(), threading.Event()

    def run_once() -> None:
        in_run.set()
        assert go_on.wait(HANG_S)

    loop = PipelineLoop(run_once, 3600.0)
    loop.start()
    try:
        assert in_run.wait(HANG_S)
        assert not loop.is_waiting()
        go_on.set()
        wait_until(loop.is_waiting)
    finally:
        go_on.set()
        loop.stop()


class Endless:
    """A fake process that only records whether it was killed."""

    killed = False

    def kill(self) -> None:
        """Record the kill."""
        self.killed = True


def check_stopping() -> None:
    """Check that a stopping process has its full timeout, even without progress."""
    process: Any = Endless()
    looks: list[bool] = []

    def is_stopping() -> bool:
        looks.append(len(looks) < 10)
        return looks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PIPELINE_TOLD_EACH_S", 0.001)
        with Watchdog(process, lambda: 1, is_stopping, 0.0) as watch:
            wait_until(lambda: process.killed)
    assert watch.has_killed
    assert len(looks) == 11


CHECKS = (check_looks, check_steps, check_rests, check_in_run, check_stopping)


@pytest.mark.parametrize("check", CHECKS)
def test_rules(check: Callable[[], None]) -> None:
    """Each rule of the watchdog holds."""
    check()


@pytest.mark.parametrize("close", ["", "import os; os.close(1); sys.stdout = None"])
def test_it_is_ended(tmp_path: Path, close: str) -> None:
    """A process that hangs is killed and restarted, whether or not it still sends reports."""
    program = HANGS.replace("CLOSE", close)
    with tracelake.init(tmp_path / "lake") as lake, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PIPELINE_TOLD_EACH_S", 0.001)
        patch.setattr(pipeline_process, "PIPELINE_RESTART_S", 0.001)
        patch.setattr(limits, "PIPELINE_STOP_MAX_S", 0.0)
        process = PipelineProcess(lake, None, 0.1, (sys.executable, "-S", "-c", program), 0.004)
        process.start()
        try:
            wait_until(lambda: process.restarts() >= 2)
            # Between two of them: a restarted process that has sent a report has no error yet.
            wait_until(lambda: "made no progress for 0.004 s and was killed" in str(process.problem()))
        finally:
            process.stop()


def test_a_second_signal_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """A server that ends at once, as by a second Ctrl-C, logs nothing about the tasks that it cancels."""

    async def end_at_once() -> None:
        server = uvicorn.Server(run._config(FastAPI(), None))
        server.config.load()
        await server.config.lifespan_class(server.config).startup()

    asyncio.run(end_at_once())
    assert "Traceback" not in caplog.text
