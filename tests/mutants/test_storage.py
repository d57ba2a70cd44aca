"""Mutants of the stores: for each broken rule, a named check fails."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.lake.test_verify_database import check_altered_rows, check_tracking_columns
from tests.tracking.test_changed_pages import check_changed_pages
from tracelake.storage import ports
from tracelake.tracking import migrate, schema, store


def test_a_checksum_that_ignores_the_row_is_caught(tmp_path: Path) -> None:
    """If the checksum of a row does not depend on the row, altered rows are not reported."""
    with (
        mock.patch.object(ports, "_checksum", return_value="0" * 32),
        pytest.raises(AssertionError),
    ):
        check_altered_rows(tmp_path)


def test_mirrors_of_keys_alone_are_caught(tmp_path: Path) -> None:
    """If the indexes of the tracking store do not have all columns, altered columns are not reported."""
    with (
        mock.patch.object(migrate, "_mirrored", lambda table: [table.primary_key.columns[0].name]),
        pytest.raises(AssertionError),
    ):
        check_tracking_columns(tmp_path)


@pytest.mark.parametrize(
    ("checksum", "text"), [("span_checksum", b"span 1"), ("previews_checksum", b"a preview of this trace")]
)
def test_a_checksum_that_ignores_the_columns_is_caught(tmp_path: Path, checksum: str, text: bytes) -> None:
    """If the checksum of spans or previews does not depend on them, altered ones are not reported."""
    with (
        mock.patch.object(schema, checksum, return_value=7),
        mock.patch.object(store, checksum, return_value=7),
        pytest.raises(AssertionError, match=text.decode()),
    ):
        check_tracking_columns(tmp_path, text)


def test_a_mirror_in_order_of_trace_ids_is_caught(tmp_path: Path) -> None:
    """If a mirror does not begin with the growing column, each request changes more pages."""
    with mock.patch.object(migrate, "_GROWING", ""), pytest.raises(AssertionError):
        check_changed_pages(tmp_path, 5.5)
