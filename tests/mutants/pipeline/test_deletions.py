"""Mutants that `tests/pipeline/test_deletions.py` notices: broken rules of the transactions that delete traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.pipeline import test_deletions
from tracelake.lake.lake import Lake
from tracelake.pipeline import merge_task
from tracelake.pipeline.input_failures import CrashMarkers
from tracelake.pipeline.replay import Replayer
from tracelake.pipeline.sources import deletions

_deleted_rows = deletions.rows_to_delete


def _first_rows(stored: Any, requests: Any) -> Any:
    return _deleted_rows(stored, requests).slice(0, 1)


def _in_all_workspaces(stored: Any, requests: Any) -> Any:
    return _deleted_rows(stored, requests.set_column(1, "workspace", [[None] * len(requests)]))


OF_LAKE: list[tuple[str, object, str, object, Callable[[Lake, Path], None]]] = [
    (
        "rows newer than the decision go",
        deletions,
        "may_delete",
        lambda _decided, _newest: True,
        test_deletions.test_newer_row_keeps_its_whole_trace,
    ),
    (
        "a request that is applied again removes what arrived since",
        deletions,
        "may_delete",
        lambda _decided, _newest: True,
        test_deletions.test_repeated_deletion_removes_nothing_more,
    ),
    (
        "part of a trace goes",
        merge_task,
        "rows_to_delete",
        _first_rows,
        test_deletions.test_deletion_removes_whole_traces_at_head_only,
    ),
    (
        "spans of other workspaces go",
        merge_task,
        "rows_to_delete",
        _in_all_workspaces,
        test_deletions.test_deletion_in_a_workspace_leaves_the_spans_of_others,
    ),
]


@pytest.mark.parametrize(
    ("target", "name", "wrong", "check"), [each[1:] for each in OF_LAKE], ids=[each[0] for each in OF_LAKE]
)
def test_broken_deletion_is_noticed(
    tmp_path: Path, target: object, name: str, wrong: object, check: Callable[[Lake, Path], None]
) -> None:
    """A test fails for each broken rule."""
    with (
        tracelake.init(tmp_path / "lake", buckets=2) as lake,
        mock.patch.object(target, name, wrong),
        pytest.raises(AssertionError),
    ):
        check(lake, tmp_path)


def test_recovery_without_its_requests_is_noticed(tmp_path: Path) -> None:
    """A recovery that stages only the rows of table `spans` leaves rows in table `traces`."""
    with (
        mock.patch.object(CrashMarkers, "beat"),
        mock.patch.object(Replayer, "_deletions", return_value=[]),
        pytest.raises(AssertionError),
    ):
        test_deletions.test_killed_at_every_call_of_a_deletion(tmp_path)
