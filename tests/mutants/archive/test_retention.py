"""Mutants that `tests/archive/test_retention.py` notices."""

from __future__ import annotations

import pytest

from tests.archive import test_retention
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.archive.retention import ArchiveOutcome, is_archive_now_complete, resolve


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("longer counts for all", resolve, rewrite("_ or _ or _1", "True or _1")),
        Mutation("nobody may be longer", resolve, rewrite("_1 or _ or _2", "_1 or _2")),
        Mutation("shorter does not count", resolve, rewrite("_1 < _2", "_1 > _2")),
        Mutation("the default limits settings", resolve, rewrite("_1._ is None and _2", "_2 is not None")),
    ],
    ids=rule_of,
)
def test_a8_every_retention_of_server_workspace_experiment_and_allowlist(broken: Mutation) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, test_retention.test_a8_every_retention_of_server_workspace_experiment_and_allowlist)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "a failure ends it",
            is_archive_now_complete,
            rewrite("(_1, _2, _3)", "(_1, _2, _3, failed)", failed=ArchiveOutcome.FAILED),
        ),
        Mutation("malformed traces keep it", is_archive_now_complete, rewrite("(_1, _2, _)", "(_1, _2)")),
    ],
    ids=rule_of,
)
def test_a7_when_archive_now_is_done(broken: Mutation) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, test_retention.test_a7_when_archive_now_is_done)
