"""Mutants that `tests/server/test_grpc_turns_to_read.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_grpc_turns_to_read
from tracelake.server.otlp_grpc import OtlpGrpcServer


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("each is seen in some turns", OtlpGrpcServer._look, rewrite("_ >= _", "True")),
            test_grpc_turns_to_read.check_a_burst,
        ),
        (
            Mutation("as many as wait", OtlpGrpcServer._look, rewrite("_ and _1 and _2", "_1 and _2")),
            test_grpc_turns_to_read.check_the_slowest_makes_room,
        ),
        (
            Mutation("who is ending makes room, too", OtlpGrpcServer._look, drop("_ -= 1")),
            test_grpc_turns_to_read.check_the_slowest_makes_room,
        ),
        (
            Mutation(
                "whose time is over is left", OtlpGrpcServer._look, rewrite("_1 and _2 and _", "_1 and _2")
            ),
            test_grpc_turns_to_read.check_who_is_over_already,
        ),
        (
            Mutation("a turn is given back", OtlpGrpcServer._read, drop("_()")),
            test_grpc_turns_to_read.check_cancelled,
        ),
        (
            Mutation("who went waits no more", OtlpGrpcServer._wait_for_turn, drop("_ -= 1")),
            test_grpc_turns_to_read.check_cancelled,
        ),
    ],
    ids=rule_of,
)
def test_rules_of_turns_are_held(broken: Mutation, check: Callable[[], None]) -> None:
    """The checks fail for each broken rule."""
    assert_caught(broken, check)
