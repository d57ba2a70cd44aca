"""Both tiers answer as one: acknowledged spans are readable at once, and no answer reveals its tier."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

import msgspec
import pytest
from sqlalchemy import update

import tracelake
from tests.pipeline.spans import a_span, a_table
from tests.server.client import Client
from tests.tracking.requests import payload, request, trace_id
from tracelake import limits
from tracelake._errors import NotFoundError, QueryError
from tracelake.hot.rows import latest_versions
from tracelake.otlp.partition import rows_of
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.server.app import create_app
from tracelake.tables.scan import Scan
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.outbox import ListedPart, Outbox, StoredPart, Uncommitted
from tracelake.tracking.schema import ARCHIVE_REPO, trace_info, trace_parts
from tracelake.tracking.store import TrackingStore


def answers(lake: tracelake.Lake, store: TrackingStore) -> list[object]:
    """Return the answers of API and façade about everything in the lake."""
    with closing(TrackingDoor(store)) as door:
        client = Client(create_app(lake, door))
        of_one = f"/api/v1/traces/{trace_id(1)}"
        paths = [
            *("/api/v1/traces", "/api/v1/traces?name=span&order=oldest", "/api/v1/services"),
            *(
                of_one,
                f"{of_one}?format=otlp",
                f"{of_one}/spans/{2:016x}",
                f"/api/v1/traces/{trace_id(1)[:31]}1",
            ),
        ]
        documents = [client.get(path) for path in paths]
        assert [document.status_code for document in documents] == [200] * len(paths)
        return [*(document.json() for document in documents), msgspec.json.encode(lake.trace(trace_id(1)))]


def test_nobody_can_tell_the_tier(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A trace has the same JSON at once, after the commit, and when only the tables have the payload."""
    store.write([request((1, 1), (1, 2), (2, 1), text="ask"), request((1, 3))])
    hot = answers(lake, store)
    assert [span["_tier"] for span in lake.trace(trace_id(1), tiers=True).spans] == ["hot"] * 3
    report = pipeline.run_once()
    assert report is not None
    assert (report.spans_new, report.bad) == (4, ())
    assert Outbox(store).waiting() == []
    assert answers(lake, store) == hot
    archive(store)
    assert answers(lake, store) == hot
    assert [span["_tier"] for span in lake.trace(trace_id(1), tiers=True).spans] == ["lake"] * 3


def archive(store: TrackingStore) -> None:
    """Clear the payload of all traces as a pass of layout `lake` does."""
    with store.database.writing() as connection:
        connection.execute(
            update(trace_info).values(spans_location=ARCHIVE_REPO, archive_location="lake:x@0")
        )
        connection.execute(trace_parts.delete())


