"""Damage of an index, or of the rows that it is built from: no merge copies it, and it delays no other part."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tests.lake.test_lake_merges import counts, merger_of
from tests.lake.test_lake_search import Killed, ingest
from tests.pipeline.spans import a_span
from tests.search.embedders import HERE
from tracelake import DamageError
from tracelake.indexing.merge import IndexMerger
from tracelake.pipeline.outputs.builtin import CommitOutput, IndexOutput
from tracelake.search.model import manifest_path
from tracelake.search.protocol import INDEX_FAN_OUT as FAN_OUT
from tracelake.search.vectors import PLAIN
from tracelake.tables.maintenance import Maintainer
from tracelake.tables.view import build_name
from tracelake.tasks.runners import InProcess


def passing_by(folder: Path) -> None:
    """Damage rows of some transactions: their parts stay unchanged, and others are merged as usual."""
    with tracelake.init(folder / "lake", buckets=2) as lake:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
            patch.setattr(Maintainer, "maintain", lambda *_: None)
            for number in range(3 * FAN_OUT):
                ingest(lake, folder, number, a_span(number, 0, note=f"only{number}"))
        parts = lake.table("spans").scan.snapshot.parts
        file = folder / "lake" / parts[2].path
        whole = file.read_bytes()
        file.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        index_part = next(folder.glob(f"lake/search/spans/parts/spans-{3:010d}/*.pack"))
        index_part.write_bytes(b"")  # one of the same run: it would be built from rows
        merger = merger_of(lake)
        merger.maintain()
        assert counts(lake) == (3 * FAN_OUT, FAN_OUT + 2), "of three runs the newer two are merged"
        commits = len(lake.log())
        merger.maintain()
        assert len(lake.log()) == commits
        for number in range(3 * FAN_OUT, 4 * FAN_OUT):
            ingest(lake, folder, number, a_span(number, 0, note=f"only{number}"))
        assert counts(lake)[1] <= FAN_OUT + 3, "and so is what comes then"
        file.write_bytes(whole)
        merger_of(lake).maintain()
        assert counts(lake) == (4 * FAN_OUT, 1)
        assert len(lake.search("*", limit=100)) == 4 * FAN_OUT


def test_a_run_that_cannot_be_merged_holds_up_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The failed run is named, and retried later, once the damage is repaired."""
    passing_by(tmp_path)
    assert "the index of transactions 0 to 23 was not merged" in caplog.text
    assert "the index of transactions 0 to 7 was not merged" in caplog.text


def getting_vectors(folder: Path) -> None:
    """Damage rows of one of three transactions that entered an index with vectors without having any."""
    with tracelake.init(folder / "lake", buckets=2) as lake:
        ingest(lake, folder, 0, a_span(0, 0, note="refund"))
        lake.maintenance.rebuild_index(vectors=f"{HERE}:bag_of_words", runner=InProcess())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(IndexOutput, "settings", lambda _: PLAIN)
            patch.setattr(IndexMerger, "maintain", lambda *_, **__: None)
            patch.setattr(Maintainer, "maintain", lambda *_: None)
            for number in range(1, 4):
                ingest(lake, folder, number, a_span(number, 0, note="refund"))
        file = (
            folder
            / "lake"
            / next(
                part.path for part in lake.table("spans").scan.snapshot.parts if part.first_row_id >> 32 == 1
            )
        )
        whole = file.read_bytes()
        file.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        merger = merger_of(lake)
        merger.maintain()
        info = lake.index()
        assert info is not None
        assert info.without_vector == 1, "the others have theirs"
        file.write_bytes(whole)
        merger_of(lake).maintain()
        info = lake.index()
        assert info is not None
        assert info.without_vector == 0


def test_what_cannot_have_vectors_keeps_none_from_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The damaged part is named, and intact later spans are found by meaning."""
    getting_vectors(tmp_path)
    assert "the index of transactions 1 to 1 was not merged" in caplog.text


def torn_before_its_commit(folder: Path, left: bytes) -> None:
    """Truncate the manifest of an uncommitted transaction, after its staging was deleted."""

    def die(*_: object) -> None:
        raise Killed

    with tracelake.init(folder / "lake", buckets=2) as lake:
        ingest(lake, folder, 0, a_span(0, 0, note="word"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CommitOutput, "publish", die)
            with pytest.raises(Killed):
                ingest(lake, folder, 1, a_span(1, 0, note="word"))
        (folder / "lake" / manifest_path("spans", build_name(1))).write_bytes(left)
        ingest(lake, folder, 1, a_span(1, 0, note="word"))
        ingest(lake, folder, 2, a_span(2, 0, note="word"))
        assert len(lake.search("word")) == 3
        assert lake.verify().findings == ()


@pytest.mark.parametrize("left", [b"", b'{"format_version":1,"index":"spans"'])
def test_a_torn_manifest_of_a_transaction_that_has_no_commit_counts_as_none(
    tmp_path: Path, left: bytes
) -> None:
    """The manifest is built again from the input. Otherwise the pipeline would ask for the staged data forever."""
    torn_before_its_commit(tmp_path, left)


def built_of_damaged_rows(folder: Path) -> None:
    """Rebuild an index from rows with a flipped bit: Parquet itself notices less than half of these."""
    with tracelake.init(folder / "lake", buckets=2) as lake:
        ingest(lake, folder, 0, *(a_span(n, 0, note=f"word{n}") for n in range(9)))
        ingest(lake, folder, 1, *(a_span(n, 0, end=99, note=f"other{n}") for n in range(3)))
        snapshot = lake.table("spans").scan.snapshot
        for part in (*snapshot.parts, *snapshot.retractions):
            file = folder / "lake" / part.path
            whole = file.read_bytes()
            for place in range(5, len(whole) * 3 // 4, len(whole) // 7):
                file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
                with pytest.raises(DamageError):
                    lake.maintenance.rebuild_index(runner=InProcess())
            file.write_bytes(whole)
        lake.maintenance.rebuild_index(runner=InProcess())
        assert lake.verify().findings == ()


def test_an_index_is_not_built_of_damaged_rows(tmp_path: Path) -> None:
    """An index is never built from damaged rows, as readers refuse them: `verify` would not report wrong content in
    it."""
    built_of_damaged_rows(tmp_path)
