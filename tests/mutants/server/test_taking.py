"""Mutants that `tests/server/test_taking.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_taking
from tracelake.otlp.partition import TracePartitioner
from tracelake.server import otlp_http


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Mutation("traces keep their room", otlp_http._decode, drop("_._(a)")), test_taking.check_room),
        (
            Mutation("a resource counts", TracePartitioner.apart_bytes, rewrite("len(_[_])", "0")),
            test_taking.check_bound,
        ),
        (Mutation("a bound by trace", otlp_http._decode, rewrite("_ > _", "False")), test_taking.check_bound),
    ],
    ids=rule_of,
)
def test_each_rule_is_held(broken: Mutation, check: Callable[[], None]) -> None:
    """A check fails for each broken rule."""
    assert_caught(broken, check)
