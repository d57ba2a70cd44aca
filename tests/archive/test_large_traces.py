"""A trace that is too large to restore is not archived."""

from __future__ import annotations

import pytest

from tests.archive.test_archive import Make, payload_of
from tests.tracking.requests import trace_id
from tracelake.archive import repositories
from tracelake.archive import store as stores


@pytest.mark.parametrize("layout", ["lake", "trace", "pack"])
def test_a_trace_that_would_not_come_back_stays_hot(
    make: Make, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes are checked before decompression: the large trace is marked, and other traces are archived and
    restored."""
    for module in (stores, repositories):
        monkeypatch.setattr(module, "TRACE_ARCHIVED_MAX_BYTES", 5_000)
    lake = make(layout)

    def check() -> None:
        lake.archive.delete([trace_id(1), trace_id(2)])
        lake.write((1, 1), text="x" * 3_000)
        lake.write((1, 2), text="x" * 3_000)
        lake.write((2, 1), text="x" * 3_000)
        before = payload_of(lake, 1)
        report = lake.archive.run()
        assert report.fates == {"archived": 1, "malformed": 1}
        assert "5000 that the archive accepts for one trace" in report.failures[trace_id(1)]
        assert payload_of(lake, 1) == before
        assert lake.archive.run().fates == {}, "it is marked"
        assert lake.archive.restore(trace_id(2))

    check()
