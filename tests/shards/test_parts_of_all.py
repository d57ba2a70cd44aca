"""Small parts with rows of all buckets: every reader and every compaction uses each row once."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.shards.modelled_shard import Lab
from tracelake.shards import compaction, rows
from tracelake.shards.model import Part
from tracelake.shards.parts import all_of
from tracelake.shards.protocol import forget
from tracelake.shards.rows import ROW_ID

KEYS = "abcdefgh"


def upserts(lab: Lab, chance: random.Random, count: int) -> None:
    """Append transactions of some keys, some with parts of all buckets."""
    for _ in range(count):
        changes = {key: chance.choice([None, 1, 2, 3]) for key in chance.sample(KEYS, 4)}
        assert lab.upsert(changes, together=chance.random() < 0.6) is None


def parts_of(lab: Lab, first: int = 0) -> list[Part]:
    """Return all parts that the state names, starting at a batch."""
    return [part for ref in lab.shard.state().batches[first:] for part in lab.shard.batch(ref).objects()]


def check(seeds: Iterable[int] = range(3), *, large: bool = False, one_task: bool = False) -> None:
    """Compare with the model at every time: before compactions, after small ones, and after larger ones.

    With `one_task`, one task splits parts of all buckets; otherwise a task for each bucket reads its rows from
    them.
    """
    for seed in seeds:
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            lab = Lab(Path(folder), buckets=3)
            if large:
                patch.setattr("tracelake.shards.compaction.COMPACTED_PART_MAX_BYTES", 1)
            if not one_task:
                patch.setattr("tracelake.shards.compaction.TAKEN_APART_MAX_BYTES", 0)
            upserts(lab, chance, 6)
            lab.check()
            lab.compact(1, 4)
            lab.check()
            upserts(lab, chance, 3)
            patch.setattr("tracelake.shards.compaction.COMPACTED_AT_HAND_ROWS", 0)
            for first in (2, 0):  # the first has retractions of older rows
                lab.compact(first, len(lab.shard.state().batches))
                lab.check()
                check_apart(lab, first)
            upserts(lab, chance, 2)
            lab.shard.change(partial(forget, since=4))
            lab.compact(0, len(lab.shard.state().batches))
            lab.check()
            check_apart(lab)


def check_apart(lab: Lab, first: int = 0) -> None:
    """Check that each part has one bucket, and only its rows."""
    for part in parts_of(lab, first):
        assert part.bucket >= 0, "what is no longer small has parts of its own"
        ids = pq.read_table(str(lab.objects.local_path(part.path)))
        name = ROW_ID.name if ROW_ID.name in ids.column_names else "row_id"
        of_row = rows.buckets_of_ids(ids[name].to_numpy(), 3)
        assert set(of_row.tolist()) == {part.bucket}


@pytest.mark.parametrize("one_task", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_rows_are_those_of_the_model(large: bool, one_task: bool) -> None:
    """All reads equal the model for every mix of parts; with `large`, parts may be kept unchanged."""
    check([2 * large + one_task], large=large, one_task=one_task)


def test_one_task_takes_apart_what_it_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One task splits the parts that it can hold, so that eight buckets do not read the same parts eight times."""
    monkeypatch.setattr("tracelake.shards.compaction.COMPACTED_AT_HAND_ROWS", 0)
    lab = Lab(tmp_path, buckets=3)
    for number in range(4):
        lab.upsert(dict.fromkeys(KEYS[number:], number), together=True)
    batches = [lab.shard.batch(ref) for ref in lab.shard.state().batches]
    (task,) = compaction.compact_tasks(tmp_path.as_uri(), "s", 0, 0, (), batches)
    assert task.apart
    monkeypatch.setattr("tracelake.shards.compaction.TAKEN_APART_MAX_BYTES", 0)
    tasks = compaction.compact_tasks(tmp_path.as_uri(), "s", 0, 0, (), batches)
    assert [(each.bucket, each.apart) for each in tasks] == [(0, False), (1, False), (2, False)]


def test_few_rows_stay_together(tmp_path: Path) -> None:
    """Small compactions of such parts make one part again, with the same ids as those of bucket parts."""
    together, apart = (Lab(tmp_path, buckets=3, name=name) for name in ("together", "apart"))
    for number in range(4):
        changes = dict.fromkeys(KEYS[number:], number)
        together.upsert(changes, together=True)
        apart.upsert(changes)
    assert together.ids == apart.ids
    together.compact(0, 4)
    together.check()
    parts = [part for ref in together.shard.state().batches for part in together.shard.batch(ref).parts]
    assert [part.bucket for part in parts] == [all_of(3)]
