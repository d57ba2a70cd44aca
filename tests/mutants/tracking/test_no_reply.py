"""Mutants that `tests/tracking/test_no_reply.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.tracking import test_no_reply
from tests.tracking.test_no_reply import store
from tracelake.storage.postgres import AnsweredConnection
from tracelake.tracking.store import TrackingStore


def test_a_wait_without_an_end_is_noticed(store: TrackingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test fails if replies have no timeout."""
    monkeypatch.setattr(test_no_reply, "FAILS_WITHIN_S", 6.0)
    broken = Mutation("a reply is given up", AnsweredConnection._in_time, rewrite("_ > _1", "0 > _1"))
    assert_caught(broken, lambda: test_no_reply.check_broken(store))
