"""Mutants that `tests/server/test_pipeline_process.py` notices."""

from __future__ import annotations

import inspect
import logging
import os
import signal
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.patience import wait_until
from tests.server import test_pipeline_process
from tests.server.test_pipeline_process import lake
from tracelake import limits
from tracelake.lake.lake import Lake
from tracelake.pipeline.continuous import InboxPipeline, PipelineLoop
from tracelake.server import pipeline_process
from tracelake.server.pipeline_process import (
    PipelineJob,
    PipelineProcess,
    PipelineThread,
    _environment,
    _whatever_handlers_raise,
    status_of,
)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("it is begun again", PipelineProcess._run, rewrite("while _1: ...", "if _1: ...")),
        Mutation("pauses grow", PipelineProcess._run, rewrite("_(_1, 1, _)", "_1")),
        Mutation(
            "what it logs is logged",
            PipelineProcess._listen,
            rewrite(
                "if _1 is not None and _2(_3): ...",
                """
                if _1 is not None and _2(_3):
                    with whatever_handlers_raise():
                        _2(0)
                """,
                whatever_handlers_raise=_whatever_handlers_raise,
            ),
        ),
    ],
    ids=rule_of,
)
def test_one_that_ends_is_begun_again(
    broken: Mutation, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_pipeline_process.test_one_that_ends_is_begun_again(lake, monkeypatch, caplog)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "the server restarts it",
            PipelineProcess.stop,
            rewrite("a.b(c)", "a.b(sigterm)", sigterm=signal.SIGTERM),
        )
    ],
    ids=rule_of,
)
def test_signals_to_all_are_for_the_server(
    broken: Mutation, lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """The check fails if the rule is broken."""
    hear = inspect.getsource(pipeline_process._hear)
    assert_caught(
        broken, lambda: test_pipeline_process.ended_by_its_server_alone(lake, caplog, hear, stop_max_s=20)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("an old word does not count", PipelineProcess.replica, rewrite("_ is not None", "False")),
        Mutation("one that ended tells nothing", PipelineProcess._run, drop("_ = None")),
        Mutation("what is silent is told of", PipelineProcess.problem, rewrite("a is not None", "not a")),
    ],
    ids=rule_of,
)
def test_one_that_tells_nothing_more(
    broken: Mutation, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_pipeline_process.test_one_that_tells_nothing_more(lake, monkeypatch, caplog)
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_log_handlers_that_raise(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Log handlers that raise do not end the monitor thread; if the thread ended all the same, the server would
    report it."""
    monkeypatch.setattr(pipeline_process, "PIPELINE_RESTART_S", 0.001)
    logger, handler = (logging.getLogger("tracelake.pipeline"), test_pipeline_process.Raises())
    logger.addHandler(handler)
    try:
        test_pipeline_process.listened_on(lake, capsys)
        for broken in (
            Mutation(
                "what they raise ends nothing", _whatever_handlers_raise, rewrite("Exception", "OSError")
            ),
            Mutation("nor when an end is told", PipelineProcess._run, rewrite("with _: ...", "if True: ...")),
        ):
            assert_caught(broken, lambda: test_pipeline_process.listened_on(lake, capsys))
        process = PipelineProcess(lake, None, 0.1, ("no\x00program",))
        with Mutation("begun again", PipelineProcess._run, rewrite("Exception", "OSError")).applied():
            process.start()
            wait_until(lambda: not process.is_alive())
        assert "has ended; restart the server" in str(process.problem())
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    "broken",
    [Mutation("half a line is left out", status_of, rewrite("(_, _1, _2)", "(_1, _2)"))],
    ids=rule_of,
)
def test_lines(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_pipeline_process.test_lines)


@pytest.mark.parametrize(
    "broken",
    [Mutation("no secret goes along", _environment, rewrite("_1 not in _", "_1 not in ()"))],
    ids=rule_of,
)
def test_it_has_no_secret_of_its_server(broken: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_pipeline_process.test_it_has_no_secret_of_its_server(monkeypatch))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_one_whose_thread_ended_ends(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose thread ended exits, and is restarted. Otherwise the server would look healthy without
    transactions."""
    monkeypatch.setattr(limits, "PROGRESS_POLL_S", 0.001)
    monkeypatch.setattr(InboxPipeline, "run_once", test_pipeline_process.panics)
    monkeypatch.setattr(InboxPipeline, "start", lambda _: None)
    job = PipelineJob(lake.url, "this", None, 0.1, logging.INFO)
    with Path(os.devnull).open("wb") as file:

        def check() -> None:
            assert (
                pipeline_process._work(
                    job, pipeline_process._Channel(file.fileno()), test_pipeline_process.Looks()
                )
                == 1
            )

        check()
        assert_caught(
            Mutation("it looks", pipeline_process._run, rewrite("if _(): ...", "if False: ...")), check
        )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "broken",
    [
        Mutation("its end is told", PipelineThread.problem, rewrite("self._()", "False")),
        Mutation("one not begun has not", PipelineLoop.has_died, rewrite("_ is not None", "True")),
        Mutation(
            "nor one that was stopped",
            PipelineLoop.has_died,
            rewrite("_1 and _2 and _", "_1 and _2 and True"),
        ),
    ],
    ids=rule_of,
)
def test_a_thread_that_ended_is_told(broken: Mutation, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_pipeline_process.test_a_thread_that_ended_is_told(lake, monkeypatch))
