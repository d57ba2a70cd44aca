"""Mutants that `tests/pipeline/test_looks.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tracelake
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_looks
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.pipeline.sources import poller as module
from tracelake.pipeline.sources.poller import SourcePoller


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "not asked while it is asked", SourcePoller._ask, rewrite("if _ or _1: ...", "if _1: ...")
            ),
            test_looks.one_is_late,
        ),
        (
            Mutation("no watch changes while it looks", SourcePoller.took, rewrite("_1 or _", "_1")),
            test_looks.one_is_late,
        ),
        (
            Mutation("so many are left", SourcePoller._ask, rewrite("_ >= _", "False")),
            test_looks.late_and_removed,
        ),
        (
            Mutation("who must see all asks anew", SourcePoller.look, rewrite("_1 = _2\n_", "_1 = _2\npass")),
            test_looks.who_must_see_all_waits,
        ),
        (
            Mutation(
                "a stop ends each wait",
                module._wait,
                rewrite("not _1() and (not _()) and ((_2 := _3) > 0)", "not _1() and (_2 := _3) > 0"),
            ),
            test_looks.stopped,
        ),
        (Mutation("named in the end", SourcePoller._hear, rewrite("_ > _", "False")), test_looks.told),
    ],
    ids=rule_of,
)
def test_a_broken_rule_is_noticed(broken: Mutation, check: Callable[[], None]) -> None:
    """A test above fails for each broken rule."""
    assert_caught(broken, check)


def test_a_commit_that_does_not_wait_is_noticed(tmp_path: Path) -> None:
    """The test above fails if a commit does not wait."""
    broken = Mutation("a commit waits", InboxPipeline.run_once, rewrite("if _._: ...", "if False: ..."))
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        assert_caught(broken, lambda: test_looks.end_while_the_inbox_fails(lake))
