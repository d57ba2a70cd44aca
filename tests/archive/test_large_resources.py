"""Layout `lake`: the memory of rows bounds the traces compared at once, and no trace blocks others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from tests.archive.test_archive import Make
from tests.lake.test_large_resources import grown
from tests.tracking.requests import trace_id
from tracelake._errors import LimitError
from tracelake.archive import repositories
from tracelake.archive import service as lake_archive
from tracelake.archive.model import HotSnapshot
from tracelake.archive.repositories import TablesRepository
from tracelake.archive.retention import ArchiveOutcome
from tracelake.cli import run

SMALL = 700_000
"""Limit of row bytes that one trace here exceeds, and no other."""


def check_one(make: Make) -> None:
    """Check that a trace with too large rows is marked, and that other traces are archived; another layout archives
    it."""
    lake = make("lake")
    lake.tracking.write([grown(1, range(1, 41)), grown(2, range(1, 11)), grown(3, range(1, 11))])
    lake.commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repositories, "TRACE_ROWS_MAX_BYTES", SMALL)
        report = lake.archive.run()
    assert report.fates == {"archived": 2, "malformed": 1}
    assert "layouts trace and pack archive it" in report.failures[trace_id(1)]
    assert lake.archive.retry([trace_id(1)]) == [trace_id(1)]
    lake.archive.configure(layout="pack")
    assert lake.archive.run().fates == {"archived": 1}


def check_pieces(make: Make) -> None:
    """Check that the traces compared at once fit within the memory limit."""
    lake = make("lake")
    lake.tracking.write([grown(trace, range(1, 11)) for trace in range(1, 5)])
    lake.commit()
    compared: list[int] = []
    fates = TablesRepository._outcomes

    def noted(
        repository: TablesRepository, snapshots: Sequence[HotSnapshot]
    ) -> dict[str, tuple[ArchiveOutcome, str]]:
        compared.append(len(snapshots))
        return fates(repository, snapshots)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repositories, "ARCHIVE_ROWS_MAX_BYTES", 2 * SMALL)
        patch.setattr(TablesRepository, "_outcomes", noted)
        assert lake.archive.run().fates == {"archived": 4}
    assert compared == [2, 2]


def check_about(make: Make) -> None:
    """Check that only the store's spans are read of a trace of which the tables have far more."""
    lake = make("lake")
    lake.tracking.write([grown(1, range(1, 31))])
    lake.commit()
    read: list[int] = []
    spans = lake_archive.LakeTables.spans
    with lake.tracking.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM tracelake_trace_parts")
    lake.tracking.write([grown(1, range(3, 4))])
    lake.commit()

    def noted(
        tables_: lake_archive.LakeTables, ids: Sequence[str], claims: pa.Table | None = None
    ) -> tuple[pa.Table, int]:
        rows, time = spans(tables_, ids, claims)
        read.append(len(rows))
        return rows, time

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_archive, "ARCHIVE_ROWS_MAX_BYTES", 1)
        patch.setattr(lake_archive.LakeTables, "spans", noted)
        assert lake.archive.run().fates == {"archived": 1}
    assert read == [1]


def check_restore(make: Make) -> None:
    """Check that a trace with too many rows in the tables is not restored and stays archived; other traces are
    restored."""
    lake = make("lake")
    lake.tracking.write([grown(1, range(1, 11)), grown(2, range(1, 11))])
    lake.commit()
    assert lake.archive.run().fates == {"archived": 2}
    lake.tracking.write([grown(1, range(11, 31))])
    lake.commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_archive, "TRACE_ROWS_MAX_BYTES", SMALL)
        with pytest.raises(LimitError, match="take more than"):
            lake.archive.restore(trace_id(1))
        assert lake.hot([1, 2]) == []
        ids = [trace_id(1), trace_id(2)]
        assert run(["archive", "restore", "--lake", str(lake.path), *ids]) == 1
    assert lake.hot([1, 2]) == [2]


CHECKS = (check_one, check_pieces, check_about, check_restore)


@pytest.mark.parametrize("check", CHECKS)
def test_rules(make: Make, check: Callable[[Make], None]) -> None:
    """Each rule of large resources holds."""
    check(make)
