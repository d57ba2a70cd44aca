"""The upsert: new, replaced and repeated spans, in any order."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.spans import a_span, a_table
from tracelake.pipeline import merge_task
from tracelake.pipeline.merge_task import UpsertResult, merge, winning_rows
from tracelake.shards.lookup import Lookup
from tracelake.shards.model import Part
from tracelake.shards.parts import write_part
from tracelake.shards.rows import with_row_ids
from tracelake.shards.shard import Snapshot
from tracelake.storage.local import FileObjectStore
from tracelake.tables.builtin import BUILT_IN, TRACES


class Bucket:
    """Both tables of one bucket, with transactions applied as the pipeline does."""

    def __init__(self, folder: Path) -> None:
        self._objects = FileObjectStore(str(folder))
        self._parts: dict[str, list[Part]] = {"spans": [], "traces": []}
        self._gone: dict[str, list[Part]] = {"spans": [], "traces": []}
        self._transaction = 0

    def apply(self, *spans: dict[str, Any]) -> UpsertResult:
        """Apply a transaction; a span's `workspace` comes from its resource."""
        t = self._transaction
        incoming = [
            a_table(
                {name: span[name] for name in span if name != "workspace"},
                workspace=span.get("workspace", ""),
            )
            for span in spans
        ]
        merged = merge(lambda: incoming, self._stored("spans"), self._stored("traces"), t)
        new = winning_rows(incoming, 0, merged.lost, t)
        for table, rows, gone in (
            ("spans", new, merged.span_retractions),
            ("traces", pa.concat_tables([TRACES.empty_table(), *merged.traces]), merged.trace_retractions),
        ):
            numbered = with_row_ids(rows, t, 0, 1)
            self._parts[table].append(
                write_part(self._objects, table, 0, 0, numbered, "trace_id", looked_up=True)
            )
            self._gone[table].append(write_part(self._objects, table, 0, 0, gone, None))
        self._transaction += 1
        return merged

    def _stored(self, table: str) -> Lookup:
        snapshot = Snapshot(self._transaction - 1, tuple(self._parts[table]), tuple(self._gone[table]))
        return Lookup(self._objects, snapshot, "trace_id")

    def _file(self, path: str) -> str:
        file = self._objects.local_path(path)
        assert file is not None
        return file

    def rows(self, table: str) -> list[dict[str, Any]]:
        gone = {
            row["row_id"]
            for part in self._gone[table]
            for row in pq.read_table(self._file(part.path)).to_pylist()
        }
        rows = [
            row
            for part in self._parts[table]
            for row in pq.read_table(self._file(part.path)).to_pylist(maps_as_pydicts="strict")
            if row.pop("_row_id") not in gone
        ]
        return sorted(rows, key=lambda row: (row["trace_id"], row.get("span_id", ""), row["workspace"]))


def counts(merged: UpsertResult) -> tuple[int, int, int]:
    return merged.new, merged.replaced, merged.repeated


def test_s5_s6_what_is_there_gives_no_output(tmp_path: Path) -> None:
    """S5, S6: an identical span, in the same or a later transaction, adds and retracts nothing."""
    bucket = Bucket(tmp_path)
    assert counts(bucket.apply(a_span(0, 0), a_span(0, 0), a_span(0, 1))) == (2, 0, 1)
    merged = bucket.apply(a_span(0, 1), a_span(0, 0))
    assert counts(merged) == (0, 0, 2)
    assert (len(merged.lost), len(merged.traces), len(merged.trace_retractions)) == (2, 0, 0)


