"""Mutants that `tests/archive/test_default.py` notices."""

from __future__ import annotations

import pytest

from tests.archive import test_default
from tests.archive.place import HotLake
from tests.archive.test_default import lake
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.archive import model, retention, store

__all__ = ["lake"]


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "spans still arrive", retention.quiet_ns, rewrite("_1 if _2 and _3 is None else None", "None")
        ),
        Mutation("the default", retention.resolve, rewrite("_1._ is None and _2 is not None", "False")),
    ],
    ids=rule_of,
)
def test_payloads_leave_minutes_after_the_last_span(broken: Mutation, lake: HotLake) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_default.check_leaves(lake))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("other layouts have none", model.settings_of, rewrite("_1 == _2 and _3", "_3")),
        Mutation("a removed one stays removed", model.settings_of, rewrite("_1 and _ not in _", "_1")),
        Mutation("all fields are stored", model.change_settings, rewrite("_1 in _2", "True")),
    ],
    ids=rule_of,
)
def test_settings_of_the_user_replace_the_default(broken: Mutation, lake: HotLake) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_default.check_settings(lake))


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "broken",
    [
        Mutation("few pages stay", store.shrink_sqlite, rewrite("_1 < _2 * _3", "False")),
        Mutation("many pages leave", store.shrink_sqlite, rewrite("_1 < _2 * _3", "True")),
    ],
    ids=rule_of,
)
def test_free_pages_are_reused(broken: Mutation, lake: HotLake) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_default.check_space(lake))
