"""Mutants that `tests/server/test_hanging.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_hanging
from tracelake.pipeline.continuous import PipelineLoop
from tracelake.replicas.replica import ReplicaProgress
from tracelake.server import pipeline_process
from tracelake.server.pipeline_process import NoProgressTimer, Watchdog


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "whoever goes on begins anew",
                NoProgressTimer.look,
                rewrite("_1 = _\n_2 = _3", "_1 = _1 + 1 if _3 == _2 else _1\n_2 = _3"),
            ),
            test_hanging.check_looks,
        ),
        (
            Mutation(
                "what never told anything hangs too",
                NoProgressTimer.look,
                rewrite("_1 == _2", "None is not _1 == _2"),
            ),
            test_hanging.check_looks,
        ),
        (
            Mutation(
                "a step is something else", ReplicaProgress._go_on_to, rewrite("if _: ...", "if True: ...")
            ),
            test_hanging.check_steps,
        ),
        (
            Mutation("a run that fails is a step", ReplicaProgress.failed, drop("_(None)")),
            test_hanging.check_steps,
        ),
        (
            Mutation("tasks are steps", ReplicaProgress.reach, rewrite("_\n_1 = _2", "pass\n_1 = _2")),
            test_hanging.check_steps,
        ),
        (Mutation("who rests goes on", pipeline_process._run, drop("_ += _")), test_hanging.check_rests),
        (
            Mutation("who works rests not", pipeline_process._run, rewrite("_1 += _", "_1 += 1")),
            test_hanging.check_rests,
        ),
        (
            Mutation("a run is no rest", PipelineLoop.is_waiting, rewrite("_._", "True")),
            test_hanging.check_in_run,
        ),
        (
            Mutation("one that stops has its time", Watchdog._step, rewrite("not _", "True")),
            test_hanging.check_stopping,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """The checks fail if any rule is removed."""
    assert_caught(broken, check)
