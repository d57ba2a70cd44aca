"""Mutants that `tests/lake/test_lake_maintenance.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import test_lake_maintenance
from tests.lake.test_lake_maintenance import five, lake
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake import Lake
from tracelake.tasks.runners import run_reporting


@pytest.mark.parametrize(
    "broken",
    [Mutation("it is an error of ours", run_reporting, rewrite("Exception", "ZeroDivisionError"))],
    ids=rule_of,
)
def test_what_tasks_of_maintenance_raise_ends_no_run(
    broken: Mutation,
    lake: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken,
        lambda: test_lake_maintenance.test_what_tasks_of_maintenance_raise_ends_no_run(
            lake, tmp_path, monkeypatch, caplog
        ),
    )
