"""Mutants that `tests/tracking/test_in_parts.py` notices."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.tracking import test_in_parts
from tracelake.tracking import outbox as outboxes
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.store import TrackingStore

MUTANTS: list[tuple[Mutation, test_in_parts.Check]] = [
    (
        Mutation("JSON goes as it came", test_in_parts.DECIDES, rewrite("_ and _1", "_1")),
        test_in_parts.check_as_received,
    ),
    (
        Mutation("what was refused goes too", test_in_parts.DECIDES, rewrite("not _", "True")),
        test_in_parts.check_as_received,
    ),
    (
        Mutation(
            "a trace is of one request",
            test_in_parts.DECIDES,
            rewrite("sum((len(_1.a) for _1 in _2)) == len(_3)", "sum((len(_1.a) for _1 in _2)) >= len(_3)"),
        ),
        test_in_parts.check_as_received,
    ),
    (
        Mutation("it does not grow", test_in_parts.DECIDES, rewrite("_1 <= _2", "_1 >= 0 <= _2")),
        test_in_parts.check_as_received,
    ),
    (
        Mutation(
            "what is refused stays out",
            TrackingStore.write,
            rewrite("if _1 and _2: ...", "if _1 and _2:\n    pass"),
        ),
        test_in_parts.check_refused,
    ),
    (
        Mutation(
            "late parts stay out",
            TrackingStore.write,
            rewrite("_1 = {_2: _3 for _ in _4 if _}", "_1 = {_2: _3 for _2, _3 in _4}", nth=1),
        ),
        test_in_parts.check_refused,
    ),
    (
        Mutation("a row keeps what is deleted", outboxes.keep, rewrite("_1(a=_)", "_1(a=b'')")),
        test_in_parts.check_deleted,
    ),
    (
        Mutation("a row has all its parts", outboxes.segments, rewrite("_1._(_._, _)", "_1")),
        test_in_parts.check_lost,
    ),
    (
        Mutation("what is whole is read", outboxes.segments, rewrite("_1(_2, a=_)", "_1(_2, a=None)")),
        test_in_parts.check_damaged,
    ),
    (
        Mutation("what was whole stays", Outbox._again, rewrite("(_1, _, _2)", "(_1, _2)")),
        test_in_parts.check_again,
    ),
    (
        Mutation(
            "it is as old as it was",
            Outbox._again,
            rewrite("{_1: _2, _3: _4, _5: _}", "{_1: _2, _3: _4, _5: 0}"),
        ),
        test_in_parts.check_again,
    ),
]


@pytest.mark.parametrize(("broken", "check"), MUTANTS, ids=rule_of)
def test_each_rule_is_held(broken: Mutation, check: test_in_parts.Check, tmp_path: Path) -> None:
    """A test fails for each broken rule, which would store a request twice, or lose part of it."""
    with closing(TrackingDatabase(f"sqlite://{tmp_path}/tracking.db")) as database:
        migrate(database)
        assert_caught(broken, lambda: check(TrackingStore(database, "lake-a"), tmp_path))
