"""Mutants that `tests/access/test_begun.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from unittest import mock

import pytest

from tests.access import test_begun
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.access import oidc
from tracelake.access.oidc import LakeSecret, verify_state

SIGNATURE: Final = oidc._signature


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
        (
            Mutation("the signature counts", verify_state, rewrite("if not _: ...", "if False: ...", nth=1)),
            test_begun.check_signed,
        ),
        (
            Mutation("a target is short", oidc.sign_state, rewrite("_1 if _ else _2", "_1")),
            test_begun.test_what_is_held_is_bounded,
        ),
        (
            Mutation(
                "one server makes the secret",
                LakeSecret._read_or_create,
                rewrite("a.b(_1, _2, _3, _4)\n", "return _3"),
            ),
            test_begun.check_secret,
        ),
        (
            Mutation(
                "the signing secret is cached",
                LakeSecret.secret,
                rewrite("_1 is None or _", "True"),
            ),
            test_begun.check_secret,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, check)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda body, by, _place: SIGNATURE(body, by, ""),
        lambda body, by, place: SIGNATURE(body.rpartition(".")[0], by, place),
        lambda body, by, place: SIGNATURE(body.partition(".")[2], by, place),
        lambda body, by, place: SIGNATURE(body.split(".")[0] + body.split(".")[2], by, place),
    ],
    ids=["place", "target", "secret", "time"],
)
def test_all_of_a_state_is_signed(wrong: Callable[[str, str, str], str]) -> None:
    """The check fails if a signature leaves out a part of the state."""
    with mock.patch.object(oidc, "_signature", wrong), pytest.raises(AssertionError):
        test_begun.check_signed()
