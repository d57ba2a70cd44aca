"""Rules of tables, broken: a named check must fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pytest

from tests.lake.test_formats_of_lakes import check_old_parts, check_repeats_across_releases
from tests.shards.test_added_columns import check_readers
from tests.tables import test_query_memory
from tests.tables.test_query_memory import lake
from tracelake import Lake, TracelakeError
from tracelake.shards import compaction, lookup, rows
from tracelake.shards.lookup import Lookup
from tracelake.shards.model import Part
from tracelake.shards.parts import write_part
from tracelake.tables import builtin, upsert_rule

__all__ = ["lake"]


def test_running_every_condition_here_is_caught(lake: Lake) -> None:
    """If a condition that produces large values runs in this process, its memory has no limit."""
    answer = test_query_memory.run(lake, "where", "length(repeat(name, 200000000)) > 0", unlimited=True)
    with pytest.raises(AssertionError, match="bytes"):
        test_query_memory.check_memory(answer)


def test_reading_all_parts_by_one_schema_is_caught(tmp_path: Path) -> None:
    """If queries ignore the version of a part, a part without a column breaks them."""
    with mock.patch.object(rows, "absent_columns", return_value=()), pytest.raises(duckdb.Error):
        check_readers(tmp_path)


def test_looking_up_by_one_schema_is_caught(tmp_path: Path) -> None:
    """If a lookup ignores the version of a part, it asks the part for columns that it lacks."""
    with (
        mock.patch.object(lookup, "absent_columns", return_value=()),
        mock.patch.object(Lookup, "_completed", lambda _, found, columns: found.select(list(columns))),
        pytest.raises(KeyError),
    ):
        check_readers(tmp_path)


def test_compacting_to_the_first_schema_is_caught(tmp_path: Path) -> None:
    """If compacted parts state the first version, their later columns are lost."""

    def forgetful(*arguments: Any, schema_version: int = 1, **options: Any) -> Part:
        del schema_version
        return write_part(*arguments, **options)

    with mock.patch.object(compaction, "write_part", forgetful), pytest.raises(AssertionError):
        check_readers(tmp_path)


def test_an_old_lake_without_versions_of_parts_is_caught(tmp_path: Path) -> None:
    """If the tables of a lake add no columns, a lake of an earlier release breaks."""
    with (
        mock.patch.dict(builtin.TABLE_SPANS.added, clear=True),
        mock.patch.dict(builtin.TRACES_ADDED, clear=True),
        pytest.raises((duckdb.Error, TracelakeError)),
    ):
        check_old_parts(tmp_path)


def test_comparing_derived_columns_of_repeats_is_caught(tmp_path: Path) -> None:
    """If repeats are compared by columns that a release adds, an unchanged span replaces its earlier row."""
    content = upsert_rule.COLUMNS.replace("(input is not null)::int", "(total_tokens is not null)::int")
    assert content != upsert_rule.COLUMNS
    with mock.patch.object(upsert_rule, "COLUMNS", content), pytest.raises(AssertionError):
        check_repeats_across_releases(tmp_path)
