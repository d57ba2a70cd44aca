"""Mutants of backups: for each broken rule, a named check fails."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.lake import test_backup
from tracelake.tracking import copying


def test_numbers_that_begin_anew_are_caught(tmp_path: Path) -> None:
    """If the outbox of a restored lake restarts at 1, the journal takes new rows for known ones."""
    with (
        mock.patch.object(copying, "_number_from"),
        pytest.raises((AssertionError, pytest.fail.Exception)),
    ):
        test_backup.test_numbers_of_the_outbox_are_not_used_again(tmp_path)
