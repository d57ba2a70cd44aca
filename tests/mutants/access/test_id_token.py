"""Mutants that `tests/access/test_id_token.py` notices."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
from joserfc.jwk import OctKey

from tests.access import test_id_token
from tests.mutants.mutation import Edit, Mutation, assert_caught, rewrite, rule_of
from tracelake.access import oidc

CLAIMS = "_1(a=_2, b=_3, c=_4, d=_5, e=_6, f=_7, g=_7, h=_7)"
"""Call with the rules of time, issuer, audience, nonce, subject, end and start."""


def _claims(changed: str) -> Edit:
    return rewrite(CLAIMS, f"_1(a=_2, b=_3, {changed})")


def _unverified(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))))


def _wrong(name: str) -> Callable[[], None]:
    return partial(test_id_token.test_wrong_claims_count_for_nothing, test_id_token.WRONG[name])


CHECKED = {
    "the issuer is ours": ("c=_7, d=_5, e=_6, f=_7, g=_7, h=_7", "issuer"),
    "an issuer is required": ("d=_5, e=_6, f=_7, g=_7, h=_7", "no issuer"),
    "the audience is ours": ("c=_4, d=_7, e=_6, f=_7, g=_7, h=_7", "audience"),
    "an audience is required": ("c=_4, e=_6, f=_7, g=_7, h=_7", "audience"),
    "the nonce is of this sign-in": ("c=_4, d=_5, e=_7, f=_7, g=_7, h=_7", "nonce"),
    "the start is required": ("c=_4, d=_5, e=_6, f=_7, g=_7", "no time"),
}

MUTANTS = [
    *(
        (Mutation(rule, oidc._check, _claims(changed)), _wrong(name))
        for rule, (changed, name) in CHECKED.items()
    ),
    (
        Mutation("the nonce is text", oidc._check, rewrite("not isinstance(_1, _)", "False")),
        _wrong("nonce list"),
    ),
    (Mutation("a subject is printed", oidc._check, rewrite("_1 or _", "_1 or False")), _wrong("not printed")),
    (Mutation("a token is short", oidc.verified_claims, rewrite("_ > _", "False")), _wrong("huge")),
    (
        Mutation(
            "a signature is verified",
            oidc.verified_claims,
            rewrite("_1(a, _2, b=_3).c", "(_2, _3) and unverified(a)", unverified=_unverified),
        ),
        test_id_token.check_forgeries,
    ),
    (
        Mutation(
            "a key is for its algorithm",
            oidc._key_of,
            rewrite("_1 and _2 and _3 and _", "_1 and _2 and _3 and True"),
        ),
        test_id_token.test_keys_that_cannot_be_the_right_one,
    ),
    (
        Mutation(
            "a key is for its kind", oidc._key_of, rewrite("_ and _1 and _2 and _3", "_1 and _2 and _3")
        ),
        test_id_token.test_keys_that_cannot_be_the_right_one,
    ),
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


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_a_public_key_as_a_secret_is_caught() -> None:
    """The check fails if HMAC is accepted, and the provider's keys may be secrets."""
    with (
        mock.patch.dict(oidc.ALGORITHMS, {"HS256": OctKey}),
        mock.patch.object(oidc, "_PUBLIC", (*oidc._PUBLIC, "k")),
        pytest.raises(pytest.fail.Exception),
    ):
        test_id_token.check_forgeries()
