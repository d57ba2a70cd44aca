"""Mutants that `tests/server/test_sign_in.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_sign_in
from tests.server.signing_in import Site
from tests.server.test_sign_in import both, issuer, site
from tracelake.access import oidc as access_openid
from tracelake.access.oidc import Sessions
from tracelake.server import access


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "the state is of this browser", access_openid.check_back, rewrite("_1 or _", "_1 or False")
            ),
            test_sign_in.check_states,
        ),
        (
            Mutation(
                "the code is of who began",
                access.Provider._redeemed,
                rewrite(
                    "{_1: _2, _3: _4, _5: _6, _7: _, _8: _9}",
                    "{_1: _2, _3: _4, _5: _6, _7: 'v' * 43, _8: _9}",
                ),
            ),
            test_sign_in.check_the_end,
        ),
        (
            Mutation("sign-out ends sessions", Sessions.end, rewrite("_._(_1.a)", "str(_1.a)")),
            test_sign_in.check_the_end,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(site: Site, broken: Mutation, check: Callable[[Site], None]) -> None:
    """The checks fail if any rule of the sign-in is removed."""
    assert_caught(broken, lambda: check(site))


def test_a_way_to_another_site_is_caught(site: Site) -> None:
    """The check fails if a sign-in may redirect to any address."""
    with mock.patch.object(access, "safe_redirect", str), pytest.raises(AssertionError):
        test_sign_in.test_the_way_leads_nowhere_else(site, "//evil.example")
