"""Mutants that `tests/pipeline/test_giving_way.py` notices."""

from __future__ import annotations

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.pipeline import test_giving_way
from tracelake.pipeline import context
from tracelake.pipeline.context import CrashAwareRunner
from tracelake.tasks import runners

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="threads have priorities of their own on Linux alone"
)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("priority of a thread", runners._lower, drop("_")),
        Mutation("lower than it was", runners._lower, rewrite("_1 + _", "_1")),
    ],
    ids=rule_of,
)
def test_broken_worker(broken: Mutation) -> None:
    """The check detects each broken rule, in a disposable thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(assert_caught, broken, test_giving_way.check_worker).result()


def test_broken_refusal() -> None:
    """The check detects it."""
    assert_caught(
        Mutation(
            "none the less",
            runners._lower,
            rewrite("_(_)", "nullcontext()", nullcontext=contextlib.nullcontext),
        ),
        test_giving_way.check_refused,
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("workers give way", CrashAwareRunner.run, rewrite("_ if _ else _1", "_1")),
        Mutation("maintenance", context.runners, rewrite("_1(_2, _3, a=_)", "_1(_2, _3)")),
        Mutation("who has but workers", context.runners, rewrite("a(b)", "b")),
        Mutation("transactions do not", context.runners, rewrite("(_1, _2(_1))", "(_2(_1), _1)")),
        Mutation("not here", context.low_priority, rewrite("_1 if _ else _2", "_1 if True else _2")),
    ],
    ids=rule_of,
)
def test_broken_pipeline(broken: Mutation) -> None:
    """The check detects each broken rule."""
    assert_caught(broken, test_giving_way.check_pipeline)