def test_few_new_spans_give_what_many_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are the same whether the rows are made by the few-traces path or not."""
    names = [(trace, number) for trace in (2, 0, 1) for number in (3, 1, 2)]
    spans = [a_span(*each, start=each[1], end=7 - each[1]) for each in names]
    merged = [Bucket(tmp_path / "few").apply(*spans)]
    monkeypatch.setattr(merge_task, "UPSERT_FEW_SPANS", 0)
    monkeypatch.setattr(merge_task, "summed_traces", lambda *_: pytest.fail("they are not few"))
    merged.append(Bucket(tmp_path / "many").apply(*spans))
    few, many = merged
    assert counts(few) == counts(many) == (9, 0, 0)
    assert pa.concat_tables(few.traces).equals(pa.concat_tables(many.traces), check_metadata=True)
    assert len(few.traces) == len(many.traces) == 1
    for gone in ("span_retractions", "trace_retractions"):
        assert getattr(few, gone).equals(getattr(many, gone), check_metadata=True)
    assert few.lost.dtype == many.lost.dtype


def test_w11_workspaces_have_rows_of_their_own(tmp_path: Path) -> None:
    """W11: equal ids in two workspaces have separate rows, in one transaction or several, even if the later wins."""
    ours, theirs = (a_span(0, 0, end=end) | {"workspace": name} for name, end in (("a", 10), ("b", 99)))
    alone, again = Bucket(tmp_path / "alone"), Bucket(tmp_path / "again")
    assert counts(alone.apply(theirs, ours)) == (2, 0, 0)
    assert counts(again.apply(ours)) == (1, 0, 0)
    assert counts(again.apply(theirs)) == (1, 0, 0)
    assert counts(again.apply(ours, theirs, ours)) == (0, 0, 3)
    assert counts(again.apply(a_span(0, 0, end=20) | {"workspace": "a"})) == (0, 1, 0)
    assert counts(again.apply(ours)) == (0, 0, 1)
    for bucket, end in ((alone, 10), (again, 20)):
        assert [(row["workspace"], row["end_ns"]) for row in bucket.rows("spans")] == [("a", end), ("b", 99)]
        (trace,) = bucket.rows("traces")
        assert (trace["workspace"], trace["span_count"], trace["end_ns"]) == ("a", 2, 99)


def test_sides_of_a_call_have_rows_of_their_own(tmp_path: Path) -> None:
    """A client and a server span with one id are two rows, in one transaction or several, in any order."""
    client, server = (a_span(0, 0, end=end, kind=kind) for end, kind in ((10, 3), (99, 2)))
    several: dict[str, list[tuple[dict[str, Any], ...]]] = {
        "one": [(client, server)],
        "other": [(server, client, client)],
        "two": [(client,), (server,)],
        "back": [(server,), (client, server)],
    }
    for name, orders in several.items():
        bucket = Bucket(tmp_path / name)
        for spans in orders:
            bucket.apply(*spans)
        assert counts(bucket.apply(client, server)) == (0, 0, 2)
        # a producer is on the client's side
        assert counts(bucket.apply(a_span(0, 0, end=20, kind=4))) == (
            0,
            1,
            0,
        )
        # a consumer is on the server's
        assert counts(bucket.apply(a_span(0, 0, end=100, kind=5))) == (
            0,
            1,
            0,
        )
        rows = bucket.rows("spans")
        assert sorted((row["kind"], row["end_ns"]) for row in rows) == [("CONSUMER", 100), ("PRODUCER", 20)]
        (trace,) = bucket.rows("traces")
        assert (trace["span_count"], trace["end_ns"]) == (2, 100)


def test_row_ids_of_both_sides_are_the_same_for_any_order() -> None:
    """A replay that reads the two sides of a call in another order gives them the same row ids."""
    claimed = [a_table(a_span(0, 0, kind=kind)) for kind in (3, 2)]
    for order in ((0, 1), (1, 0)):
        rows = winning_rows([claimed[at] for at in order], 0, np.empty(0, np.int64), 0)
        assert with_row_ids(rows, 0, 0, 1).sort_by("_row_id")["kind"].to_pylist() == ["CLIENT", "SERVER"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_w11_row_ids_are_the_same_for_any_order_of_claims(order: tuple[int, ...]) -> None:
    """W11: a replay in another order gives rows the ids that an earlier index part refers to."""
    claimed = [a_table(a_span(0, span), workspace=workspace) for span in (0, 1) for workspace in ("a", "b")]
    rows = winning_rows([claimed[at] for at in order], 0, np.empty(0, np.int64), 0)
    by_id = with_row_ids(rows, 0, 0, 1).sort_by("_row_id")
    held = list(zip(by_id["span_id"].to_pylist(), by_id["workspace"].to_pylist(), strict=True))
    assert held == [(f"{span:016x}", workspace) for span in (1, 2) for workspace in ("a", "b")]


def test_rows_of_built_in_tables_have_one_order() -> None:
    """Two rows have the same order, whichever was read first, because a table's sort key includes its primary key."""
    assert all(set(table.key) <= set(table.sorted_by) for table in BUILT_IN.values())


