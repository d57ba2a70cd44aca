"""Mutants that `tests/server/test_names.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_names
from tracelake.server import http_policy
from tracelake.server.http_policy import _HOST, _ORIGIN, allowed_host, allowed_origin, name_of
from tracelake.server.run import check_exposed


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Mutation("case is none", name_of, rewrite("_1._()", "_1")), test_names.check_hosts),
        (
            Mutation("all of it is a name", name_of, rewrite("_._(_1())", "match(_1())", match=_HOST.match)),
            test_names.check_hosts,
        ),
        (Mutation("brackets are meant", allowed_host, rewrite("_ > 1", "False")), test_names.check_settings),
        (
            Mutation(
                "all of it is a site",
                allowed_origin,
                rewrite("_1 = _(_2)", "_1 = match(_2)", match=_ORIGIN.match),
            ),
            test_names.check_settings,
        ),
        (Mutation("names are checked", check_exposed, drop("_", nth=3)), test_names.check_settings),
        (Mutation("sites are checked", check_exposed, drop("_", nth=4)), test_names.check_settings),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """The checks fail if any rule is removed."""
    assert http_policy.ANY == "*"
    assert_caught(broken, check)


def test_another_spelling_of_a_port_is_caught() -> None:
    """The check fails if a site's usual port is another port."""
    with mock.patch.object(http_policy, "_USUAL_PORTS", {}), pytest.raises(AssertionError):
        test_names.check_settings()
