"""Mutants that `tests/tasks/test_sockets.py` notices."""

from __future__ import annotations

import stat
from collections.abc import Callable
from unittest import mock

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.tasks import test_sockets
from tracelake.tasks import spark
from tracelake.tasks.spark import _SETTINGS, has_chosen, sockets_of

CASES: list[tuple[Mutation, Callable[[], None]]] = [
    (Mutation("a place of others", spark._make_folder, rewrite("_1 or _", "_1")), test_sockets.check_folder),
    (Mutation("what is above", spark._make_folder, rewrite("(_1, _)", "(_1,)")), test_sockets.check_above),
    (Mutation("whose", spark._is_open_to_others, rewrite("_1 or _", "_1")), test_sockets.check_above),
    (Mutation("sticky", spark._is_open_to_others, rewrite("_1 and _", "_1")), test_sockets.check_folder),
    (
        Mutation("it goes", sockets_of, rewrite("_._._._._(...)", "(lambda *_: None)(...)")),
        test_sockets.check_folder,
    ),
    (Mutation("for Java", spark._make_folder, rewrite("not _()", "False")), test_sockets.check_unfit),
    (Mutation("its mode", spark._make_folder, rewrite("not _ & _", "True")), test_sockets.check_unfit),
    (
        Mutation("no folder", spark._make_folder, rewrite("OSError", "KeyError", nth=1)),
        test_sockets.check_unfit,
    ),
    (Mutation("what is not used", spark._make_folder, drop("a._()")), test_sockets.check_unfit),
    (
        Mutation(
            "the environment",
            has_chosen,
            rewrite(
                "any((_ for _1 in _2)) or _ in _",
                "any((_1.startswith(settings) for _1 in _2))",
                settings=_SETTINGS,
            ),
        ),
        test_sockets.check_chosen,
    ),
]


@pytest.mark.parametrize(("broken", "check"), CASES, ids=rule_of)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, check)


def test_a_place_that_a_group_may_write_is_caught() -> None:
    """The check fails if a group may write to the directory."""
    with mock.patch.object(spark, "_OTHERS", stat.S_IWOTH), pytest.raises(AssertionError):
        test_sockets.check_folder()
