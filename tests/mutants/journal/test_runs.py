"""Mutants that `tests/journal/test_runs.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.journal import test_runs
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.journal import model, protocol
from tracelake.journal.model import SegmentRange

RULES = [
    (
        Mutation(
            "problems stay", model._fits, rewrite("_ and _1 and _2 and _3", "True and _1 and _2 and _3")
        ),
        test_runs.check_round_trip,
    ),
    (
        Mutation("damage stays", model._fits, rewrite("_1 and _ and _2 and _3", "_1 and _2 and _3")),
        test_runs.check_round_trip,
    ),
    (
        Mutation("sizes fit", model._fits, rewrite("_1 and _2 and _ and _3", "_1 and _2 and _3")),
        test_runs.check_round_trip,
    ),
    (
        Mutation("only what was read whole", model._fits, rewrite("_1 == _2", "_1 <= _2")),
        test_runs.check_round_trip,
    ),
    (
        Mutation("numbers have so many digits", model._folded, rewrite("(_1, _, _2)", "(_1, 1, _2)")),
        test_runs.check_round_trip,
    ),
    (
        Mutation("numbers are of 64 bits", model._folded, rewrite("_1 = _2[_]", "_1 = _2")),
        test_runs.check_round_trip,
    ),
    (
        Mutation("who is alone is kept", model._folded, rewrite("_1 == 1", "_1 == 0")),
        test_runs.check_round_trip,
    ),
    (
        Mutation("gaps count", model._run, rewrite("_1[1] == _2 - 1", "_1[1] < _2")),
        test_runs.check_round_trip,
    ),
    (
        Mutation("contents are in order", model._run, rewrite("[_1[_] for _ in _]", "[*_1.values()]")),
        test_runs.check_round_trip,
    ),
    (Mutation("sums are of all", model._run, rewrite("_._", "1", nth=7)), test_runs.check_round_trip),
    (
        Mutation("sums are compared", protocol.compare, rewrite("_(_(_), _(_))", "None")),
        test_runs.check_compared,
    ),
    (Mutation("each is compared", protocol.compare, rewrite("a(b, c)", "None")), test_runs.check_compared),
    (
        Mutation(
            "paths are compared",
            protocol.compare,
            rewrite(
                "[_1.a for _1 in _2] != [_1.a for _1 in _]", "[_1.a for _1 in _2] != [_1.a for _1 in _2]"
            ),
        ),
        test_runs.check_compared,
    ),
    (
        Mutation(
            "sizes are compared", protocol._differs, rewrite("(_1, _2) != (_, _3)", "(_1, _2) != (_1, _3)")
        ),
        test_runs.check_compared,
    ),
    (
        Mutation(
            "contents are compared", protocol._differs, rewrite("(_1, _2) != (_3, _)", "(_1, _2) != (_3, _2)")
        ),
        test_runs.check_compared,
    ),
    (
        Mutation("kinds are compared", protocol._differs, rewrite("_ is not _", "False")),
        test_runs.check_compared,
    ),
    (
        Mutation(
            "stretches are in order",
            SegmentRange.__post_init__,
            rewrite("_ < _1 <= _2 < _3", "-1 < _1 <= _2 < _3"),
        ),
        test_runs.check_refused,
    ),
    (
        Mutation(
            "stretches go up",
            SegmentRange.__post_init__,
            rewrite("_1 < _2 <= _3 < _4", "_1 < _2 < _3 + 9 < _4"),
        ),
        test_runs.check_refused,
    ),
    (
        Mutation(
            "numbers have digits", SegmentRange.__post_init__, rewrite("_1 < _2 <= _ < _", "_1 < _2 <= True")
        ),
        test_runs.check_refused,
    ),
    (
        Mutation("digits have a bound", SegmentRange.__post_init__, rewrite("0 < _1 <= _", "_1 < 99")),
        test_runs.check_refused,
    ),
    (
        Mutation("a run has inputs", SegmentRange.__post_init__, rewrite("_ or _1", "_1")),
        test_runs.check_refused,
    ),
    (
        Mutation("contents are of all", SegmentRange.__post_init__, rewrite("_1 != _2", "_1 > _2")),
        test_runs.check_refused,
    ),
]


@pytest.mark.parametrize(("broken", "check"), RULES, ids=rule_of)
def test_broken_rules_of_runs(broken: Mutation, check: Callable[[], None]) -> None:
    """A run that loses, adds or confuses inputs, or equals a different run, is caught."""
    assert_caught(broken, check)
