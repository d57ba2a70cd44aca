"""Mutants that `tests/tracking/test_migrating.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.storage.servers.postgres import PostgresServer
from tests.tracking import test_migrating
from tracelake.tracking import migrate as migrating
from tracelake.tracking.migrate import migrate
from tracelake.tracking.migrations.copying import hold


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (
            Mutation("all tables", migrating.create, rewrite("(_1, _2)", "(_2,)")),
            test_migrating.test_new_tables_are_those_of_all_migrations,
        ),
        (
            Mutation("their revision", migrating.create, rewrite("{_1: _2}", "{_1: '0007'}")),
            lambda new_url: test_migrating.test_from_each_revision(new_url, None),
        ),
    ],
)
def test_new_tables_are_those_of_this_release(
    broken: Mutation, test: Callable[[Callable[[], str]], None], new_url: Callable[[], str]
) -> None:
    """A test fails if a new database lacks tables, or has another revision."""
    assert_caught(broken, lambda: test(new_url))


def test_a_copy_without_a_lock_is_noticed(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails if a revision copies a table without locking it."""
    broken = Mutation("what is copied is held", hold, rewrite("if _1: ...", "if not _1: ..."))
    assert_caught(
        broken, lambda: test_migrating.test_what_is_being_written_is_copied_too(postgres, monkeypatch, "0004")
    )


def test_the_isolation_of_a_migration_is_its_own(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test fails if a migration uses the server's default isolation."""
    broken = Mutation("isolation", migrate, rewrite("_1.a(_2(_))", "_1.a(_2('SELECT 1'))"))
    assert_caught(
        broken, lambda: test_migrating.test_what_is_being_written_is_copied_too(postgres, monkeypatch, "0004")
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
