"""Mutants of commits: for each broken rule, the named test fails."""

from __future__ import annotations

import uuid
from pathlib import Path
from unittest import mock

import pytest

from tests.simulation.versions import RetriesScenario
from tests.versions.test_unknown_outcomes import (
    check_first_commit_that_lands_late,
    fail_everywhere,
    main_commit,
    revert,
)
from tracelake import StorageError
from tracelake.testing import Faults, search
from tracelake.versions import branch, branch_store, committer

FAULTS = Faults(lost=4, late=1, delays=2)


def test_an_unknown_outcome_reported_as_a_failure_is_noticed(tmp_path: Path) -> None:
    """Without the rule, a commit that a helper makes later is reported as not done."""
    with (
        mock.patch.object(committer, "may_be_committed", return_value=False),
        pytest.raises(AssertionError),
    ):
        fail_everywhere(main_commit, tmp_path, for_good=True)


def test_a_write_in_flight_reported_as_a_failure_is_noticed() -> None:
    """Without the rule, a first commit that lands late is reported as not done."""
    with (
        mock.patch.object(branch_store, "_not_read_back", side_effect=lambda _branch, error: error),
        pytest.raises(StorageError, match="cut off at list"),
    ):
        check_first_commit_that_lands_late()


def test_a_retry_under_another_id_is_noticed(tmp_path: Path) -> None:
    """A retry that ignores the request id reverts twice."""
    with (
        mock.patch.object(branch, "_request_id", side_effect=lambda _: uuid.uuid4().hex),
        pytest.raises(AssertionError, match="has made 0 commits"),
    ):
        fail_everywhere(revert, tmp_path, for_good=True)


def test_the_simulation_finds_an_unknown_outcome_reported_as_a_failure() -> None:
    """Without the rule, a few schedules commit a request that was reported as failed."""
    assert search(RetriesScenario(), FAULTS, seed=1, schedules_max=20).failures == []
    with mock.patch.object(committer, "may_be_committed", return_value=False):
        report = search(RetriesScenario(), FAULTS, seed=1, schedules_max=400, shortens=False)
    assert report.violations == 1
