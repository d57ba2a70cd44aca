"""Mutants that `tests/server/test_slow_connections.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tests.server import test_slow_connections
from tests.server.test_slow_connections import tls
from tracelake.server.connections import Handshakes, Tls


def test_handshakes_are_noticed_without_bounds(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check fails if a bound is removed."""
    monkeypatch.setattr("tests.server.test_slow_connections.HANG_S", 1.0)
    no_room = Mutation("the slowest makes room", Handshakes.begin, drop("_()"))
    assert_caught(no_room, lambda: test_slow_connections.check_handshakes_at_once(tls))
    no_end = Mutation(
        "a handshake has an end", Handshakes._secure, rewrite("_1(..., a=_._)", "_1(..., a=60.0)")
    )
    assert_caught(no_end, lambda: test_slow_connections.check_long_handshakes(tls))
