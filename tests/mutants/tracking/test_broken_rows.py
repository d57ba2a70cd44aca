"""Mutants that `tests/tracking/test_broken_rows.py` notices."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking import test_broken_rows
from tracelake._errors import DamageError
from tracelake.tracking import store as rows
from tracelake.tracking import store as stores
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate
from tracelake.tracking.store import TrackingStore, unpacked


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a text is cut", rows._cut, rewrite("_1[_]", "_1")),
        Mutation("no column has a NUL", rows._cut, rewrite("_1._(_, _)", "_1")),
    ],
    ids=rule_of,
)
def test_columns_hold_what_both_databases_do(broken: Mutation) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, test_broken_rows.test_columns_hold_what_both_databases_do)


@pytest.mark.parametrize(
    "broken", [Mutation("sizes are compared", unpacked, rewrite("_ != _", "False"))], ids=rule_of
)
def test_a_payload_has_the_bytes_that_its_row_says(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_broken_rows.test_a_payload_has_the_bytes_that_its_row_says)


@pytest.mark.parametrize(
    "broken", [Mutation("a size is looked at first", unpacked, rewrite("_ <= _", "True"))], ids=rule_of
)
def test_a_payload_that_says_it_is_huge_is_damage(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_broken_rows.test_a_payload_that_says_it_is_huge_is_damage)


def test_a_lake_whose_number_is_not_kept_is_damage(tmp_path: Path) -> None:
    """A file that loses writes is an error with a message, and not a lake without a number."""
    with closing(TrackingDatabase(f"sqlite://{tmp_path}/tracking.db")) as database:
        migrate(database)
        with database.writing() as connection:
            connection.exec_driver_sql(
                "CREATE TRIGGER lost AFTER INSERT ON tracelake_lakes BEGIN DELETE FROM tracelake_lakes; END"
            )

        def check() -> None:
            with pytest.raises(DamageError, match="returns other data than was written; restore it"):
                TrackingStore(database, "lake-a")

        check()
        assert_caught(Mutation("it is asked", stores._lake, rewrite("_ is None", "False")), check)


@pytest.mark.parametrize(
    "broken",
    [Mutation("ids in order", rows.group_by_trace, rewrite("dict(sorted(_1._()))", "_1"))],
    ids=rule_of,
)
def test_writes_lock_traces_in_one_order(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_broken_rows.test_writes_lock_traces_in_one_order)
