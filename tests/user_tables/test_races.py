"""Writers of one table that meet, where only an interleaving of our choice shows what is right."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import tracelake
from tracelake.shards.model import Batch, Write
from tracelake.shards.protocol import UpperMismatch
from tracelake.shards.store import Shard


def test_two_tries_of_one_write_at_once_leave_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try, taken for dead, appends just before the second: what the state names stays as it was."""
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
        assert Shard("people", lake._key_value, lake.objects).state().upper == 1
        assert lake.verify().findings == ()