def test_a_finished_span_replaces_the_running_one(tmp_path: Path) -> None:
    """A finished span replaces its export from while it ran, with end 0; not the other way round."""
    bucket = Bucket(tmp_path)
    assert counts(bucket.apply(a_span(0, 0, end=0, start=5))) == (1, 0, 0)
    assert counts(bucket.apply(a_span(0, 0, end=30, start=5))) == (0, 1, 0)
    assert counts(bucket.apply(a_span(0, 0, end=0, start=5))) == (0, 0, 1)
    (row,) = bucket.rows("spans")
    assert (row["end_ns"], row["duration_ns"], row["transaction"]) == (30, 25, 1)
    (trace,) = bucket.rows("traces")
    assert (trace["span_count"], trace["end_ns"], trace["transaction"]) == (1, 30, 1)


def test_a_trace_row_is_made_anew_from_all_its_spans(tmp_path: Path) -> None:
    """Spans of one trace from several transactions make one row, with root, counts and sums over all."""
    tokens: dict[str, Any] = {
        "attributes": [{"key": "gen_ai.usage.input_tokens", "value": {"intValue": "7"}}]
    }
    session: dict[str, Any] = {"attributes": [{"key": "session.id", "value": {"stringValue": "s1"}}]}
    error: dict[str, Any] = {"status": {"code": 2}}
    bucket = Bucket(tmp_path)
    bucket.apply(a_span(0, 2, parentSpanId=f"{1:016x}", start=5, end=50, name="child", **tokens))
    (early,) = bucket.rows("traces")
    assert (early["name"], early["span_count"], early["input_tokens"]) == ("child", 1, 7)
    bucket.apply(a_span(0, 0, start=6, end=40, name="root", **error), a_span(9, 9))
    bucket.apply(a_span(0, 3, parentSpanId=f"{1:016x}", start=2, end=3, **session))
    trace, other = bucket.rows("traces")
    assert other["span_count"] == 1
    assert {key: trace[key] for key in trace if key not in ("trace_id", "workspace")} == {
        "name": "root",
        "service": "shop",
        "start_ns": 2,
        "end_ns": 50,
        "duration_ns": 48,
        "span_count": 3,
        "error_count": 1,
        "input_tokens": 7,
        "output_tokens": None,
        "cached_input_tokens": None,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
        "total_tokens": 7,
        "cost": None,
        "session_id": "s1",
        "user_id": None,
        "transaction": 2,
    }


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, -(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]),
            st.sampled_from([0, 1, 2**63 - 1]),
            st.sampled_from([0, 1, 2**63 - 1]),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=15, deadline=None)
def test_aggregates_stop_at_the_bounds_of_int64(spans: list[tuple[int | None, int, int]]) -> None:
    """Made-up numbers from senders overflow neither sums nor durations of a trace, in any mixture."""

    def tokens(count: int | None) -> list[dict[str, Any]]:
        key = "gen_ai.usage.input_tokens"
        return [] if count is None else [{"key": key, "value": {"intValue": str(count)}}]

    with tempfile.TemporaryDirectory() as folder:
        bucket = Bucket(Path(folder))
        for number, (count, start, end) in enumerate(spans):  # each time the stored spans are summed, too
            bucket.apply(a_span(0, number, start=start, end=end, attributes=tokens(count)))
        (trace,) = bucket.rows("traces")
    # otherwise, the column is null
    given_counts = [count for count, _, _ in spans if count is not None and count >= 0]
    total = min(sum(given_counts), 2**63 - 1) if given_counts else None
    start = min(start for _, start, _ in spans)
    end = max(max(start, end) for _, start, end in spans)
    assert (trace["input_tokens"], trace["output_tokens"], trace["span_count"]) == (total, None, len(spans))
    assert (trace["start_ns"], trace["end_ns"], trace["duration_ns"]) == (start, end, end - start)


