"""Mutants that `tests/server/test_guard.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_guard
from tests.server.test_guard import guarded
from tracelake.server import access, guard, http_policy
from tracelake.server.key_ring import LOCAL, KeyRing


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "what is not listed is for admins",
            http_policy.needed,
            rewrite("for _ in _1: ...\nreturn _", "for methods, pattern, need in _1: ...\nreturn 'read'"),
        )
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(guarded: test_guard.Guarded, broken: Mutation) -> None:
    """The test of all routes fails if a rule is removed."""
    assert_caught(broken, lambda: test_guard.check_every_route(guarded))


def _next(after: str) -> Callable[[test_guard.Guarded], None]:
    return partial(test_guard.test_signing_in_leads_nowhere_else, after=after)


def _origin(origin: str) -> Callable[[test_guard.Guarded], None]:
    return partial(test_guard.test_forged_origins_are_refused, origin=origin)


DOORS = [
    (
        Mutation(
            "a key is asked for",
            KeyRing.actor,
            rewrite("if _ is None: ...", "if _ is None:\n    return local", local=LOCAL),
        ),
        test_guard.check_every_route,
    ),
    (Mutation("a key has a role", KeyRing.actor, drop("_(a.b, a.c, _)")), test_guard.check_every_route),
    (
        Mutation("a host is ours", guard.Guard._check_host, rewrite("_ not in _1 and _2 not in _3", "False")),
        partial(test_guard.test_forged_hosts_are_refused, host="evil.example"),
    ),
    (
        Mutation(
            "a page is of this host", guard.Guard._foreign_origin, rewrite("_1 and _ == _1 and _2", "_2")
        ),
        _origin("https://evil.example"),
    ),
    (
        Mutation(
            "a page came as this request",
            guard.Guard._foreign_origin,
            rewrite("_1 and _2 and _", "_1 and _2"),
        ),
        test_guard.test_a_page_that_came_without_tls_is_another_site,
    ),
    (
        Mutation("a page is named", guard.Guard._foreign_origin, rewrite("_ and _1 and _2", "_1 and _2")),
        test_guard.test_a_page_without_a_name_is_not_ours,
    ),
    (
        Mutation("a cookie needs Origin", guard._token, rewrite("_ not in _1 and _2 not in _3", "False")),
        test_guard.test_a_cookie_is_of_no_use_to_other_sites,
    ),
    (
        Mutation("no way to a host", access.safe_redirect, rewrite("_1 and _ and _2", "_1 and _2")),
        _next("//evil.example"),
    ),
    (
        Mutation("no way to a site", access.safe_redirect, rewrite("_ and _1 and _2", "_1 and _2")),
        _next("https://evil.example"),
    ),
    (
        Mutation("no other header", access.safe_redirect, rewrite("_1 and _2 and _", "_1 and _2")),
        _next("/a\r\nb: c"),
    ),
    (
        Mutation("the way is checked", access.sign_in, rewrite("_1(_(next), a=303)", "_1(next, a=303)")),
        _next("//evil.example"),
    ),
]


@pytest.mark.parametrize(("broken", "check"), DOORS, ids=rule_of)
def test_broken_doors_are_caught(
    guarded: test_guard.Guarded, broken: Mutation, check: Callable[[test_guard.Guarded], None]
) -> None:
    """A test fails if a rule of keys, hosts, origins, cookies or redirects is removed."""
    assert_caught(broken, lambda: check(guarded))
