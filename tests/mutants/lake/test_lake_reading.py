"""Mutants that `tests/lake/test_lake_reading.py` notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tracelake
from tests.lake import test_lake_reading
from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.pipeline.spans import a_line, a_span
from tracelake import NotFoundError
from tracelake.tables import view
from tracelake.tables.scan import Scan
from tracelake.tables.table import Table
from tracelake.tables.view import CommitView


def test_a_beginning_in_a_workspace_is_two_ids_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query has constant conditions, for any number of spans with the prefix, with few traces and with many."""
    read: list[int] = []
    select = Scan.select

    def counted(*arguments: Any, **options: Any) -> pa.Table:
        rows = select(*arguments, **options)
        read.append(len(rows))
        return rows

    with tracelake.init(tmp_path / "lake") as opened:
        spans = [a_span(trace, span) for trace in range(3) for span in range(3)]
        test_lake_reading.ingest(
            opened, tmp_path, a_line(*spans, workspace="a"), a_line(a_span(9, 0), workspace="b")
        )
        monkeypatch.setattr(Scan, "select", counted)
        monkeypatch.setattr(Scan, "lookup", lambda *_: pytest.fail("spans were read"))

        def check() -> None:
            for few in (3, 1):
                monkeypatch.setattr(view, "LOOKED_UP_TRACES_MAX", few)
                read.clear()
                with pytest.raises(NotFoundError, match="several traces begin"):
                    test_lake_reading.full_id(opened, "a")
                assert read == [few + 1, 2]
            assert test_lake_reading.full_id(opened, "b") == f"{10:032x}"
            assert test_lake_reading.full_id(opened, "c") == "0" * 29

        check()
        for broken in (
            Mutation("two", CommitView._matches_in, rewrite("2", "3")),
            Mutation("that differ", Table._distinct, rewrite("True", "False")),
        ):
            assert_caught(broken, check)
