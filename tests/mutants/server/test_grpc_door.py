"""Mutants that `tests/server/test_grpc_door.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_grpc_door
from tracelake.server.otlp_grpc import OtlpGrpcServer


@pytest.mark.parametrize(
    "broken",
    [Mutation("not very many wait", OtlpGrpcServer._wait_for_turn, rewrite("a._", "2 ** 62", nth=1))],
    ids=rule_of,
)
def test_few_wait_for_their_turn(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_grpc_door.test_few_wait_for_their_turn)
