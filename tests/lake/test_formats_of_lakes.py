"""Lakes of earlier and newer formats are readable, or the error names the release that reads them.

Each has three spans of two traces, ingested by the code of an earlier commit: `without-checksums` by 8518a899~1,
`without-places` by 8518a899, `journal-2` by 5e076f8f~1, and `journal-3` by 8f7028bb.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.altered import altered
from tests.pipeline.spans import a_line, a_span
from tracelake import FormatError, UsageError, location
from tracelake.otlp import conventions
from tracelake.tasks.runners import InProcess

LAKES = Path(__file__).parents[1] / "lakes"
COUNT = "select count(*) as n from spans"


def unpacked(name: str, folder: Path) -> Path:
    """Return the directory of a stored lake."""
    place = folder / name
    with tarfile.open(LAKES / f"{name}.tar.gz") as archive:
        archive.extractall(place, filter="data")
    return place


def more(folder: Path) -> Path:
    """Return a file to ingest."""
    file = folder / "more.jsonl"
    file.write_bytes(a_line(a_span(9, 9)))
    return file


def check_names_a_release(folder: Path) -> None:
    """Check that a lake from before checksums, or with checksums that ignore the path, is not reported as damaged."""
    for name, release in (
        ("without-checksums", "before commit 8518a899"),
        ("without-places", "until 775ea835"),
    ):
        with pytest.raises(FormatError, match=rf"earlier format.*not damaged.*{release}") as error:
            tracelake.open(unpacked(name, folder))
        assert "backup" not in str(error.value)


def test_lakes_that_no_release_reads(tmp_path: Path) -> None:
    """See `check_names_a_release`."""
    check_names_a_release(tmp_path)


def test_a_journal_of_format_2(tmp_path: Path) -> None:
    """Its tables are readable; `verify` and `ingest` name the release that supports it, and report no damage."""
    with tracelake.open(unpacked("journal-2", tmp_path)) as lake:
        assert lake.sql(COUNT).to_pylist() == [{"n": 3}]
        with pytest.raises(UsageError, match=r"use the version that built it, or"):
            lake.search("old")
        (finding,) = lake.verify().findings
        assert (finding.kind, finding.what, finding.path) == ("mismatch", "journal", "format")
        assert "5e076f8f" in finding.detail
        with pytest.raises(FormatError, match=r"format 2; this release reads 3.*commit 5e076f8f"):
            lake.ingest(more(tmp_path), runner=InProcess())


def test_a_journal_of_format_3(tmp_path: Path) -> None:
    """It is readable, verifiable and writable; its rows have no checksums, and `verify` reports that."""
    with tracelake.open(unpacked("journal-3", tmp_path)) as lake:
        report = lake.verify()
        assert report.ok
        assert "no checksum" in report.unread[0]
        lake.ingest(more(tmp_path), runner=InProcess())
        assert lake.sql(COUNT).to_pylist() == [{"n": 4}]
        assert lake.verify().ok


def used(trace: int, span: int, **fields: Any) -> dict[str, Any]:
    """Return a span of a model call, with one million tokens of input."""
    sent = {"gen_ai.request.model": "gpt-4o", "gen_ai.usage.input_tokens": "1000000"}
    listed = [{"key": key, "value": {"stringValue": text}} for key, text in sent.items()]
    return a_span(trace, span, attributes=listed, **fields)


def check_old_parts(folder: Path) -> None:
    """Check a lake whose parts lack later columns: reads, transactions, branches, search, compaction, and `verify`."""
    old, (first, second) = f"{1:032x}", (folder / "first.jsonl", folder / "second.jsonl")
    first.write_bytes(a_line(used(0, 6)))
    second.write_bytes(a_line(used(0, 7), used(5, 0)))
    costs = "select count(*) as n, count(cost) as known, sum(cost) as cost, count(type) as types from spans"
    with tracelake.open(unpacked("journal-3", folder)) as lake:
        before = lake.branch().head or ""
        assert lake.sql(costs).to_pylist() == [{"n": 3, "known": 0, "cost": None, "types": 0}]
        assert lake.table("spans").lookup([old], ["cost"])["cost"].to_pylist() == [None, None]
        assert len(lake.trace(old).spans) == 2
        branch = lake.create_branch("old")
        lake.ingest(first, runner=InProcess())
        lake.ingest(second, runner=InProcess())
        mixed = [{"n": 6, "known": 3, "cost": 7.5, "types": 3}]
        assert lake.sql(costs).to_pylist() == mixed
        assert lake.table("spans").to_arrow(["cost"], "cost > 1")["cost"].to_pylist() == [2.5] * 3
        assert len(lake.table("spans").lookup([old], ["span_id", "cost", "type"])) == 4
        summed = "select span_count, input_tokens, total_tokens, cost, cached_input_tokens from traces "
        assert lake.sql(f"{summed} where trace_id = '{old}'").to_pylist() == [
            {"span_count": 4, "input_tokens": 2_000_000, "total_tokens": 2_000_000, "cost": 5.0,
             "cached_input_tokens": None}
        ]  # fmt: skip
        assert lake.verify().ok
        assert lake.sql(costs, at="old").to_pylist() == lake.sql(costs, at=before).to_pylist() == [
            {"n": 3, "known": 0, "cost": None, "types": 0}
        ]  # fmt: skip
        lake.merge("main", into="old")
        assert lake.sql(costs, at="old").to_pylist() == mixed
        assert branch.head != before
        with mock.patch.dict(os.environ, TRACELAKE_WINDOW="none"):  # else old parts stay as they are
            lake.maintenance.compact(runner=InProcess())
        assert lake.sql(costs).to_pylist() == mixed
        assert lake.sql(costs, at=before).to_pylist()[0]["n"] == 3
        assert {part.schema_version for part in lake._opened.shard("spans").snapshot(2).parts} == {3}
        lake.maintenance.rebuild_index(runner=InProcess())
        assert lake.search("old").total == 3
        assert lake.verify().ok


def test_parts_without_later_columns(tmp_path: Path) -> None:
    """See `check_old_parts`."""
    check_old_parts(tmp_path)


def check_repeats_across_releases(folder: Path) -> None:
    """Check that a span that arrives again after an upgrade is a repeat, although its row has more columns now."""
    again = folder / "again.jsonl"
    again.write_bytes(a_line(used(0, 0)))
    with tracelake.init(folder / "lake") as lake:
        earlier = {name: [None] for name in conventions.TOKEN_COLUMNS}
        with mock.patch("tracelake.otlp.columns.derive_columns", side_effect=lambda *_: dict(earlier)):
            lake.ingest(again, runner=InProcess())
        assert lake.sql("select total_tokens from spans").to_pylist() == [{"total_tokens": None}]
        once_more = folder / "once-more.jsonl"
        once_more.write_bytes(again.read_bytes() + b"\n")
        report = lake.ingest(once_more, runner=InProcess())
        assert (report.files_known, report.spans_repeated) == (0, 1)
        assert lake.sql("select total_tokens from spans").to_pylist() == [{"total_tokens": None}]


def test_a_newer_lake(tmp_path: Path) -> None:
    """The error for a lake of a newer format names both formats and the release to use."""
    tracelake.init(tmp_path / "lake").close()
    config = tmp_path / "lake" / "lake.json"
    config.write_bytes(
        altered(config.read_bytes(), b'"format_version":1', b'"format_version":2', location.CONFIG)
    )
    with pytest.raises(FormatError, match=r"has format 2; this release reads 1.*or a newer one") as error:
        tracelake.open(tmp_path / "lake")
    assert "backup" not in str(error.value)


def test_flips_stay_damage(tmp_path: Path) -> None:
    """A flipped bit of `lake.json` never makes the lake look like one of another release."""
    tracelake.init(tmp_path / "lake").close()
    whole = (tmp_path / "lake" / "lake.json").read_bytes()
    for at in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        assert location._earlier_release(bytes(flipped)) is None
