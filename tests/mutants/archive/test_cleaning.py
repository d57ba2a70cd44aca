"""Mutants that `tests/archive/test_cleaning.py` notices."""

from __future__ import annotations

import pytest

from tests.archive import test_cleaning
from tests.archive.test_cleaning import url
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.storage.servers.postgres import PostgresServer
from tracelake.archive import store
from tracelake.tracking.database import TrackingDatabase


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("the cleaning is patient", store._clean_postgres, rewrite("True", "False")),
        Mutation("others are not", store._clean_postgres, drop("_()")),
    ],
    ids=rule_of,
)
def test_a_table_may_take_long(broken: Mutation, url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_cleaning.test_a_table_may_take_long(url, caplog))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "keepalives",
            TrackingDatabase._connect_postgres,
            rewrite("_1(..., a=_(_), b=_2, c=_3)", "_1(..., a=7200, b=_2, c=_3)"),
        )
    ],
    ids=rule_of,
)
def test_a_machine_that_vanished_is_missed(broken: Mutation, postgres: PostgresServer) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_cleaning.test_a_machine_that_vanished_is_missed(postgres))
