"""Mutants of the journal's repair: for each broken rule, the named test fails."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.lake.test_journal_repair import refuse_uncommitted, repair_last, tear
from tracelake.journal import store
from tracelake.journal.model import Seal
from tracelake.journal.store import Journal
from tracelake.lake.transaction_history import LakeJournal


def test_a_seal_that_the_commit_does_not_prove_is_noticed(tmp_path: Path) -> None:
    """Without the rule, a seal with other totals is written."""
    with (
        mock.patch.object(
            store, "seal_of", side_effect=lambda t, _steps, at, _spans: Seal(t, 0, "0" * 32, at)
        ),
        pytest.raises(Exception, match=r"."),
    ):
        repair_last(tmp_path, 1, tear)


def test_a_floor_that_is_not_raised_is_noticed(tmp_path: Path) -> None:
    """Without the rule, the torn step still stops the pipeline."""
    with mock.patch.object(Journal, "raise_floor"), pytest.raises(Exception, match=r"."):
        repair_last(tmp_path, 0, tear)


def test_a_repair_without_a_commit_is_noticed(tmp_path: Path) -> None:
    """Without the rule, the records of an open transaction are forgotten."""

    def repair_anything(of: LakeJournal, t: int) -> None:
        store.repair(of._journal, t, "", 0)

    with (
        mock.patch.object(LakeJournal, "repair", repair_anything),
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
    ):
        refuse_uncommitted(tmp_path)
