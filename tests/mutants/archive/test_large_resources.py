"""Mutants that `tests/archive/test_large_resources.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.archive import test_large_resources
from tests.archive.test_archive import Make
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake._errors import UsageError
from tracelake.archive import service as lake_archive
from tracelake.archive.repositories import TablesRepository
from tracelake.cli import archive as cli_archive


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("so much of one trace", TablesRepository._outcomes, rewrite("_1 > _", "_1 < 0")),
            test_large_resources.check_one,
        ),
        (
            Mutation("so much at once", TablesRepository.store, rewrite("_(_._)", "0")),
            test_large_resources.check_pieces,
        ),
        (
            Mutation(
                "so much of the tables",
                lake_archive._about,
                rewrite("_1(_2, a=_3)", "_1(_2, a=10 ** 9 + _3)"),
            ),
            test_large_resources.check_about,
        ),
        (
            Mutation(
                "so much is brought back", lake_archive.LakeTables.spans, rewrite("_1(_2, a=_)", "_1(_2)")
            ),
            test_large_resources.check_restore,
        ),
        (
            Mutation(
                "others are brought back",
                cli_archive.restore,
                rewrite(
                    "try: ...\nexcept _ as a: ...",
                    "try: ...\nexcept usageerror as a: ...",
                    usageerror=UsageError,
                ),
            ),
            test_large_resources.check_restore,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(make: Make, broken: Mutation, check: Callable[[Make], None]) -> None:
    """The checks fail if any rule is removed."""
    assert_caught(broken, lambda: check(make))
