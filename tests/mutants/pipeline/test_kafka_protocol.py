"""Mutants that `tests/pipeline/test_kafka_protocol.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_kafka_protocol
from tracelake.pipeline import protocol

MUTANTS = (
    (Mutation("ranges that touch are one", protocol.united, rewrite("_1 <= _2", "_1 < _2")), 0),
    (Mutation("a range within another ends none", protocol.united, rewrite("_(_, _1)", "_1")), 0),
    (Mutation("what is new at the end is read", protocol.pending_ranges, rewrite("[*_1, (_, _)]", "_1")), 1),
    (
        Mutation(
            "what failed between others is read", protocol.pending_ranges, rewrite("a < _1", "a + 1 < _1")
        ),
        1,
    ),
    (Mutation("what is held is not read", protocol.ranges, rewrite("(*_1, *_)", "_1")), 1),
    (Mutation("what is lost is named", protocol.ranges, rewrite("if _1:\n    _", "if _1:\n    pass")), 1),
    (Mutation("what is lost stands alone", protocol.ranges, rewrite("min(_1, _._)", "_1")), 1),
    (
        Mutation(
            "what is taken in part is not taken",
            protocol.has_all,
            rewrite("_1 <= _2 and _ <= _3", "_1 <= _2 and _2 < _3"),
        ),
        2,
    ),
    (
        Mutation(
            "what is taken in part is cut anew",
            protocol.has_any,
            rewrite("_1 < _2 and _ < _3", "_1 < _2 and _3 <= _2"),
        ),
        2,
    ),
    (Mutation("giving up takes no more than is lost", protocol.given_up, rewrite("_(_1, _)", "_1")), 2),
    (
        Mutation(
            "what was given up in part holds nothing",
            protocol.blocking_ranges,
            rewrite("_1(_2, _3, _)", "_1(_2, _3, _3)"),
        ),
        2,
    ),
)


@pytest.mark.parametrize(("broken", "number"), MUTANTS, ids=rule_of)
def test_broken_rules_are_caught(broken: Mutation, number: int) -> None:
    """A test above fails for each broken rule of the page."""
    checks = (
        test_kafka_protocol.test_ranges_are_united_without_a_loss,
        test_kafka_protocol.test_what_is_read_is_what_is_left,
        test_kafka_protocol.test_a_range_is_taken_where_all_of_it_is,
    )
    assert_caught(broken, checks[number])
