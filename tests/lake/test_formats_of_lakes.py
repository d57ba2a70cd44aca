"""Lakes of earlier and newer formats are readable, or the error names the release that reads them.

Each has three spans of two traces, ingested by the code of an earlier commit: `without-checksums` by 8518a899~1,
`without-places` by 8518a899, `journal-2` by 5e076f8f~1, and `journal-3` by 8f7028bb.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import tracelake
from tests.altered import altered
from tests.pipeline.spans import a_line, a_span
from tracelake import FormatError, UsageError, location
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
