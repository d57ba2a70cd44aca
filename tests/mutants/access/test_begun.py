"""Mutants that `tests/access/test_begun.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.access import test_begun
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.access import oidc
from tracelake.access.oidc import LakeSecret, verify_state


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("it ends", verify_state, rewrite("_1 <= _2 <= _", "_1 <= _2 < 10 ** 9")),
            test_begun.check_signed,
        ),
        (
            Mutation(
                "it is not of the future", verify_state, rewrite("_ <= _1 <= _2", "-10 ** 9 < _1 <= _2")
            ),
            test_begun.check_signed,
        ),
        (Mutation("it is of this lake", oidc._signature, rewrite("a._()", "b''")), test_begun.check_signed),
        (
            Mutation(
                "what is damaged is replaced",
                LakeSecret._read_or_create,
                rewrite("try: ...\nexcept _ as a: ...", "try: ...\nexcept ZeroDivisionError as a: ..."),
            ),
            test_begun.check_secret,
        ),
        (
            Mutation("it is read again", LakeSecret.secret, rewrite("_ >= _", "False")),
            test_begun.check_secret,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, check)
