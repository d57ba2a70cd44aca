"""Mutants that `tests/shards/test_parts_of_all.py` notices."""

from __future__ import annotations

from functools import partial

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.shards import test_parts_of_all
from tracelake.shards import compaction, parts, rows
from tracelake.shards.compaction import CompactTask
from tracelake.shards.shard import Snapshot

BROKEN = [
    Mutation("all retract of each, and each of all", parts.may_share, rewrite("_1 or _ or _", "_1")),
    Mutation("who reads a bucket reads parts of all", parts.lies_in, rewrite("_ or _1", "_1")),
    Mutation("and of them the rows of that bucket", rows._of_buckets, rewrite("if _: ...", "if True: ...")),
    Mutation("narrowed stays narrowed", Snapshot.for_buckets, rewrite("frozenset(_)", "None")),
    Mutation("an id is given once", rows.with_row_ids_of_all, rewrite("_._(_(_))", "0")),
    Mutation("a bucket is compacted once", CompactTask.mine, rewrite("not _", "True")),
    Mutation(
        "a bucket that a part of all has is compacted",
        compaction.compact_tasks,
        rewrite("_1 if _2 else _", "_1 if _2 else [0]"),
    ),
    Mutation(
        "a part of all does not stay as it is", compaction._Compaction._may_stay, rewrite("_ and _1", "_1")
    ),
]


APART = [
    Mutation(
        "what comes apart is of its bucket", compaction._Compaction._by_bucket, rewrite("not _", "True")
    ),
    Mutation(
        "each bucket has its rows alone", compaction._Compaction._by_bucket, rewrite("[_ for _ in _1]", "_1")
    ),
    Mutation(
        "retractions come apart, too",
        compaction._Compaction._split_retractions,
        rewrite("_1 if _ else _2", "_1 if False else _2"),
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=rule_of)
def test_a_broken_rule_is_noticed(broken: Mutation) -> None:
    """Each broken rule, which would lose a row or duplicate one, is caught."""
    assert_caught(broken, partial(test_parts_of_all.check, large=True))


@pytest.mark.parametrize("broken", APART, ids=rule_of)
def test_a_broken_rule_of_coming_apart_is_noticed(broken: Mutation) -> None:
    """Each broken rule of splitting, which would lose or duplicate a row or block merges, is caught."""
    assert_caught(broken, partial(test_parts_of_all.check, one_task=True))
