"""Mutants that `tests/lake/test_warm_reads.py` notices."""

from __future__ import annotations

import tracelake
from tests.lake import test_warm_reads
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tables.scan import Scan
from tracelake.tracking.outbox import Uncommitted
from tracelake.tracking.store import TrackingStore


def test_a_broken_tier_is_noticed(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A trace with pending spans is read from both tiers."""
    broken = Mutation("pending rows count", Uncommitted.is_settled, rewrite("not _1", "True"))
    assert_caught(
        broken, lambda: test_warm_reads.test_a_pending_version_of_a_span_is_read(lake, store, pipeline)
    )


def test_a_broken_mask_is_noticed(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Warm columns are not read for traces of open erasures."""
    broken = Mutation("masked traces are not read", Scan.in_memory, rewrite("self._ or _1", "_1"))
    assert_caught(
        broken, lambda: test_warm_reads.test_an_erased_trace_is_in_no_warm_read(lake, store, pipeline)
    )
