"""Mutants that `tests/shards/test_shared_texts.py` notices."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.shards import test_shared_texts
from tracelake.shards import lookup, model, rows


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("equal texts are shared", rows.share_batch, rewrite("a[b[_]] = ord(_1)", "a[b] = ord(_1)")),
        Mutation("short texts stay", rows.share_batch, rewrite("_1 >= _", "_1 >= 0")),
        Mutation("each column has its character", rows.restore_batch, rewrite("a += len(b)", "a += 0")),
        Mutation("each row has its texts", rows.restore_batch, rewrite("a[b] = _1 + c[b]", "a[b] = _1")),
    ],
    ids=rule_of,
)
def test_texts_that_differ_little(broken: Mutation) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, test_shared_texts.test_texts_that_differ_little)


def test_a_query_that_does_not_restore_is_caught(tmp_path: Path) -> None:
    """If queries read attributes as they are stored, shared texts are null."""
    with mock.patch.object(rows, "RESTORED_SQL", "attributes"), pytest.raises(AssertionError):
        test_shared_texts.test_all_readers_restore_shared_texts(tmp_path)


def test_a_query_that_mixes_up_columns_is_caught(tmp_path: Path) -> None:
    """If queries take each text from column `input`, answers are wrong."""
    sql = rows.RESTORED_SQL.replace("then output", "then input")
    assert sql != rows.RESTORED_SQL
    with mock.patch.object(rows, "RESTORED_SQL", sql), pytest.raises(AssertionError):
        test_shared_texts.test_all_readers_restore_shared_texts(tmp_path)


def test_a_lookup_that_does_not_restore_is_caught(tmp_path: Path) -> None:
    """If lookups read only the requested columns of a part, shared texts are null."""
    with (
        mock.patch.object(lookup, "stored_columns", lambda _, columns, __: list(columns)),
        pytest.raises(AssertionError),
    ):
        test_shared_texts.test_all_readers_restore_shared_texts(tmp_path)


def test_a_batch_that_an_earlier_release_reads_is_caught(tmp_path: Path) -> None:
    """If a batch with shared texts keeps its format, an earlier release reads null instead of refusing it."""
    with (
        mock.patch.object(model, "SHARED_SCHEMA_VERSION", 99),
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
    ):
        test_shared_texts.test_an_earlier_release_refuses_a_batch_with_shared_texts(tmp_path)
