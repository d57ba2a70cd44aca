"""Mutants of the key of spans: each removes the side from the key in one place, and a named test fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.lake.test_hot_tier import test_both_sides_of_a_call_stand as check_standing
from tests.pipeline.test_merge import test_row_ids_of_both_sides_are_the_same_for_any_order as check_row_ids
from tests.pipeline.test_merge import test_sides_of_a_call_have_rows_of_their_own as check_merge
from tests.server.test_waterfall import (
    test_a_server_span_hangs_below_the_client_span_with_its_id as check_tree,
)
from tracelake import results
from tracelake.datasets import examples
from tracelake.results import Row
from tracelake.tables import upsert_rule
from tracelake.tables.builtin import TABLE_SPANS

WITHOUT_SIDE = "false as is_server"


def no_side(_span: Row) -> bool:
    """Put every span on the client side."""
    return False


def test_upsert_without_the_side(tmp_path: Path) -> None:
    """If the side is not in the key of the upsert, one of two spans replaces the other."""
    with (
        mock.patch.object(upsert_rule, "KEY_COLUMNS", f"trace_id, span_id, workspace, {WITHOUT_SIDE}"),
        mock.patch.object(upsert_rule, "ID_COLUMNS", f"trace_id, span_id, {WITHOUT_SIDE}"),
        mock.patch("tracelake.pipeline.merge_task.is_server_side", no_side),
        pytest.raises(AssertionError),
    ):
        check_merge(tmp_path)


def test_standing_claims_without_the_side() -> None:
    """If the side is not in the key of reads of both tiers, one of two spans hides the other."""

    def ids_of(rows: Any) -> Any:
        return rows.select(["trace_id", "span_id"])

    with (
        mock.patch.object(upsert_rule, "KEY_COLUMNS", f"trace_id, span_id, workspace, {WITHOUT_SIDE}"),
        mock.patch.object(upsert_rule, "IDS", "trace_id, span_id"),
        mock.patch.object(upsert_rule, "ids_of", ids_of),
        pytest.raises(AssertionError),
    ):
        check_standing()


def test_order_of_rows_without_the_kind() -> None:
    """If the kind does not order rows, a replay gives the two sides other row ids."""
    with (
        mock.patch(
            "tracelake.pipeline.merge_task.TABLE_SPANS", mock.Mock(sorted_by=TABLE_SPANS.sorted_by[:-1])
        ),
        pytest.raises(AssertionError),
    ):
        check_row_ids()


def test_tree_without_the_side() -> None:
    """If the tree does not know sides, the server span does not hang below its client span."""
    with mock.patch.object(results, "is_server_side", no_side), pytest.raises(AssertionError):
        check_tree()


def test_examples_without_the_side() -> None:
    """If examples do not know sides, the two spans have one example id."""
    rows = [
        {"trace_id": "t", "span_id": "s", "workspace": "default", "kind": kind}
        for kind in ("CLIENT", "SERVER")
    ]
    assert len({examples.key_of(row) for row in rows}) == 2
    with mock.patch.object(examples, "is_server_side", no_side):
        assert len({examples.key_of(row) for row in rows}) == 1
