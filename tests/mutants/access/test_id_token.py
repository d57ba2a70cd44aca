"""Mutants that `tests/access/test_id_token.py` notices."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.access import test_id_token
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.access import oidc

MUTANTS = [
    (
        Mutation("keys are of the kind of the algorithm", oidc._key_of, rewrite("_(_) == _._", "True")),
        test_id_token.test_keys_that_cannot_be_the_right_one,
    ),
    (
        Mutation(
            "keys for ciphers sign nothing",
            oidc._key_of,
            rewrite("_1 and _2 and _ and _3", "_1 and _2 and True and _3"),
        ),
        test_id_token.test_keys_that_cannot_be_the_right_one,
    ),
    (
        Mutation("one key is meant", oidc._key_of, rewrite("_ > 1", "False")),
        test_id_token.test_keys_that_cannot_be_the_right_one,
    ),
    (
        Mutation("long keys are none", oidc._key_of, rewrite("_1 <= _2 <= _", "_1 <= _2 <= 100000")),
        test_id_token.test_keys_that_cannot_be_the_right_one,
    ),
    (
        Mutation("short keys are none", oidc._key_of, rewrite("_ <= _1 <= _2", "0 <= _1 <= _2")),
        test_id_token.test_keys_that_cannot_be_the_right_one,
    ),
    (
        Mutation("the authorized party counts", oidc._check, rewrite("_ != _", "False")),
        partial(test_id_token.test_wrong_claims_count_for_nothing, test_id_token.WRONG["authorized party"]),
    ),
    (
        Mutation("the party of many counts", oidc._check, rewrite("None if _ else _1", "_1")),
        partial(test_id_token.test_wrong_claims_count_for_nothing, test_id_token.WRONG["audience of many"]),
    ),
    (
        Mutation(
            "the end counts",
            oidc._check,
            rewrite(
                "_1(a=_2, b=_3, c=_4, d=_5, e=_6, f=_7, g=_7, h=_7)",
                "_1(a=_2, b=_3, c=_4, d=_5, e=_6, f=_7, h=_7)",
            ),
        ),
        partial(test_id_token.test_wrong_claims_count_for_nothing, test_id_token.WRONG["no end"]),
    ),
    (
        Mutation("the skew counts", oidc._check, rewrite("_._", "3600", nth=3)),
        partial(test_id_token.test_wrong_claims_count_for_nothing, test_id_token.WRONG["expired"]),
    ),
    (
        Mutation("the length of a name counts", oidc._check, rewrite("_ or _1", "False or _1")),
        partial(test_id_token.test_wrong_claims_count_for_nothing, test_id_token.WRONG["long"]),
    ),
]


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=rule_of)
def test_broken_rules_are_caught(broken: Mutation, check: Any) -> None:
    """Each broken check of a token is caught."""
    assert_caught(broken, check)
