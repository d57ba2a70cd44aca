"""Mutants of backups: for each broken rule, a named check fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.lake import test_backup
from tracelake.lake import backup
from tracelake.tracking import migrate


def test_numbers_that_begin_anew_are_caught(tmp_path: Path) -> None:
    """If the outbox of a restored lake restarts at 1, the journal takes new rows for known ones."""
    with (
        mock.patch.object(migrate, "_number_from"),
        pytest.raises((AssertionError, pytest.fail.Exception)),
    ):
        test_backup.test_numbers_of_the_outbox_are_not_used_again(tmp_path)


def test_snapshots_of_two_moments_are_caught(tmp_path: Path) -> None:
    """If writers continue between both snapshots, the restored lake drops a row whose number its journal knows."""
    pause = migrate.paused_snapshot

    @contextmanager
    def unpaused(database: Any) -> Iterator[Any]:
        with pause(database) as (read, resume):
            resume()
            yield read, resume

    with mock.patch.object(backup, "paused_snapshot", unpaused), pytest.raises(AssertionError):
        test_backup.check_snapshot(tmp_path)


def test_an_index_newer_than_the_snapshot_is_caught(tmp_path: Path) -> None:
    """If the index of a later transaction is in the backup, the restored lake cannot make that transaction."""
    with mock.patch.object(backup, "INDEX_FILE", re.compile("x^")), pytest.raises(AssertionError):
        test_backup.check_commit_after_snapshot(tmp_path)
