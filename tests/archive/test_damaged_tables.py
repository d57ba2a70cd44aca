"""Layout `lake` with partly unreadable tables: traces in other parts are archived all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import update

from tests.archive.place import HotLake
from tests.tracking.requests import trace_id
from tracelake.archive.model import ArchiveReport
from tracelake.tracking.schema import trace_info


def parts(lake: HotLake) -> set[Path]:
    """Return the files of table `spans`."""
    return set((lake.path / "shards" / "spans").rglob("*.parquet"))


def beside_damage(folder: Path) -> None:
    """Check a pass over two experiments after rows of the first one were altered on disk."""
    lake = HotLake(folder, layout="lake", retention="1m")
    try:
        lake.write((1, 1))
        (altered,) = parts(lake)
        lake.write((2, 1))
        with lake.tracking.database.writing() as connection:
            is_second = trace_info.c.trace_id == trace_id(2)
            connection.execute(update(trace_info).where(is_second).values(experiment_id="9"))
        whole = altered.read_bytes()
        altered.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
        report: ArchiveReport = lake.archive.run()
        assert report.fates == {"failed": 1, "archived": 1}
        assert altered.name in report.failures[trace_id(1)]
        assert altered.name in str(report.problem)
        assert lake.hot([1, 2]) == [1]
        altered.write_bytes(whole)
        assert lake.archive.run().fates == {"archived": 1}
    finally:
        lake.tracking.close()
        lake.lake.close()


def test_a_damaged_part_keeps_only_what_is_in_it(folders: Iterator[Path]) -> None:
    """A pass names the damaged part and continues. It once ended there each time, before all later traces."""
    beside_damage(next(folders))
