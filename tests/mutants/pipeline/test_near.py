"""Mutants that `tests/pipeline/test_near.py` notices."""

from __future__ import annotations

import uuid

import pytest

import tracelake
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.pipeline import test_near
from tracelake.pipeline.batch_sizing import BatchSizer


def test_that_it_does_not_wait_is_held() -> None:
    """The test fails for the broken rule."""
    broken = Mutation("large work waits", BatchSizer.cut, rewrite("_()", "True"))

    def check() -> None:
        with pytest.MonkeyPatch.context() as patch, tracelake.init(f"memory://{uuid.uuid4().hex}") as lake:
            test_near.test_a_backlog_does_not_wait_for_the_start(lake, patch)

    assert_caught(broken, check)
