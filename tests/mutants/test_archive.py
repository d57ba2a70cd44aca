"""Mutants of the archive: for each broken rule, a named check fails."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.archive.test_reverted import check_reads_of_a_reverted_trace
from tracelake._errors import DamageError, NotFoundError
from tracelake.archive.store import ArchiveStore
from tracelake.hot.tier import HotTier


def test_reads_that_do_not_compare_tables_with_the_tracking_store_are_caught(tmp_path: Path) -> None:
    """Without the check, a read reports that a reverted trace does not exist."""
    with mock.patch.object(HotTier, "_check_archived"), pytest.raises(NotFoundError):
        check_reads_of_a_reverted_trace(tmp_path / "lake")


def test_a_restore_of_a_part_is_caught(tmp_path: Path) -> None:
    """If a restore expects no spans, it accepts a part of a trace as the whole."""
    with (
        mock.patch.object(ArchiveStore, "archived_spans", return_value=set()),
        pytest.raises((pytest.fail.Exception, AssertionError, DamageError)),
    ):
        check_reads_of_a_reverted_trace(tmp_path / "lake")
