"""Mutants of erasures: for each broken rule, a named test fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from tests.erasure import test_protocol
from tests.lake import conftest, test_erasure, test_erasure_races
from tracelake import Lake, TracelakeError
from tracelake.archive import service
from tracelake.archive import store as archive_store
from tracelake.archive.service import LakeArchive
from tracelake.erasure.protocol import ErasureStep, Mask, Observation, next_step, without_entry
from tracelake.erasure.store import ErasureStore
from tracelake.indexing.redaction import IndexRedactor
from tracelake.lake import erasure
from tracelake.pipeline import driver
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.pipeline.outputs import builtin
from tracelake.pipeline.sources.deletions import RequestFence
from tracelake.pipeline.staging import delete_staged
from tracelake.search.finalize import Redactions
from tracelake.storage import ObjectStore
from tracelake.storage.local import FileObjectStore
from tracelake.tables import redaction
from tracelake.tables.scan import Scan
from tracelake.tracking import store as tracking
from tracelake.tracking.store import TrackingStore

lake, store, pipeline = conftest.fixture_lake, conftest.fixture_store, conftest.pipeline


def _replace_any(self: FileObjectStore, path: str, data: bytes, _expected: bytes) -> bool:
    self.put(path, data)
    return True


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


@pytest.mark.parametrize("name", ["mask_late_spans", "ids_by_erasure"])
def test_a_replay_that_brings_a_row_back_is_caught(
    name: str, lake: Lake, store: TrackingStore, pipeline: InboxPipeline, tmp_path: Path
) -> None:
    """A pipeline hides late spans before it commits them, and knows the traces of finished erasures."""
    with mock.patch.object(ErasureStore, name, return_value={}), pytest.raises(AssertionError):
        test_erasure.test_a_trace_that_is_ingested_again_is_erased_again(lake, store, pipeline, tmp_path)


@pytest.mark.parametrize("field", ["until", "finished"])
def test_an_erasure_that_ends_before_a_late_transaction_is_caught(field: str) -> None:
    """The mask of late spans stays until the erasure has looked at their transaction."""

    def wrong(mask: Mask, erasure_id: str, upper: int) -> Mask:
        ended = without_entry(mask, erasure_id, upper if field == "finished" else 1_000)
        return replace(ended, finished=()) if field == "finished" else ended

    with mock.patch.object(test_protocol, "without_entry", wrong), pytest.raises(AssertionError):
        test_protocol.check_late_spans()


def test_staged_rows_that_nobody_looks_into_are_caught(
    lake: Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged rows that are newer than the erasure may be those of its traces."""

    def by_time(objects: ObjectStore, until_s: float, _: object) -> None:
        delete_staged(objects, until_s, lambda _: ())

    with mock.patch.object(erasure, "delete_staged", by_time), pytest.raises(AssertionError):
        test_erasure.test_a_staged_deletion_of_the_traces_is_deleted(lake, store, pipeline, monkeypatch)


