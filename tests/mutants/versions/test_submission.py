"""Mutants that `tests/versions/test_submission.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.versions import test_submission
from tracelake.versions import protocol
from tracelake.versions.protocol import Submission


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a branch that is gone is left", protocol.next_act, rewrite("_ or _1", "_1")),
        Mutation("a request of another scope is left", protocol.next_act, rewrite("_1 or _", "_1")),
        Mutation("a request is sought first", protocol.next_act, rewrite("if not _: ...", "if False: ...")),
        Mutation("a sealed request is missed", protocol.next_act, rewrite("if _._: ...", "if False: ...")),
        Mutation("only a visible request waits", protocol.next_act, rewrite("_ and _1", "_1")),
        Mutation("patience differs by request", protocol.next_act, rewrite("_1 * _", "_1")),
        Mutation("patience has an end", protocol.next_act, rewrite("_1 and _", "_1")),
        Mutation("what was sealed stays known", Submission.after_read, rewrite("_ or _1", "_1")),
        Mutation("a moving head restarts the wait", Submission.waited, rewrite("0 if _ else _1", "_1")),
    ],
)
def test_each_rule_is_held(broken: Mutation) -> None:
    """Each rule, broken once, fails a test of this file."""

    def tests() -> None:
        test_submission.test_every_state_has_its_act()
        test_submission.test_patience_has_an_end_unless_the_head_moves()
        test_submission.test_what_is_known_only_grows()

    assert_caught(broken, tests)
