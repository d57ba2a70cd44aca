"""Mutants that `tests/tracking/test_migrating.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.storage.servers.postgres import PostgresServer
from tests.tracking import test_migrating
from tracelake.tracking import migrate as migrating
from tracelake.tracking.migrate import migrate


def test_the_isolation_of_a_migration_is_its_own(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test fails if a migration uses the server's default isolation."""
    broken = Mutation("isolation", migrate, rewrite("_1.a(_2(_))", "_1.a(_2('SELECT 1'))"))
    assert_caught(
        broken, lambda: test_migrating.test_changes_of_another_process_are_seen(postgres, monkeypatch)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a revision has no deadline", migrating._patiently, rewrite("True", "False")),
        Mutation("others have one", migrating._patiently, rewrite("False", "True")),
    ],
    ids=rule_of,
)
def test_a_revision_may_take_long(
    broken: Mutation, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_migrating.test_a_revision_may_take_long(postgres, monkeypatch))
