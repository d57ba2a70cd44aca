"""Transactions that delete traces from tables and index: whole traces, no newer row, and killed anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tests.pipeline.test_crashes import BUCKETS, CrashingExecutor, Filmed, World
from tracelake._errors import DamageError
from tracelake.journal.prices import Prices
from tracelake.journal.store import Journal
from tracelake.lake.lake import Lake
from tracelake.lake.sources import main_pipeline
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_failures import CrashMarkers
from tracelake.pipeline.protocol import may_delete
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources import deletions
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.deletions import (
    PREFIX,
    REPRICINGS,
    DeletionRequest,
    RepricingRequest,
    RequestFence,
    rows_to_delete,
)
from tracelake.pipeline.sources.registry import find
from tracelake.shards.rows import ROW_ID, first_row_id
from tracelake.storage import ObjectStore
from tracelake.tasks.runners import InProcess
from tracelake.testing import CrashingKeyValueStore, CrashingObjectStore, CrashPoint


@pytest.fixture(autouse=True)
def no_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable heartbeats: a slow process makes an extra call every three seconds."""
    monkeypatch.setattr(CrashMarkers, "beat", lambda _: None)


@pytest.fixture(name="lake")
def fixture_lake(tmp_path: Path) -> Iterator[Lake]:
    with tracelake.init(tmp_path / "lake", buckets=BUCKETS) as lake:
        yield lake


def trace_id(number: int) -> str:
    return f"{number + 1:032x}"


def submit(objects: ObjectStore, request: DeletionRequest | RepricingRequest) -> Input:
    """Submit a request, and return it as an input."""
    prefix = PREFIX if isinstance(request, DeletionRequest) else REPRICINGS
    with closing(RequestFence(objects, prefix)) as fence:
        item = fence.submit(request)
    assert item is not None
    return item


def request(
    objects: ObjectStore, *traces: int, decided: int = 0, workspace: str | None = None, spans: int = 3
) -> Input:
    """Submit a request to delete traces."""
    ids = tuple(map(trace_id, traces))
    return submit(
        objects, DeletionRequest(decided, workspace, ids, spans, "test", "ada", "2026-01-01T00:00:00")
    )


def ingest(lake: Lake, folder: Path, name: str, *spans: dict[str, Any], workspace: str = "") -> Input:
    file = folder / f"{name}.jsonl"
    file.write_bytes(a_line(*spans, workspace=workspace))
    lake.ingest(file, runner=InProcess())
    (item,) = find(lake.objects, [str(file)])
    return item


def delete(lake: Lake, *inputs: Input) -> RunResult:
    """Run one transaction with these inputs."""
    pipeline = main_pipeline(lake._opened, InProcess())
    pipeline.snapshot_client("")
    return pipeline.run([inputs])


def spans_of(lake: Lake, at: str = "main") -> Counter[str]:
    """Return the number of spans of each trace. Table `traces` and the index must agree."""
    rows = lake.sql("select trace_id, span_id, transaction from spans", at)
    counts = Counter(map(str, rows["trace_id"].to_pylist()))
    traces = lake.sql("select trace_id, span_count from traces", at).to_pylist()
    assert {row["trace_id"]: row["span_count"] for row in traces} == counts
    assert lake.search("*", at=at).total == len(rows)
    for each, count in counts.items():
        assert lake.search(f"trace:{each}", at=at).total == count
    return counts


def test_deletion_removes_whole_traces_at_head_only(lake: Lake, tmp_path: Path) -> None:
    """All rows and documents of the traces go in one commit; the commit before still has them."""
    ingest(lake, tmp_path, "a", a_span(0, 0), a_span(0, 1), a_span(1, 0))
    before = lake.branch("main").head
    item = request(lake.objects, 0)
    result = delete(lake, item)
    assert [(counts.new, counts.deleted) for counts in result.counts] == [(0, 2)]
    assert spans_of(lake) == {trace_id(1): 1}
    assert before is not None
    assert spans_of(lake, before) == {trace_id(0): 2, trace_id(1): 1}
    newest = next(iter(lake.log()))
    assert newest.message == "transaction 1: 2 spans deleted"
    assert newest.metadata["spans_deleted"] == "2"
    assert lake.verify().findings == ()


def test_repeated_deletion_removes_nothing_more(lake: Lake, tmp_path: Path) -> None:
    """A request that is applied twice has no second effect, also if a span of the trace arrived in between."""
    ingest(lake, tmp_path, "a", a_span(0, 0), a_span(1, 0))
    item = request(lake.objects, 0)
    delete(lake, item)
    ingest(lake, tmp_path, "late", a_span(0, 5))
    assert [counts.deleted for counts in delete(lake, item).counts] == [0]
    assert spans_of(lake) == {trace_id(0): 1, trace_id(1): 1}
    assert lake.verify().findings == ()


