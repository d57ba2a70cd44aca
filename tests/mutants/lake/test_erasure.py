"""Mutants of erasures: for each broken rule, a named test fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from tests.lake import conftest, test_erasure, test_erasure_races
from tracelake import Lake, TracelakeError
from tracelake.erasure.protocol import ErasureStep, Observation, next_step
from tracelake.indexing.redaction import IndexRedactor
from tracelake.lake import erasure
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.tables import redaction
from tracelake.tables.scan import Scan
from tracelake.tracking import store as tracking
from tracelake.tracking.store import TrackingStore

lake, store, pipeline = conftest.fixture_lake, conftest.fixture_store, conftest.pipeline


def _same_id(redactor: Any, files: Any, batch: Any, *rest: Any) -> Any:
    changed = _WITHOUT(redactor, files, batch, *rest)
    return None if changed is None else replace(changed, id=batch.id)


_WITHOUT = redaction.TableRedactor._without


def _without_collection(seen: Observation) -> ErasureStep:
    step = next_step(seen)
    return ErasureStep.FINISH if step is ErasureStep.COLLECT else step


@pytest.mark.parametrize(
    ("module", "name", "wrong", "test"),
    [
        (Scan, "hiding", lambda scan, _: scan, test_erasure.test_no_reader_sees_an_erased_trace),
        (
            redaction.TableRedactor,
            "_without",
            _same_id,
            test_erasure_races.test_a_slow_compaction_does_not_bring_rows_back,
        ),
        (
            erasure.Erasures,
            "_waiting",
            lambda *_: 0,
            test_erasure.test_an_uncommitted_trace_is_erased,
        ),
        (erasure, "next_step", _without_collection, test_erasure.test_the_bytes_of_an_erased_trace_are_gone),
        (
            IndexRedactor,
            "count",
            lambda *_: 0,
            test_erasure.test_the_bytes_of_an_erased_trace_are_gone,
        ),
    ],
    ids=["reader", "compactor", "replay", "garbage", "index"],
)
def test_a_broken_rule_is_caught(
    module: object,
    name: str,
    wrong: object,
    test: Callable[[Lake, TrackingStore, InboxPipeline], None],
    lake: Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
) -> None:
    """Readers hide the traces, compactions lose, input is awaited, garbage is deleted, the index is rewritten."""
    with mock.patch.object(module, name, wrong), pytest.raises((AssertionError, TracelakeError)):
        test(lake, store, pipeline)


def test_a_store_that_forgets_erased_traces_is_caught(lake: Lake, store: TrackingStore) -> None:
    """Late spans are refused."""
    with (
        mock.patch.object(tracking, "erased_among", return_value=set()),
        pytest.raises(AssertionError),
    ):
        test_erasure.test_late_spans_of_an_erased_trace_are_refused(lake, store)