def test_a18_a_late_span_is_whole_on_either_side(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A late span of a trace archived in the tables is read with the others, before and after its commit (A18)."""
    store.write([request((1, 1), (1, 2))])
    assert pipeline.run_once() is not None
    archive(store)
    store.write([request((1, 3))])
    late = lake.trace(trace_id(1), tiers=True)
    assert [span["_tier"] for span in late.spans] == ["lake", "lake", "hot"]
    assert late.summary["span_count"] == 3
    before = answers(lake, store)
    assert pipeline.run_once() is not None
    assert answers(lake, store) == before
    assert store.traces([trace_id(1)])[trace_id(1)].parts == ()


def test_o2_claims_are_merged_by_the_rule(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A repeated batch, and a running span with the finished one, give one row before and after the commit (O2)."""
    running, finished = request((1, 1), end_ns=0), request((1, 1), (1, 2), text="x")
    store.write([finished, running])
    store.write([finished])
    hot = answers(lake, store)
    assert [span["end_ns"] for span in lake.trace(trace_id(1)).spans] == [2_000, 2_000]
    assert pipeline.run_once() is not None
    assert answers(lake, store) == hot
    store.write([running])
    assert answers(lake, store) == hot
    assert lake.sql("SELECT count(*) AS n FROM spans", uncommitted=True).to_pylist() == [{"n": 2}]


def test_only_what_is_asked_for_is_uncommitted(lake: tracelake.Lake, store: TrackingStore) -> None:
    """Queries read commits, and the tracking store's traces on request; queries of other commits never do."""
    store.write([request((1, 1), (2, 1))])
    assert lake.sql("SELECT * FROM traces").num_rows == 0
    assert lake.sql("SELECT * FROM traces", uncommitted=True).num_rows == 2
    assert lake.sql("SELECT * FROM spans WHERE name = 'span 1'", uncommitted=True).num_rows == 2
    with pytest.raises(NotFoundError, match="several traces"):
        lake.trace(trace_id(1)[:20])
    with pytest.raises(NotFoundError, match="no trace"):
        lake.trace("ab" * 16)


def test_a_lake_tells_its_tiers(lake: tracelake.Lake) -> None:
    """A lake without a tracking store reports that; a lake with one reports its location and its pending rows."""
    assert lake.hot.describe() == {"hot_tier": False}
    store = lake.hot.set_up()
    store.write([request((1, 1))])
    told = lake.hot.describe()
    assert told["hot_tier"] is True
    assert str(told["database"]).endswith("tracking.db")
    outbox = told["outbox"]
    assert isinstance(outbox, dict)
    assert outbox["rows"] == 1


def test_w11_each_workspace_has_the_claim_that_stands_of_its_own() -> None:
    """Versions with the same ids coexist if they are of two workspaces, in any order (W11)."""
    import pyarrow as pa  # noqa: PLC0415

    a, again, b = (
        pa.Table.from_batches([rows_of(payload((1, 1), end_ns=end, workspace=name)).take()])
        for name, end in (("a", 5_000), ("a", 6_000), ("b", 9_000))
    )

    def check() -> None:
        for tables in ([a, b], [b, a, b], [again, b, a], [a, again, b]):
            rows = latest_versions(tables).sort_by("workspace")
            end = 6_000 if again in tables else 5_000
            assert rows.select(["workspace", "end_ns"]).to_pylist() == [
                {"workspace": "a", "end_ns": end},
                {"workspace": "b", "end_ns": 9_000},
            ]

    check()


def test_both_sides_of_a_call_stand() -> None:
    """A client and a server span with one id both exist, each in its version with the highest precedence."""
    import pyarrow as pa  # noqa: PLC0415

    client, again, server = (
        a_table(a_span(0, 0, end=end, kind=kind)) for end, kind in ((5, 3), (6, 3), (9, 2))
    )
    for tables in (
        [client, server],
        [server, client, server],
        [again, server, client],
        [client, again, server],
    ):
        rows = latest_versions(tables).sort_by("kind").select(["kind", "end_ns"]).to_pylist()
        end = 6 if any(each is again for each in tables) else 5
        assert rows == [{"kind": "CLIENT", "end_ns": end}, {"kind": "SERVER", "end_ns": 9}]
        assert isinstance(latest_versions(tables), pa.Table)


def test_standing_is_what_the_rule_says() -> None:
    """The finished version of a span wins over the running one, in any order; other spans are unchanged."""
    import pyarrow as pa  # noqa: PLC0415

    one, other = (
        pa.Table.from_batches([rows_of(payload((1, 1), (1, 2), end_ns=end)).take()]) for end in (0, 5_000)
    )
    for tables in ([one, other], [other, one], [one, other, one]):
        assert latest_versions(tables)["end_ns"].to_pylist() == [5_000, 5_000]


def test_a_trace_that_no_part_has_opens_none(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no part can contain a trace, no query runs; the answer has the same columns, and the same errors."""
    store.write([request((1, 1))])
    pipeline.run_once()
    spans = lake.table("spans")
    some = spans.lookup([trace_id(1)])
    monkeypatch.setattr(Scan, "select", lambda *_args: pytest.fail("a query ran"))
    for nothing in (spans.lookup([trace_id(2)]), spans.lookup([])):
        assert (len(some), len(nothing), nothing.schema) == (1, 0, some.schema)
    assert spans.lookup([trace_id(2)], ["span_id"]).schema.names == ["span_id"]
    monkeypatch.undo()
    with pytest.raises(QueryError):
        spans.lookup([trace_id(2)], ["nothing"])


def test_lists_are_bounded(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists skip one huge trace, many large ones and one with many committed spans, and show all others."""

    def counts() -> dict[str, int]:
        rows = lake.sql("select trace_id, span_count from traces", uncommitted=True).to_pylist()
        return {str(row["trace_id"]): int(row["span_count"]) for row in rows}

    huge = "x" * (limits.UNCOMMITTED_LIST_TRACE_MAX_BYTES // 2)
    store.write(
        [request((2, 1)), request((1, 1), text=huge), request((1, 2), text=huge), request((3, 1), (3, 4))]
    )
    others = {trace_id(2): 1, trace_id(3): 2}
    read: list[str] = []
    of_traces = Uncommitted.of_traces

    def noted(self: Uncommitted, wanted: Collection[ListedPart]) -> list[StoredPart]:
        read.extend(trace_id for trace_id, *_ in wanted)
        return of_traces(self, wanted)

    monkeypatch.setattr(Uncommitted, "of_traces", noted)
    assert counts() == others
    assert sorted(read) == sorted(others)
    assert len(lake.trace(trace_id(1)).spans) == 2
    assert pipeline.run_once() is not None
    assert counts() == {trace_id(1): 2, **others}

    monkeypatch.setattr(limits, "UNCOMMITTED_LIST_TRACE_MAX_SPANS", 1)
    store.write([request((3, 3)), request((2, 2))])
    assert counts() == {trace_id(1): 2, trace_id(2): 2, trace_id(3): 2}
    assert len(lake.trace(trace_id(3)).spans) == 3
    assert pipeline.run_once() is not None
    for number in (4, 5, 6):
        store.write([request((number, 1))])
    monkeypatch.setattr(limits, "UNCOMMITTED_LIST_MAX_BYTES", len(payload((6, 1))) + 1)
    assert set(counts()) == {trace_id(number) for number in (1, 2, 3, 6)}
    monkeypatch.undo()

    assert pipeline.run_once() is not None
    store.write([request((3, 5))])
    store.write([request((2, 3))])
    monkeypatch.setattr(limits, "UNCOMMITTED_LIST_MAX_SPANS", 4)
    newest = counts()
    assert (newest[trace_id(2)], newest[trace_id(3)]) == (3, 3), "the newest, as far as it goes"