def test_newer_row_keeps_its_whole_trace(lake: Lake, tmp_path: Path) -> None:
    """A trace that got a span after the decision stays whole; the other traces of the request go."""
    ingest(lake, tmp_path, "a", a_span(0, 0), a_span(1, 0))
    item = request(lake.objects, 0, 1, decided=0)
    ingest(lake, tmp_path, "late", a_span(0, 5))
    assert [counts.deleted for counts in delete(lake, item).counts] == [1]
    assert spans_of(lake) == {trace_id(0): 2}


def test_identical_span_arrives_again_after_a_deletion(lake: Lake, tmp_path: Path) -> None:
    """A span with the same content is a new row, because the table has none of it."""
    ingest(lake, tmp_path, "a", a_span(0, 0), a_span(1, 0))
    delete(lake, request(lake.objects, 0))
    ingest(lake, tmp_path, "b", a_span(0, 0), a_span(0, 1))
    assert spans_of(lake) == {trace_id(0): 2, trace_id(1): 1}


def test_spans_in_the_transaction_of_a_deletion_are_new_rows(lake: Lake, tmp_path: Path) -> None:
    """A transaction deletes first: an identical span that arrives with the request stays, as one row."""
    ingest(lake, tmp_path, "a", a_span(0, 0), a_span(0, 1), a_span(1, 0))
    file = tmp_path / "b.jsonl"
    file.write_bytes(a_line(a_span(0, 0), a_span(2, 0)))
    (item,) = find(lake.objects, [str(file)])
    result = delete(lake, request(lake.objects, 0), item)
    assert [(counts.new, counts.deleted) for counts in result.counts] == [(2, 2)]
    assert spans_of(lake) == {trace_id(0): 1, trace_id(1): 1, trace_id(2): 1}
    assert lake.verify().findings == ()


def test_deletion_in_a_workspace_leaves_the_spans_of_others(lake: Lake, tmp_path: Path) -> None:
    """A workspace's request removes its own spans of a shared trace; the row of `traces` describes the others."""
    ingest(lake, tmp_path, "a", a_span(0, 0), a_span(0, 1), workspace="a")
    ingest(lake, tmp_path, "b", a_span(0, 2), workspace="b")
    delete(lake, request(lake.objects, 0, workspace="a", decided=0))
    assert spans_of(lake) == {trace_id(0): 1}
    assert lake.sql("select distinct workspace from spans").to_pylist() == [{"workspace": "b"}]


def test_compaction_and_index_merges_bring_no_deleted_row_back(lake: Lake, tmp_path: Path) -> None:
    """Compaction, also of the deletion itself, index merges and a rebuild keep deleted rows deleted."""
    for number in range(12):
        ingest(lake, tmp_path, f"{number}", a_span(number, 0), a_span(number, 1))
    delete(lake, request(lake.objects, *range(6), decided=11))
    expected = {trace_id(number): 2 for number in range(6, 12)}
    for number in range(12, 30):
        ingest(lake, tmp_path, f"{number}", a_span(number, 0))
        expected[trace_id(number)] = 1
    lake.maintenance.compact(runner=InProcess())
    assert spans_of(lake) == expected
    lake.maintenance.rebuild_index(runner=InProcess())
    assert spans_of(lake) == expected
    assert lake.verify().findings == ()


def test_damaged_request_deletes_nothing(lake: Lake, tmp_path: Path) -> None:
    """A request that fails its checksum is reported, and no trace goes."""
    ingest(lake, tmp_path, "a", a_span(0, 0))
    item = request(lake.objects, 0)
    data = lake.objects.get(item.path)
    lake.objects.put(item.path, data.replace(b"test", b"tess"))
    result = delete(lake, item)
    assert result.transactions == []
    assert "checksum" in str(result.ranges)
    assert spans_of(lake) == {trace_id(0): 1}
    with pytest.raises(DamageError):
        deletions.read(lake.objects, item.path)


