"""S1 to S6: a writer of timed updates over a real shard, whose every decision is `classify`."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pytest

from tracelake.shards.model import Batch, Part
from tracelake.shards.parts import write_part
from tracelake.shards.protocol import Verdict, classify
from tracelake.shards.rows import RETRACTIONS, ROW_ID, rows_sql, with_row_ids
from tracelake.shards.store import Shard
from tracelake.storage import MemoryKeyValueStore
from tracelake.storage.files import FileObjectStore

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])


class Update(NamedTuple):
    """A key and its value from a time on, or a tombstone; of several at one time, the last in order stands."""

    key: str
    value: str | None
    ts: int


@dataclass
class Writer:
    """Buffers updates, and writes those whose time has come. It holds no truth of its own: it reads the shard."""

    shard: Shard
    objects: FileObjectStore
    held: list[Update] = field(default_factory=list)
    dropped: int = 0
    frontier: int = 0

    def advance(self, input_frontier: int, *updates: Update) -> None:
        """Take updates, and do all that can be done."""
        self.held += updates
        while (upper := self.shard.state().upper) < input_frontier:
            ready = self._sort_out(upper, input_frontier)
            following = min((update.ts for update in self.held), default=input_frontier)
            self._write(upper, upper + 1 if ready else min(following, input_frontier), ready)
        self._sort_out(upper, input_frontier)
        self.frontier = min((update.ts for update in self.held), default=input_frontier)

    def _sort_out(self, upper: int, input_frontier: int) -> list[Update]:
        verdicts = [(update, classify(update.ts, upper, input_frontier)) for update in self.held]
        self.dropped += sum(verdict is Verdict.DROP for _, verdict in verdicts)
        self.held = [update for update, verdict in verdicts if verdict is Verdict.HOLD]
        return [update for update, verdict in verdicts if verdict is Verdict.PROCESS]

    def _write(self, lower: int, upper: int, ready: list[Update]) -> None:
        stored = self.rows(lower - 1)
        wanted = {update.key: update.value for update in ready}
        changed = {k: v for k, v in wanted.items() if stored.get(k, (0, None))[1] != v}
        came = {key: value for key, value in changed.items() if value is not None}
        went = [stored[key][0] for key in changed if key in stored]
        parts: list[Part] = []
        gone: list[Part] = []
        if came:
            rows = pa.table({"key": list(came), "value": list(came.values())}, SCHEMA).sort_by("key")
            parts.append(
                write_part(self.objects, self.shard.name, 0, 0, with_row_ids(rows, lower, 0, 1), "key")
            )
        if went:
            table = pa.table({"row_id": went, "time": [lower] * len(went)}, RETRACTIONS)
            gone.append(write_part(self.objects, self.shard.name, 0, 0, table, None))
        self.shard.compare_and_append(Batch(lower, upper, uuid.uuid4().hex, tuple(parts), tuple(gone), {}))

    def rows(self, as_of: int) -> dict[str, tuple[int, str]]:
        """Return (row id, value) by key."""
        sql = rows_sql(self.shard.snapshot(as_of), self._file, ["key", "value", ROW_ID.name], SCHEMA)
        with duckdb.connect() as db:
            return {key: (row_id, value) for key, value, row_id in db.execute(sql).fetchall()}

    def table(self, as_of: int) -> dict[str, str]:
        """Return the values by key."""
        return {key: value for key, (_, value) in self.rows(as_of).items()}

    def _file(self, path: str) -> str:
        file = self.objects.local_path(path)
        assert file is not None
        return file


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    objects = FileObjectStore(str(tmp_path))
    return Writer(Shard("t", MemoryKeyValueStore(), objects), objects)


def a_peer_moves_to(writer: Writer, upper: int, *updates: Update) -> Writer:
    """Let another writer of the same shard render everything below `upper`."""
    peer = Writer(writer.shard, writer.objects)
    peer.advance(upper, *updates)
    assert writer.shard.state().upper == upper
    return peer


def test_s1_rows_below_upper_are_dropped_and_the_frontier_follows(writer: Writer) -> None:
    """S1: U climbs to 10 with no output of ours, then rows at 5 and 7 arrive, I=11."""
    a_peer_moves_to(writer, 10)
    before = writer.shard.state()
    writer.advance(11, Update("a", "x", 5), Update("b", "y", 7))
    assert (writer.dropped, writer.held, writer.frontier) == (2, [], 11)
    assert writer.table(10) == {}
    assert writer.shard.state().batches == before.batches == ()


def test_s2_one_of_each(writer: Writer) -> None:
    """S2: U=10; rows at 5, 10, 12; I=13: 5 dropped, 10 emitted, retracting the older value; 12 comes last."""
    a_peer_moves_to(writer, 10, Update("k", "old", 3))
    upper, held = (
        writer.shard.state().upper,
        [Update("k", "no", 5), Update("k", "new", 10), Update("k", "last", 12)],
    )
    assert [classify(update.ts, upper, 13) for update in held] == [
        Verdict.DROP,
        Verdict.PROCESS,
        Verdict.HOLD,
    ]
    writer.advance(13, *held)
    assert (writer.dropped, writer.frontier) == (1, 13)
    assert [writer.table(t) for t in (9, 10, 11, 12)] == [
        {"k": "old"},
        {"k": "new"},
        {"k": "new"},
        {"k": "last"},
    ]


def test_s2_what_is_not_complete_is_held(writer: Writer) -> None:
    """S2: with I=12 the row at 12 is held, and the frontier is its time."""
    a_peer_moves_to(writer, 10)
    writer.advance(12, Update("k", "no", 5), Update("k", "new", 10), Update("k", "last", 12))
    assert (writer.dropped, writer.held, writer.frontier) == (1, [Update("k", "last", 12)], 12)
    assert writer.table(11) == {"k": "new"}


def test_s3_waiting_below_upper_ends(writer: Writer) -> None:
    """S3: U=10; rows at 5 and 7; I=8 then 11: at 11 both are dropped and the frontier is 11."""
    a_peer_moves_to(writer, 10)
    writer.advance(8, Update("a", "x", 5), Update("b", "y", 7))
    writer.advance(11)
    assert (writer.dropped, writer.held, writer.frontier) == (2, [], 11)


def test_s4_insert_delete_insert_with_a_peer_in_between(writer: Writer) -> None:
    """S4: insert at 0, delete at 2, insert at 3 twice, the later wins; a peer moves U to 3: one retraction at 3."""
    a_peer_moves_to(writer, 3, Update("k", "v0", 0))
    writer.advance(
        4,
        Update("k", "v0", 0),
        Update("k", None, 2),
        Update("k", "v3", 3),
        Update("k", "v3b", 3),
    )
    batches = [writer.shard.batch(ref) for ref in writer.shard.state().batches]
    assert [(batch.lower, sum(part.rows for part in batch.retractions)) for batch in batches] == [
        (0, 0),
        (3, 1),
    ]
    assert [writer.table(t) for t in (0, 2, 3)] == [{"k": "v0"}, {"k": "v0"}, {"k": "v3b"}]
    assert writer.dropped == 2


def test_s5_what_the_feedback_holds_already_gives_no_output(writer: Writer) -> None:
    """S5: the shard holds the value that we buffered."""
    a_peer_moves_to(writer, 2, Update("k", "v", 0))
    writer.advance(3, Update("k", "v", 2))
    assert writer.shard.state().upper == 3
    assert len(writer.shard.state().batches) == 1


def test_s6_delete_of_an_absent_key_and_an_identical_upsert_are_nothing(writer: Writer) -> None:
    """S6: both consolidate to nothing; the time has passed all the same."""
    a_peer_moves_to(writer, 1, Update("k", "v", 0))
    writer.advance(4, Update("absent", None, 1), Update("k", "v", 2), Update("k", "v", 3))
    state = writer.shard.state()
    assert (state.upper, len(state.batches), writer.frontier) == (4, 1, 4)


@pytest.mark.parametrize("pause", [1, 10, 1000])
def test_s7_a_paused_writer_catches_up(writer: Writer, pause: int) -> None:
    """S7: a writer that slept for so many transactions drops what its peer wrote, and reaches the end."""
    updates = [Update(f"k{t % 5}", f"v{t}", t) for t in range(0, pause + 4, max(1, pause // 10))]
    writer.advance(2, *updates)
    a_peer_moves_to(writer, 2 + pause, *updates)
    writer.advance(pause + 4)
    assert (writer.shard.state().upper, writer.frontier, writer.held) == (pause + 4, pause + 4, [])
    alone = {update.key: update.value for update in updates}
    assert writer.table(pause + 3) == alone
