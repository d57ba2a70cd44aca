"""Mutants that `tests/pipeline/test_added_sources.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.pipeline import test_added_sources
from tracelake import InboxPipeline
from tracelake.pipeline.protocol import counts, in_turn
from tracelake.pipeline.registrations import RegistrationStore
from tracelake.pipeline.sources.poller import SourcePoller


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "what was seen counts by the records as they are then",
                SourcePoller.look,
                rewrite("if _(_): ...", "if False: ..."),
            ),
            test_added_sources.change_while_looking,
        ),
        (
            Mutation("not while it is paused", counts, rewrite("_1 and _", "_1")),
            test_added_sources.change_while_looking,
        ),
        (
            Mutation("not once it is removed", counts, rewrite("_1 == _2", "_1 in (None, _2)")),
            test_added_sources.change_while_looking,
        ),
        (
            Mutation("not as another", counts, rewrite("_1 == _", "_1 is not None")),
            test_added_sources.change_while_looking,
        ),
        (Mutation("by bytes", in_turn, rewrite("_1 += _", "_1 += 1")), test_added_sources.all_in_turn),
        (Mutation("each in its turn", in_turn, rewrite("sorted(_1)", "_1")), test_added_sources.all_in_turn),
        (
            Mutation(
                "a pause is read back",
                RegistrationStore.change,
                rewrite("if _1 == _2: ...\n_(...)", "if _1 == _2: ...\nreturn _1"),
            ),
            test_added_sources.change_without_replies,
        ),
        (
            Mutation("our own record is no other's", RegistrationStore.create, rewrite("_ == _", "False")),
            test_added_sources.change_without_replies,
        ),
        (
            Mutation("who is paused is not looked at", SourcePoller.look, rewrite("_ != _", "True")),
            test_added_sources.look_while_paused,
        ),
        (
            Mutation(
                "who is removed is not looked at",
                SourcePoller._follow_records,
                rewrite("_1, _2 = (_2, _)", "_1 = _2"),
            ),
            test_added_sources.look_while_paused,
        ),
    ],
    ids=rule_of,
)
def test_a_broken_rule_is_noticed(broken: Mutation, check: Callable[[], None]) -> None:
    """A test above fails for each broken rule that no simulated schedule covers."""
    assert_caught(broken, check)


def test_a_look_without_end_is_noticed(tmp_path: Path) -> None:
    """The backlog test above fails for an unbounded poll."""
    broken = Mutation("a look has an end", InboxPipeline.run_once, drop("_ = _._(_)"))
    assert_caught(broken, lambda: test_added_sources.take_beside_a_backlog(tmp_path))
