"""Mutants that `tests/server/test_key_ring.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_key_ring
from tests.server.test_key_ring import _slow_clock
from tracelake.access.oidc import Sessions
from tracelake.server.key_ring import KeyRing


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("a change is looked for", KeyRing._look, rewrite("_ or _1", "_1")),
            test_key_ring.check_waits,
        ),
        (
            Mutation(
                "what ended stays so",
                KeyRing._read,
                rewrite("{_1: _2 for _1, _2 in _3() if _1 not in _}", "{_1: _2 for _1, _2 in _3()}"),
            ),
            test_key_ring.check_changes_here,
        ),
        (
            Mutation("what ended is of no use at once", KeyRing.forget, drop("_(...)")),
            test_key_ring.check_changes_here,
        ),
        (
            Mutation("a lake that has keys has them", KeyRing.forget, drop("_ = True")),
            test_key_ring.check_the_first_key,
        ),
        (
            Mutation(
                "one session is read",
                Sessions.of,
                rewrite("self.a().b(_, _1)", "every(self) and None", every=Sessions.whole_records),
            ),
            test_key_ring.check_sign_out,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """The checks fail if any rule is removed."""
    assert_caught(broken, check)
