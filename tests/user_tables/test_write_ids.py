"""A write with an id happens once, whatever it changed, whatever followed it, and however late its retry is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import tracelake
from tracelake import Lake, UsageError
from tracelake.shards.shard import Shard
from tracelake.tables.spec import read_spec
from tracelake.tasks.runners import InProcess
from tracelake.user_tables.staging import stage
from tracelake.user_tables.write import WriteId, finish_writes, publish

ONE = pa.table({"id": ["a"], "n": [1]})
TWO = pa.table({"id": ["a"], "n": [2]})
WRITES_REMEMBERED = 6
DELETE = pa.table({"id": ["a"], "gone": [True]})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake with a table with a key, and one without."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("keyed", ONE.schema, key=["id"], buckets=1)
        lake.create_table("log", ONE.schema)
        yield lake


def keyed(lake: Lake) -> dict[str, int]:
    return {row["id"]: row["n"] for row in lake.table("keyed").to_arrow().to_pylist()}


def count(lake: Lake) -> int:
    return len(lake.table("log").to_arrow())


def test_a_write_that_changed_nothing_is_remembered(lake: Lake) -> None:
    """A write that changed nothing is remembered: its retry after another write does nothing."""
    lake.write("keyed", ONE)
    lake.write("keyed", ONE, write_id="x")
    lake.write("keyed", TWO)
    lake.write("keyed", ONE, write_id="x")
    assert keyed(lake) == {"a": 2}
    head = lake.log()[0]
    finish_writes(lake._opened.stores)
    assert lake.log()[0] == head, "it left nothing to finish"


def test_a_deletion_of_nothing_is_remembered(lake: Lake) -> None:
    """A deletion that removed nothing, or a row, is remembered: its retry removes no newer row."""
    lake.write("keyed", DELETE, tombstone="gone", write_id="x")
    lake.write("keyed", ONE)
    lake.write("keyed", DELETE, tombstone="gone", write_id="x")
    assert keyed(lake) == {"a": 1}
    lake.write("keyed", DELETE, tombstone="gone", write_id="y")
    lake.write("keyed", TWO)
    lake.write("keyed", DELETE, tombstone="gone", write_id="y")
    assert keyed(lake) == {"a": 2}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a state remember only a few writes."""
    monkeypatch.setattr(Shard, "written_max", WRITES_REMEMBERED)


@pytest.mark.usefixtures("few")
def test_an_id_is_known_however_many_writes_came_after_it(lake: Lake) -> None:
    """More writes than a state remembers, with compaction and collection, each exist once when retried."""
    for number in range(2 * WRITES_REMEMBERED + 3):
        lake.write("log", ONE, write_id=f"w{number}" if number % 3 else None)
    rows = count(lake)
    lake.maintenance.compact(runner=InProcess())
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    for number in range(2 * WRITES_REMEMBERED + 3):
        if number % 3:
            lake.write("log", ONE, write_id=f"w{number}")
    assert count(lake) == rows
    state = Shard("log", lake._opened.key_value, lake.objects).state()
    assert len(state.written) <= WRITES_REMEMBERED
    lake.write("log", ONE, write_id="another")
    assert count(lake) == rows + 1
    assert lake.verify().findings == ()


@pytest.mark.usefixtures("few")
def test_batches_of_a_series_are_told_by_their_number(lake: Lake) -> None:
    """A series of numbered batches takes one slot: an older number counts as done, and other ids are separate."""

    def write(write_id: WriteId) -> None:
        spec = read_spec(lake.objects, "log")
        publish(
            lake._opened.stores,
            spec,
            [stage(lake.objects, spec, lake._opened.shard("log").state().epoch, ONE.to_batches())],
            write_id,
        )

    for number in (0, 0, 1, 1, 2, 1, 0):
        write(WriteId("query", number))
    assert count(lake) == 3
    for number in range(WRITES_REMEMBERED + 1):
        write(WriteId("query", number))
        write(WriteId(f"query-{number}"))
    write(WriteId("query"))
    assert count(lake) == 2 * (WRITES_REMEMBERED + 1) + 1
    for chosen in random.Random(7).sample(range(WRITES_REMEMBERED + 1), 4):
        write(WriteId("query", chosen))
        write(WriteId(f"query-{chosen}"))
    assert count(lake) == 2 * (WRITES_REMEMBERED + 1) + 1
    assert len(lake._opened.key_value.scan("writes")) < WRITES_REMEMBERED + 1


def test_an_id_that_says_nothing_is_refused(lake: Lake) -> None:
    """An empty id is refused, because it is probably an unset variable; any other text is an id."""
    with pytest.raises(UsageError, match="is empty; leave it out"):
        lake.write("log", ONE, write_id="")
    for odd in ("\ud800", "x" * 10_000, "a/b\0"):
        for _ in range(2):
            lake.write("log", ONE, write_id=odd)
    assert count(lake) == 3


@pytest.mark.parametrize("first", [ONE, TWO], ids=["no change", "a change"])
def test_two_tries_of_one_write_that_meet(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, first: pa.Table
) -> None:
    """If a try that seemed dead appends just before its retry, one of them counts."""
    lake.write("keyed", first)
    append: Callable[..., object] = Shard.compare_and_append

    def after_the_first(shard: Shard, *given: object) -> object:
        monkeypatch.undo()
        lake.write("keyed", ONE, write_id="x")
        lake.write("keyed", TWO)
        return append(shard, *given)

    monkeypatch.setattr(Shard, "compare_and_append", after_the_first)
    lake.write("keyed", ONE, write_id="x")
    assert keyed(lake) == {"a": 2}
    assert lake.verify().findings == ()