def test_change_feeds_that_show_erased_rows_are_caught(
    lake: Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Scans of changes and of Spark jobs come from the view, which hides the traces."""
    test = test_erasure.test_listeners_and_spark_show_nothing_of_an_erased_trace
    with mock.patch.object(Scan, "hiding", lambda self, _: self), pytest.raises(AssertionError):
        test(lake, store, pipeline)


def test_requests_that_stay_are_caught(lake: Lake, store: TrackingStore, pipeline: InboxPipeline) -> None:
    """Requests of killed processes list erased traces."""
    test = test_erasure.test_requests_of_killed_processes_are_finished
    with mock.patch.object(erasure, "pending_with", return_value=[]), pytest.raises(AssertionError):
        test(lake, store, pipeline, "commit_request")


@pytest.mark.parametrize(
    ("target", "name", "wrong", "paused_at"),
    [
        (erasure, "fence_requests", lambda _: None, "submit"),
        (erasure, "fence_requests", lambda _: None, "is_there"),
        (RequestFence, "is_there", lambda _: True, "submit"),
        (FileObjectStore, "replace", _replace_any, "is_there"),
    ],
    ids=["no withdrawal", "no withdrawal of drafts", "no look at the fence", "a draft is not compared"],
)
def test_lists_after_an_erasure_are_caught(
    lake: Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    target: object,
    name: str,
    wrong: Callable[..., object],
    paused_at: str,
) -> None:
    """A slow process writes a list of traces that it chose before the erasure."""
    test = test_erasure.test_a_list_that_is_written_after_an_erasure_has_none_of_its_traces
    with mock.patch.object(target, name, wrong), pytest.raises(AssertionError):
        test(lake, store, pipeline, paused_at)


@pytest.mark.parametrize("broken", [FileObjectStore, LakeArchive], ids=["lake", "archive"])
def test_files_of_killed_writers_that_stay_are_caught(
    broken: type, lake: Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Temporary files of killed writers may have the text of the traces."""
    name = "sweep_temporaries" if broken is FileObjectStore else "purge"
    with mock.patch.object(broken, name), pytest.raises(AssertionError):
        test_erasure.test_files_of_killed_writers_are_deleted(lake, store, pipeline)


def test_a_store_that_forgets_erased_traces_is_caught(lake: Lake, store: TrackingStore) -> None:
    """Late spans are refused."""
    with (
        mock.patch.object(tracking, "erased_among", return_value=set()),
        pytest.raises(AssertionError),
    ):
        test_erasure.test_late_spans_of_an_erased_trace_are_refused(lake, store)


def test_a_slow_publisher_that_undoes_a_redaction_is_caught(
    lake: Lake, store: TrackingStore, pipeline: InboxPipeline, tmp_path: Path
) -> None:
    """A transaction applies the records of replaced parts before its commit."""
    test = test_erasure_races.test_a_slow_transaction_does_not_name_replaced_index_parts
    with mock.patch.object(builtin, "Redactions"), pytest.raises((AssertionError, TracelakeError)):
        test(lake, store, pipeline, tmp_path)


def test_an_ingest_that_fails_beside_an_erasure_is_caught(
    lake: Lake, store: TrackingStore, pipeline: InboxPipeline, tmp_path: Path
) -> None:
    """A run is repeated if an eraser deletes its parts."""
    test = test_erasure_races.test_an_ingest_whose_parts_an_eraser_collects_is_repeated
    with mock.patch.object(driver, "_TRIES_BESIDE_ERASURE", 1), pytest.raises(TracelakeError):
        test(lake, store, pipeline, tmp_path)


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "test"),
    [
        (
            erasure,
            "REDACTIONS_S",
            -1.0,
            test_erasure_races.test_a_slow_index_merge_does_not_bring_documents_back,
        ),
        (Redactions, "targets", lambda _: set(), test_erasure_races.test_a_collection_spares_a_replacement),
        (
            FileObjectStore,
            "replace",
            _replace_any,
            test_erasure_races.test_a_slow_eraser_does_not_restore_replaced_parts,
        ),
    ],
)
def test_lost_records_of_replaced_parts_are_caught(
    lake: Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    owner: Any,
    name: str,
    wrong: Any,
    test: Callable[..., None],
) -> None:
    """The records stay a day after the erasure, garbage collection spares the replacements that they name, and an
    eraser replaces only a manifest that it has read."""
    with mock.patch.object(owner, name, wrong), pytest.raises((AssertionError, TracelakeError)):
        test(lake, store, pipeline)


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "test"),
    [
        (LakeArchive, "packs_with", {}, test_erasure.test_a_pack_with_a_trace_that_changed_is_erased),
        (
            service,
            "traces_of_pack",
            (),
            partial(test_erasure.test_a_pack_with_a_damaged_index_is_erased, at=-12),
        ),
        (
            archive_store,
            "erased_among",
            set(),
            test_erasure.test_a_pack_that_is_written_beside_an_erasure_is_given_up,
        ),
    ],
)
def test_packs_with_more_than_their_traces_are_caught(
    lake: Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    owner: Any,
    name: str,
    wrong: Any,
    test: Callable[..., None],
) -> None:
    """An erasure looks into each pack, and no pack with an erased trace is finalized."""
    with mock.patch.object(owner, name, return_value=wrong), pytest.raises(AssertionError):
        test(lake, store, pipeline)
