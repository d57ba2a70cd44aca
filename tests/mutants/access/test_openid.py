"""Mutants that `tests/access/test_openid.py` notices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.access import test_openid
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.access import oidc
from tracelake.access.oidc import OpenId, check_back, decide_admission, discover_endpoints


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("addresses are verified", decide_admission, rewrite("_1 is not True", "_1 is False")),
            test_openid.check_admissions,
        ),
        (
            Mutation("values are compared whole", decide_admission, rewrite("[_1]", "_1")),
            test_openid.check_admissions,
        ),
        (
            Mutation("the state is of this browser", check_back, rewrite("_1 or _", "_1 or False")),
            test_openid.check_coming_back,
        ),
        (Mutation("somebody began", check_back, rewrite("_ or _1", "_1")), test_openid.check_coming_back),
        (
            Mutation("the provider is ours", check_back, rewrite("_ != _", "False")),
            test_openid.check_coming_back,
        ),
        (
            Mutation("a code is bounded", check_back, rewrite("not 0 < _1 <= _", "not _1")),
            test_openid.check_coming_back,
        ),
        (
            Mutation("a fragment is no provider", oidc.check_url, rewrite("_1 or _2 or _", "_1 or _2")),
            test_openid.check_settings,
        ),
        (
            Mutation("an address has its own proof", oidc.joined, rewrite("not (_ and _1)", "True")),
            test_openid.check_addresses,
        ),
        (
            Mutation("what came out is asked for", check_back, rewrite("if a: ...", "if False: ...")),
            test_openid.check_coming_back,
        ),
        (
            Mutation("a provider is who it says", discover_endpoints, rewrite("_ != _", "False")),
            test_openid.check_settings,
        ),
        (
            Mutation("TLS all the way", discover_endpoints, rewrite("_(_) and _1", "False and _1")),
            test_openid.check_settings,
        ),
        (
            Mutation(
                "an address is verified by its own source", oidc.joined, rewrite("_ and _1", "False and _1")
            ),
            test_openid.check_addresses,
        ),
        (Mutation("TLS on the way", oidc.check_url, rewrite("_ in _", "True")), test_openid.check_settings),
        (
            Mutation("nobody by default", OpenId.check, rewrite("not _", "False", nth=2)),
            test_openid.check_settings,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Any) -> None:
    """Each broken rule of sign-in is caught."""
    assert_caught(broken, check)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("sessions end", oidc.Sessions.begin, rewrite("_1 * _2", "10 * _1 * _2")),
        Mutation("what is over is removed", oidc.Sessions._make_room, rewrite("_1()._", "_1().get")),
        Mutation(
            "only its token ends a session",
            oidc.Sessions.of,
            rewrite("_(_1(b) if b else None, c, _2)", "_1(b) if b else None"),
        ),
        Mutation("an API key is no session", oidc.Sessions.revoke, rewrite("_1.a is not None", "True")),
    ],
    ids=rule_of,
)
def test_broken_rules_of_sessions_are_caught(broken: Mutation) -> None:
    """Each broken rule of sessions is caught."""
    assert_caught(broken, test_openid.check_sessions)
