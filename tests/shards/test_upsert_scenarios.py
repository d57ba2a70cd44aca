"""S1 to S7 on real stores: replicas of a pipeline, and writers of a user's table, interleaved at chosen points."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake.otlp.framing import write_segment
from tracelake.otlp.schema import SPANS_TABLE
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.merge_task import TransactionMergeTask
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.replicas.replica import BatchCounts
from tracelake.shards.model import Batch, Write
from tracelake.shards.protocol import UpperMismatch
from tracelake.shards.shard import Shard
from tracelake.storage import MemoryKeyValueStore, MemoryObjectStore, open_objects
from tracelake.tables.predicates import Layout
from tracelake.tables.scan import Scan
from tracelake.tables.table import Table
from tracelake.tasks.runners import InProcess

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")


def nothing() -> None:
    """Do nothing in between."""


class Paused(InProcess):
    """Pipeline that shapes a transaction and continues only after another action."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        receipts = super().run(function, tasks, on_done)
        if tasks and isinstance(tasks[0], TransactionMergeTask):
            meanwhile, self._meanwhile = self._meanwhile, nothing
            meanwhile()
        return receipts


class World:
    """Stores with an inbox; each replica takes one segment per transaction."""

    def __init__(self, folder: Path) -> None:
        url = f"memory://{uuid.uuid4().hex}"
        objects = open_objects(url)
        assert isinstance(objects, MemoryObjectStore)
        self.objects, self.key_value = objects, MemoryKeyValueStore()
        self._copies = str(folder / "copies")

    def receive(self, *segments: Sequence[dict[str, Any]]) -> None:
        for spans in segments:
            number = len(list(self.objects.list("all/")))
            segment = write_segment([("json", a_line(*spans))])
            for folder in ("all", "inbox"):
                self.objects.put(f"{folder}/{number:04d}.segment", segment)

    def replica(
        self, meanwhile: Callable[[], object] = nothing, last: int = 10**9
    ) -> tuple[RunResult, BatchCounts]:
        """Let a replica empty the inbox, up to transaction `last`."""
        tally = BatchCounts()
        pipeline = Pipeline("main", self.key_value, self.objects, 1, Paused(meanwhile), tally)
        waiting = [Input(INBOX, info.path, info.size_bytes) for info in self.objects.list("inbox/")]
        result = pipeline.run([[item] for item in waiting], stopping=lambda: pipeline.upper() > last)
        return result, tally

    def shard(self) -> Shard:
        return Shard("spans", self.key_value, self.objects)

    def ends(self, as_of: int) -> dict[int, int]:
        """Return the end of each span of the one trace, as of a transaction."""
        scan = Scan(
            self.objects.url,
            self._copies,
            Layout(SPANS_TABLE, ("trace_id",), 1),
            self.shard().snapshot(as_of),
        )
        rows = Table("spans", scan).to_arrow(["span_id", "end_ns"]).to_pylist()
        return {int(str(row["span_id"]), 16) - 1: int(str(row["end_ns"])) for row in rows}

    def parts(self) -> set[str]:
        return {info.path for info in self.objects.list("shards/spans/parts/")}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_s1_rows_below_upper_are_dropped_and_the_frontier_follows(world: World) -> None:
    """If U rises above our transaction, it is dropped with its parts, and we continue after U (S1)."""
    world.receive([a_span(0, 0)], [a_span(0, 1)], [a_span(0, 2)])
    before: list[tuple[set[str], object]] = []

    def peer() -> None:
        result, tally = world.replica()
        assert (result.transactions, tally.rows_dropped) == ([0, 1, 2], 0)
        named = {
            part.path for ref in world.shard().state().batches for part in world.shard().batch(ref).parts
        }
        before.append((named, world.shard().state().batches))

    result, tally = world.replica(peer)
    assert tally.rows_dropped > 0
    assert tally.won == 0
    assert before == [(world.parts(), world.shard().state().batches)]
    assert result.transactions == [0]
    assert world.ends(2) == {0: 10, 1: 10, 2: 10}
    world.receive([a_span(0, 3)])
    assert world.replica()[0].transactions == [3], "the frontier is where the peer left it"


