"""Concurrent writers of one table, in interleavings chosen by the test."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tracelake
from tracelake import ExpiredError
from tracelake.shards.model import Batch, Write
from tracelake.shards.protocol import UpperMismatch, next_epoch
from tracelake.shards.shard import Shard
from tracelake.tables.spec import read_spec
from tracelake.user_tables.staging import stage
from tracelake.user_tables.write import publish


def test_two_tries_of_one_write_at_once_leave_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a first try that seemed dead appends just before the second, the state names only the first one's parts."""
    given = pa.table({"id": [1, 2], "who": ["ann", "bob"]})
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("people", given.schema, key=["id"], buckets=2)
        append = Shard.compare_and_append

        def after_the_first(shard: Shard, batch: Batch, write: Write | None) -> UpperMismatch | None:
            monkeypatch.undo()
            lake.write("people", given, write_id="one")
            return append(shard, batch, write)

        monkeypatch.setattr(Shard, "compare_and_append", after_the_first)
        lake.write("people", given, write_id="one")
        assert lake.table("people").to_arrow(order_by="id").equals(given)
        assert Shard("people", lake._opened.key_value, lake.objects).state().upper == 1
        assert lake.verify().findings == ()


def test_the_epoch_of_an_append_is_that_of_its_oldest_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append has the epoch of its oldest piece, even if it read its rows again in a newer one."""
    given = pa.table({"id": list(range(20_000)), "who": ["ann"] * 20_000})
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("people", given.schema, key=["id"], buckets=1)
        shard = Shard("people", lake._opened.key_value, lake.objects)
        spec = read_spec(lake.objects, "people")
        staged = stage(lake.objects, spec, lake._opened.shard("people").state().epoch, given.to_batches())

        def begin_epoch() -> None:
            shard.change(partial(next_epoch, now_s=0.0, epoch_min_s=0.0))

        begin_epoch()
        append = Shard.compare_and_append

        def after_an_epoch(shard: Shard, *given: Any) -> UpperMismatch | None:
            begin_epoch()
            return append(shard, *given)

        monkeypatch.setattr(Shard, "compare_and_append", after_an_epoch)
        with pytest.raises(ExpiredError, match="uploaded too long ago"):
            publish(lake._opened.stores, spec, [staged])
        monkeypatch.undo()
        publish(lake._opened.stores, spec, [staged])
        assert lake.table("people").to_arrow(order_by="id").equals(given)
        assert lake.verify().findings == ()