def an_attribute(key: str, **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def a_claim(
    end: int = 10, status: int | None = None, events: int = 0, **attributes: str | int
) -> dict[str, Any]:
    """Return a version of one fixed span."""
    given = [
        an_attribute(
            key.replace("__", "."), **({"intValue": str(v)} if isinstance(v, int) else {"stringValue": v})
        )
        for key, v in attributes.items()
    ]
    fields: dict[str, Any] = {} if status is None else {"status": {"code": status}}
    happened = [{"name": "e", "timeUnixNano": "5"}] * events
    return a_span(0, 0, end=end, attributes=given, events=happened, **fields)


UNSET, OK, ERROR = 0, 1, 2
A_LINK = {"traceId": f"{7:032x}", "spanId": f"{7:016x}"}


@pytest.mark.parametrize(
    ("greater", "less"),
    [
        (a_claim(end=0, tracelake__revision=1), a_claim(end=10, status=ERROR)),
        (a_claim(tracelake__revision=10), a_claim(tracelake__revision=9)),
        (a_claim(tracelake__revision="10"), a_claim(tracelake__revision=9)),
        (a_claim(), a_claim(tracelake__revision=-1)),
        (a_claim(status=ERROR), a_claim(tracelake__revision="5.7")),
        (a_claim(status=ERROR), a_claim(tracelake__revision="9" * 19)),
        (a_claim(end=11), a_claim(end=10, status=ERROR, a="x")),
        (a_claim(status=ERROR), a_claim(status=OK, a="x")),
        (a_claim(status=OK), a_claim(status=UNSET, a="x")),
        (a_claim(status=OK), a_claim(a="x")),
        (a_claim(output__value="x"), a_claim(a="x", b="x")),
        (a_claim(a="x", b="x"), a_claim(b="y")),
        (a_claim(a="x", b="x"), a_claim(b="y", events=3)),
        (a_claim(a="x", events=2), a_claim(a="y", events=1)),
        (a_claim(status=OK), a_claim(status=UNSET, output__value="x")),
        (a_claim(a="x", events=2), a_claim(a="y", events=1) | {"links": [A_LINK]}),
        (a_claim(a="x") | {"links": [A_LINK, A_LINK]}, a_claim(a="y") | {"links": [A_LINK]}),
        (a_claim(a="y") | {"links": [A_LINK, A_LINK]}, a_claim(a="x") | {"links": [A_LINK]}),
    ],
)
def test_the_greater_claim_stands_whichever_comes_first(
    greater: dict[str, Any], less: dict[str, Any]
) -> None:
    """Revision, end, status, columns, attributes, events and links decide, in this order, in one transaction or
    two."""
    for cut in ([[greater], [less]], [[less], [greater]], [[less, greater, less]]):
        with tempfile.TemporaryDirectory() as folder:
            bucket = Bucket(Path(folder))
            for spans in cut:
                bucket.apply(*spans)
            (row,) = bucket.rows("spans")
            (alone,) = a_table(greater).to_pylist(maps_as_pydicts="strict")
            assert {name: row[name] for name in alone} == alone


claims = st.builds(
    lambda trace, span, workspace, claim, attributes: (
        claim
        | a_span(trace, span, end=0)
        | {
            "workspace": workspace,
            "endTimeUnixNano": claim["endTimeUnixNano"],
            "attributes": attributes,
        }
    ),
    st.integers(0, 2),
    st.integers(0, 1),
    st.sampled_from(["a", "b"]),
    st.builds(a_claim, st.sampled_from([0, 10, 20]), st.sampled_from([None, 0, 1, 2, 3]), st.integers(0, 2)),
    st.lists(
        st.one_of(
            st.builds(lambda n: an_attribute("tracelake.revision", intValue=str(n)), st.integers(-1, 1)),
            st.builds(
                lambda key, value: an_attribute(key, stringValue=value),
                st.sampled_from(["a", "b", "gen_ai.request.model", "output.value"]),
                st.sampled_from(["", "x", "y"]),
            ),
        ),
        max_size=3,
        unique_by=lambda attribute: attribute["key"],
    ),
)
arrivals = st.lists(st.lists(claims, min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=8, deadline=None)
@given(arrivals, st.randoms(use_true_random=False))
def test_tables_do_not_depend_on_order_or_boundaries(
    transactions: list[list[dict[str, Any]]], chance: random.Random
) -> None:
    """Any order of spans, cut into any transactions, gives the same rows, and one for each key."""
    flat = [span for spans in transactions for span in spans]
    shuffled = flat.copy()
    chance.shuffle(shuffled)
    contents = []
    again = [*transactions, shuffled, flat]  # existing rows change nothing
    for cut in (transactions, [flat], [[span] for span in shuffled], again):
        with tempfile.TemporaryDirectory() as folder:
            bucket, total = Bucket(Path(folder)), 0
            for spans in cut:
                merged = bucket.apply(*spans)
                assert sum(counts(merged)) == len(spans)
                total += merged.new
            rows = bucket.rows("spans")
            keys = {(span["traceId"], span["spanId"], span["workspace"]) for span in flat}
            assert total == len(rows) == len(keys)
            contents.append(
                [
                    [{key: row[key] for key in row if key != "transaction"} for row in of_table]
                    for of_table in (rows, bucket.rows("traces"))
                ]
            )
    assert contents[0] == contents[1] == contents[2] == contents[3]