def test_s2_one_of_each(world: World) -> None:
    """A write below U is dropped, one at U is emitted and retracts the older value, a later one is held (S2)."""
    world.receive([a_span(0, 0, end=20)])

    def peer() -> None:
        assert world.replica()[0].transactions == [0]
        world.receive([a_span(0, 0, end=30)], [a_span(0, 0, end=40)])

    first, tally = world.replica(peer)
    assert tally.rows_dropped > 0
    assert first.transactions == [0]
    second, tally = world.replica(last=1)
    assert (second.transactions, tally.rows_dropped) == ([1], 0)
    retracted = [
        part.rows for ref in world.shard().state().batches for part in world.shard().batch(ref).retractions
    ]
    assert retracted == [1]
    assert (world.shard().state().upper, len(list(world.objects.list("inbox/")))) == (2, 1)
    assert world.replica()[0].transactions == [2]
    assert [world.ends(t) for t in range(3)] == [{0: 20}, {0: 30}, {0: 40}]


def test_s3_waiting_below_upper_ends(world: World) -> None:
    """A replica that sleeps while U passes its held and unread input continues at U (S3)."""
    world.receive([a_span(0, 0)], [a_span(0, 1)])

    def peer() -> None:
        world.replica(last=0)
        world.replica()
        world.receive([a_span(0, 2)])
        assert world.replica()[0].transactions == [2]

    result, tally = world.replica(peer)
    assert tally.rows_dropped > 0
    assert result.transactions == [0]
    assert world.shard().state().upper == 3
    assert world.ends(2) == {0: 10, 1: 10, 2: 10}


def test_s4_the_last_of_several_writes_of_a_key_beside_a_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a peer moves U to 3 while we rewrite a key inserted at 0, there is exactly one retraction, at 3 (S4)."""
    kinds: dict[str, pa.DataType] = {"id": pa.int64(), "who": pa.string()}
    schema = pa.schema(kinds)

    def people(*rows: tuple[int, str]) -> pa.Table:
        return pa.Table.from_pylist([{"id": key, "who": who} for key, who in rows], schema=schema)

    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("people", schema, key=["id"], buckets=1)
        lake.write("people", people((1, "v0")))
        append = Shard.compare_and_append

        def after_a_peer(shard: Shard, batch: Batch, write: Write | None) -> UpperMismatch | None:
            monkeypatch.undo()
            lake.write("people", people((2, "x")))
            lake.write("people", people((2, "y")))
            return append(shard, batch, write)

        monkeypatch.setattr(Shard, "compare_and_append", after_a_peer)
        lake.write("people", people((1, "v3")))
        shard = Shard("people", lake._opened.key_value, lake.objects)
        batches = [shard.batch(ref) for ref in shard.state().batches]
        assert [(batch.lower, sum(part.rows for part in batch.retractions)) for batch in batches] == [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 1),
        ]
        (gone,) = batches[3].retractions
        (retraction,) = pq.read_table(str(lake.objects.local_path(gone.path))).to_pylist()
        assert retraction["time"] == 3
        assert lake.table("people").to_arrow(order_by="id").equals(people((1, "v3"), (2, "y")))


def test_s5_s6_what_the_feedback_holds_already_gives_no_output(world: World) -> None:
    """A replica that brings what a peer just wrote advances the time without a batch (S5, S6)."""
    world.receive([a_span(0, 0)])
    world.replica()
    world.receive([a_span(0, 0)], [a_span(0, 0), a_span(0, 0)])
    result, _ = world.replica()
    assert [(counts.new, counts.replaced, counts.repeated) for counts in result.counts] == [
        (0, 0, 1),
        (0, 0, 2),
    ]
    state = world.shard().state()
    assert (state.upper, len(state.batches)) == (3, 1)


@pytest.mark.parametrize("pause", [1, 12])
def test_s7_a_paused_replica_catches_up(world: World, pause: int) -> None:
    """A replica that slept for many transactions drops those of its peer and continues at the end (S7)."""
    world.receive([a_span(0, 0)])

    def peer() -> None:
        for number in range(1, pause):
            world.receive([a_span(0, number % 3, end=10 + number)])
        assert len(world.replica()[0].transactions) == pause
        world.receive([a_span(0, 7)])

    world.replica(peer)
    assert world.replica()[0].transactions == [pause]
    assert world.shard().state().upper == pause + 1
    alone = {0: 10} | {number % 3: 10 + number for number in range(1, pause)} | {7: 10}
    assert world.ends(pause) == alone
