"""Mutants that `tests/lake/test_hot_search.py` notices."""

from __future__ import annotations

import pytest

import tracelake
from tests.lake import test_hot_search
from tests.lake.test_hot_search import _patient
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search.build import write_unpublished
from tracelake.tracking.store import TrackingStore


@pytest.mark.parametrize("error", [ValueError(test_hot_search.FULL)], ids=type)
@pytest.mark.parametrize(
    "broken",
    [Mutation("tantivy says it by a ValueError", write_unpublished, rewrite("(_, _)", "()"))],
    ids=rule_of,
)
def test_a_cache_that_is_full_hides_no_commit(
    broken: Mutation,
    lake: tracelake.Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    error: BaseException,
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_hot_search.test_a_cache_that_is_full_hides_no_commit(lake, store, pipeline, error),
    )
