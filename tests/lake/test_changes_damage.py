"""Damage of a table in its list of changes: retracted rows are listed completely, or the list fails."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelake
from tests.lake.test_lake_search import ingest
from tests.pipeline.spans import a_span
from tracelake import DamageError


def of_damaged_retractions(folder: Path) -> None:
    """Flip bits of the object that lists the retracted rows, and of the part that contains them."""
    with tracelake.init(folder / "lake", buckets=2) as lake:
        ingest(lake, folder, 0, *(a_span(n, 0) for n in range(30)))
        ingest(lake, folder, 1, *(a_span(n, 0, end=99) for n in range(20)))
        snapshot = lake.table("spans").scan.snapshot
        for part in (snapshot.retractions[0], snapshot.parts[0]):
            file = folder / "lake" / part.path
            whole = file.read_bytes()
            for place in range(3, len(whole), len(whole) // 40):
                file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
                with pytest.raises(DamageError):
                    list(lake.listen("spans", since=0, timeout_s=0))
            file.write_bytes(whole)
        (changes,) = lake.listen("spans", since=0, timeout_s=0)
        assert changes.rows["_change"].to_pylist().count(-1) == len(changes.rows) - 20 == 20


def test_changes_are_not_told_of_damaged_parts(tmp_path: Path) -> None:
    """The list fails with a damage error, for any behaviour of the Parquet reader on such bytes."""
    of_damaged_retractions(tmp_path)