def test_deletable_rows_of_a_request() -> None:
    """Pure: a trace goes whole or not at all, and only if no chosen row is newer than the decision."""
    assert [may_delete(5, newest) for newest in (4, 5, 6)] == [True, True, False]
    stored = pa.table(
        {
            "trace_id": ["a", "a", "b", "b", "c"],
            "workspace": ["w", "v", "w", "w", "w"],
            ROW_ID.name: [first_row_id(t) + 1 for t in (1, 9, 2, 6, 3)],
        }
    )

    def deleted(*asked: tuple[str, str | None, int]) -> list[int]:
        rows = pa.Table.from_pylist(
            [dict(zip(deletions.ROWS.names, each, strict=True)) for each in asked], deletions.ROWS
        )
        return [row_id >> 32 for row_id in rows_to_delete(stored, rows).to_numpy().tolist()]

    assert deleted(("a", "w", 5)) == [1]
    assert deleted(("a", None, 5)) == []
    assert deleted(("b", "w", 5)) == []
    assert deleted(("b", "w", 6), ("c", None, 3), ("x", None, 9)) == [2, 6, 3]
    assert deleted(("c", None, 3), ("c", "w", 3)) == [3]


class DeletingWorld(World):
    """A world in which two transactions are committed, and the next deletes a trace, with a file beside it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        super().run()
        self.item = request(self.objects, 0, decided=1)
        (folder / "more.jsonl").write_bytes(a_line(a_span(0, 0), a_span(7, 0)))
        self.more = find(self.objects, [str(folder / "more.jsonl")])

    def run(self, crash: CrashPoint | None = None) -> RunResult:
        crash = crash or CrashPoint()
        pipeline = Pipeline(
            "main",
            CrashingKeyValueStore(self.key_value, crash),
            CrashingObjectStore(self.objects, crash),
            BUCKETS,
            CrashingExecutor(crash),
        )
        return pipeline.run([[self.item, *self.more]])


def test_killed_at_every_call_of_a_deletion(tmp_path: Path) -> None:
    """After a death at any call, a commit has all or nothing of the deletion, and another run completes it."""
    world = DeletingWorld(tmp_path)
    start = world.contents()
    film = Filmed(world)
    result = world.run(film)
    assert sum(counts.deleted for counts in result.counts) == 2
    expected = world.contents()
    assert expected != start
    for at in film.killed():
        assert world.contents() in (start, expected), f"a torn commit at call {at}"
        world.run()
        # A request that is not finished may be applied again, in a transaction that changes nothing.
        contents = world.contents()
        assert contents[-len(expected) :] == expected, f"killed at call {at}"
        assert contents[:3] == expected[:3], f"killed at call {at}"


def model_call(trace: int, span: int, **fields: Any) -> dict[str, Any]:
    """Return a call of a model with a million input tokens."""
    values = {"gen_ai.request.model": "mine", "gen_ai.usage.input_tokens": "1000000"}
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in values.items()]
    return a_span(trace, span, attributes=attributes, **fields)


class RepricingWorld(DeletingWorld):
    """A world whose next transaction prices spans again. A later version of one, and another span, arrive with it."""

    def __init__(self, folder: Path) -> None:
        World.__init__(self, folder)
        (folder / "calls.jsonl").write_bytes(a_line(*(model_call(each % 3, 7 + each) for each in range(6))))
        self.more = find(self.objects, [str(folder / "calls.jsonl")])
        Pipeline("main", self.key_value, self.objects, BUCKETS, InProcess()).run([self.more])
        Prices(self.key_value).set("mine", input=0.5)
        ids = tuple(map(trace_id, range(3)))
        self.item = submit(self.objects, RepricingRequest(ids, 9, "2026-01-01T00:00:00"))
        (folder / "more.jsonl").write_bytes(a_line(model_call(0, 7, end=30), model_call(9, 0)))
        self.more = find(self.objects, [str(folder / "more.jsonl")])


def check_killed_repricing(folder: Path) -> None:
    """Check that a commit has all or nothing of a correction of costs, and that another run completes it."""
    world = RepricingWorld(folder)
    start = world.contents()
    film = Filmed(world)
    (counts,) = world.run(film).counts
    assert (counts.new, counts.replaced, counts.repriced) == (1, 1, 5)
    assert not list(world.objects.list("staging/"))
    expected = world.contents()
    for at in film.killed():
        assert world.contents() in (start, expected), f"a torn commit at call {at}"
        if Journal(world.key_value, "main").read(1).steps:
            Prices(world.key_value).remove("mine")  # a recorded step keeps its prices
        world.run()
        # The request is applied again, by the current prices, in another transaction.
        assert world.contents()[-len(expected) :] == expected, f"killed at call {at}"


def test_killed_at_every_call_of_a_repricing(tmp_path: Path) -> None:
    """A killed correction of costs is completed with the prices of its step."""
    check_killed_repricing(tmp_path)
