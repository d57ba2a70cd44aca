"""Mutants that `tests/lake/test_forgotten_rows.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lake import test_forgotten_rows
from tests.lake.test_forgotten_rows import clock, lake
from tests.lake.test_lake_windows import Clock
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.shards import test_protocol
from tracelake import Lake
from tracelake.shards import protocol
from tracelake.shards.lookup import has_live_rows
from tracelake.shards.shard import Shard
from tracelake.tables.maintenance import RetractedRows
from tracelake.versions.branch_store import BranchRecords

__all__ = ["clock", "lake"]

Check = Callable[..., None]
_RULES: list[tuple[Mutation, Check]] = [
    (
        Mutation("rows that live stay", has_live_rows, rewrite("_ is not None and _", "False")),
        test_forgotten_rows.test_windows_with_other_rows_are_rewritten_once_half_is_dead,
    ),
    (
        Mutation(
            "retractions go with their rows",
            RetractedRows.without_dropped,
            rewrite("len(_1) == len(_2)", "True"),
        ),
        test_forgotten_rows.test_expired_windows_are_dropped_unread,
    ),
    (
        Mutation("few dead rows stay", RetractedRows.drop, rewrite("2 * len(_1) >= _2", "True")),
        test_forgotten_rows.test_windows_that_lost_few_rows_are_not_rewritten,
    ),
    (
        Mutation("an expired time is an error", Shard.snapshot, rewrite("_1 or (_2 and _3)", "False")),
        test_forgotten_rows.test_expired_windows_are_dropped_unread,
    ),
    (
        Mutation(
            "the collector takes no tag's commit",
            BranchRecords.referenced_commits,
            rewrite("(_1 | _2) - _3", "_1 - _3"),
        ),
        test_forgotten_rows.test_rows_that_a_tag_reads_stay,
    ),
]


@pytest.mark.parametrize(("broken", "check"), _RULES, ids=[rule_of(broken) for broken, _ in _RULES])
def test_a_broken_rule(
    lake: Lake,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Mutation,
    check: Check,
) -> None:
    """Each broken rule is caught by the named test."""
    options = {"monkeypatch": monkeypatch} if "monkeypatch" in check.__annotations__ else {}
    assert_caught(broken, lambda: check(lake, clock, tmp_path, **options))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("a lost race changes nothing", protocol.rewrite, rewrite("len(_1) < len(_2)", "False")),
        Mutation("replaced objects are freed", protocol.rewrite, rewrite("a(_1 + 1, _2)", "a(_1 + 1, ())")),
    ],
    ids=rule_of,
)
def test_a_broken_rewrite(broken: Mutation) -> None:
    """Each broken rule is caught by the table of decisions."""
    assert_caught(broken, test_protocol.test_batches_are_rewritten_all_at_once)
