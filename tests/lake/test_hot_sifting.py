"""While a pipeline runs, searches scan pending rows, with the same results as after the commit."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from sqlalchemy import delete, update

import tracelake
from tests.lake.test_hot_search import (
    _patient,  # noqa: F401  a fixture for this module, too
    answer,
    scoreless,
    some_query,
    some_request,
)
from tests.patience import HANG_S
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake.hot import index, search
from tracelake.hot.index import HotIndex, TextScan
from tracelake.otlp.partition import take_apart
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search.analyzers import ENGLISH
from tracelake.search.prefilter import prefilter_of
from tracelake.search.results import SearchResults
from tracelake.tracking.outbox import StoredPart, Uncommitted
from tracelake.tracking.schema import outbox, trace_parts
from tracelake.tracking.store import TracedRequest, TrackingStore


def left_to(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a running pipeline, so that all later rows are left to it."""
    monkeypatch.setattr(index, "UNCOMMITTED_AT_WORK_S", HANG_S)
    monkeypatch.setattr(limits, "UNCOMMITTED_AHEAD_EVERY_S", 0.0)
    monkeypatch.setattr(search, "UNCOMMITTED_AHEAD_FOR_S", HANG_S)
    store.write([request((900, 1), text="pear")])
    assert lake.search("pear").total == 1
    assert pipeline.run_once() is not None
    lake.search("pear")
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_LEFT_BYTES", -1)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the numbers of the rows whose spans are read during the block."""
    read: list[int] = []
    parts = Uncommitted.parts

    def noted(uncommitted: Uncommitted, sequences: Collection[int]) -> list[StoredPart]:
        read.extend(sequences)
        return parts(uncommitted, sequences)

    with monkeypatch.context() as patch:
        patch.setattr(Uncommitted, "parts", noted)
        yield read


def test_queries_find_what_is_left_to_a_pipeline(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any query with a text filter has facets, orders and conditions as after the commit; others report the gap."""
    chance = random.Random(31)
    left_to(lake, store, pipeline, monkeypatch)
    queries = [(some_query(chance), chance.choice((None, None, "duration_ns > 3e9"))) for _ in range(60)]
    for traces in (range(1, 10), range(10, 40)):
        for _ in range(12):
            store.write([some_request(chance, traces) for _ in range(chance.randint(1, 3))])
            lake.search("refund")
        before = {}
        for query in queries:
            if prefilter_of(query[0], None, None, ENGLISH) is not None:
                before[query] = answer(lake, *query)
            else:
                assert "wait for the pipeline" in str(lake.search(query[0]).not_searched)
        assert pipeline.run_once() is not None
        for query, one in before.items():
            assert scoreless(one) == scoreless(answer(lake, *query)), query
        found = [one for one in before.values() if isinstance(one, tuple) and one[1]]
        assert len(found) > 15


def test_each_text_is_read_once(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New rows are read by a search, or before it, in small steps; rows that left the outbox are dropped."""
    left_to(lake, store, pipeline, monkeypatch)
    for number in range(1, 5):
        store.write([request((number, 1), text=f"apple word{number}")])
    with counted(monkeypatch) as read:
        assert [lake.search(f"word{number}").total for number in range(1, 5)] == [1] * 4
        assert sorted(read) == [2, 3, 4, 5]
        for number in range(5, 8):
            store.write([request((number, 1), text="apple")])
        with monkeypatch.context() as patch:
            patch.setattr(index, "UNCOMMITTED_AHEAD_STEP_BYTES", 1)
            assert [lake.hot.index_newest() for _ in range(3)] == [True, True, False]
        assert sorted(read) == list(range(2, 9))
        assert (lake.search("apple").total, lake.search("apple").not_searched) == (7, None)
        assert sorted(read) == list(range(2, 9))
    texts = lake.hot._search._parts._texts
    assert (len(texts.texts), len(texts.sizes)) == (7, 7)
    assert pipeline.run_once() is not None
    store.write([request((8, 1), text="apple")])
    assert lake.search("apple").total == 8
    assert list(lake.hot._search._parts._texts.sizes) == [9]
    assert pipeline.run_once() is not None
    assert lake.search("apple").total == 8
    assert lake.hot._search._parts._texts == TextScan()


def test_the_newest_that_pass_are_found_and_the_rest_is_said(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If many rows match, a search finds the newest. It finds a rare word among any number of rows, and reports a
    timeout."""
    left_to(lake, store, pipeline, monkeypatch)
    for number in range(1, 11):
        store.write([request((number, 1), text=f"apple word{number}")])
    of_one = sum(Uncommitted(store).sizes([11]).values())
    monkeypatch.setattr(search, "UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES", 3 * of_one)
    results = lake.search("apple", limit=2)
    assert (results.total, results[0].trace_id > trace_id(7)) == (3, True)
    assert str(results.not_searched).startswith("7 groups of acknowledged requests")
    assert len(lake.search("apple", limit=2, page=results.next_page)) == 1
    assert (lake.search("word1").total, lake.search("word1").not_searched) == (1, None)
    monkeypatch.setattr(search, "UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES", 0)
    assert lake.search("apple").total == 1, "one at least"
    store.write([request((11, 1), text="word1")])
    store.write([request((12, 1), text="word1")])
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_BUILD_S", -1.0)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 1)
    monkeypatch.setattr(search, "UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES", 1 << 20)
    results = lake.search("word1")
    assert ([hit.trace_id for hit in results], results.total) == ([trace_id(12), trace_id(1)], 2)
    assert str(results.not_searched).startswith("1 groups of acknowledged requests")
    with monkeypatch.context() as no_wait, lake.hot._search._parts._making:
        no_wait.setattr(index, "UNCOMMITTED_SEARCH_WAIT_S", 0.0)
        results = lake.search("word1")
        assert (results.total, str(results.not_searched)[:8]) == (2, "1 groups"), "others are at it"


def test_the_claim_that_stands_is_found(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span is found by the words of its newest pending version, even if other versions matched or were indexed
    before."""
    store.write([request((1, 1), end_ns=0, text="apple")])
    left_to(lake, store, pipeline, monkeypatch)
    store.write([request((2, 1), (3, 1), end_ns=0, text="apple")])
    with monkeypatch.context() as patch:
        patch.setattr(index, "UNCOMMITTED_SEARCH_LEFT_BYTES", 1 << 20)
        assert lake.search("apple").total == 3, "little waits: it is indexed"
    store.write([request((2, 1), text="banana")])
    store.write([request((4, 1), end_ns=0, text="apple")])
    store.write([request((4, 1), text="banana")])
    found = lake.search("apple", sort="newest")
    assert sorted(hit.trace_id for hit in found) == [trace_id(1), trace_id(3)]
    store.write([request((1, 1), text="banana")])
    found = lake.search("apple", facets=["service"])
    assert ([hit.trace_id for hit in found], found.total) == ([trace_id(3)], 1), "a commit has another claim"
    assert found.facets["service"].values[0].spans == 1
    assert sorted(hit.trace_id for hit in lake.search("banana")) == [trace_id(number) for number in (1, 2, 4)]


def test_pages_go_on_where_they_began(
    lake: tracelake.Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Pages have each span once, even if another process requests the next one, or a commit happens in between."""
    store.write([request((50, 1), end_ns=0, text="apple")])
    left_to(lake, store, pipeline, monkeypatch)
    for number in range(1, 31):
        store.write([request((number, 1), text="apple"), request((number + 100, 1), text="plum")])
    store.write([request((50, 1), text="plum")])
    monkeypatch.setattr(search, "UNCOMMITTED_SEARCHES_KEPT", 0)
    first = lake.search("apple", limit=13)
    assert (first.total, first.not_searched) == (30, None)
    store.write([request((99, 1), text="apple")])
    assert pipeline.run_once() is not None
    with tracelake.open(tmp_path / "lake") as another:
        for reader in (another, lake):
            ids, page = [hit.id for hit in first], first.next_page
            while page is not None:
                with monkeypatch.context() as patch:
                    indexed: list[int] = []
                    part = HotIndex._part
                    patch.setattr(
                        HotIndex,
                        "_part",
                        lambda parts, stored, *rest, indexed=indexed, part=part: (
                            indexed.append(len(stored)) or part(parts, stored, *rest)
                        ),
                    )
                    results = reader.search("apple", limit=13, page=page)
                assert results.total == 30
                assert indexed == [30, 31], (
                    "of a page that was sifted what passes is indexed, and nothing else"
                )
                ids += [hit.id for hit in results]
                page = results.next_page
            assert (len(ids), len(set(ids))) == (30, 30)


def test_damage_hides_nothing_else(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search reports an unreadable part and finds all others."""
    left_to(lake, store, pipeline, monkeypatch)
    store.write([request((1, 1), (2, 1), text="apple")])
    with store.database.writing() as connection:
        connection.execute(
            update(trace_parts).where(trace_parts.c.trace_id == trace_id(2)).values(payload=b"not zstd")
        )
    results = lake.search("apple")
    assert [hit.trace_id for hit in results] == [trace_id(1)]
    assert "the spans of 1 traces in the tracking store cannot be read" in str(results.not_searched)
    assert "wait for" not in str(results.not_searched)


def test_a_row_of_which_very_much_passes_is_left(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search indexes at most one step at once, for any size of a row: it reports the rest, and finds later rows."""
    left_to(lake, store, pipeline, monkeypatch)
    store.write([request((1, 1), text="apple")])
    store.write([request(*((2, number) for number in range(1, 9)), text="apple")])
    store.write([request((3, 1), text="apple")])
    sizes = Uncommitted(store).sizes([2, 3, 4])
    monkeypatch.setattr(search, "UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES", sizes[2] + sizes[4])
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", sizes[3] - 1)
    results = lake.search("apple", limit=1)
    assert (results.total, str(results.not_searched)[:8]) == (2, "1 groups")
    following = lake.search("apple", limit=1, page=results.next_page)
    assert {hit.trace_id for hit in (*results, *following)} == {trace_id(1), trace_id(3)}
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", sizes[3])
    assert lake.search("apple").total == 1, (
        "a row that a step has is in its turn, and does not fit beside the newest"
    )
    store.write([request(*((4, number) for number in range(1, 9)), text="apple")])
    assert lake.search("apple").total == 8, "alone it does"


def test_workspaces_are_walls(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matching spans of another workspace stay invisible, even with the same ids (W11)."""
    left_to(lake, store, pipeline, monkeypatch)
    store.write([request((1, 1), text="Apple", workspace="a")])
    store.write([request((1, 1), text="APPLE Banana", end_ns=9_000, workspace="b")])
    assert lake.search("apple").total == 2
    for workspace, word, total in (("a", "apple", 1), ("a", "banana", 0), ("b", "banana", 1)):
        found = lake.within(workspace).search(word)
        assert (found.total, {hit.workspace for hit in found}) == (total, {workspace} if total else set())


def in_pages(reader: tracelake.Lake, query: str, first: SearchResults, limit: int) -> list[str]:
    """Return the hits of a search in the order of its pages, each of which must report the same total."""
    ids, page = [hit.id for hit in first], first.next_page
    while page is not None:
        results = reader.search(query, limit=limit, page=page)
        assert results.total == first.total
        ids += [hit.id for hit in results]
        page = results.next_page
    return ids


def test_pages_are_of_their_own_search(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of one search never uses the rows of another search."""
    left_to(lake, store, pipeline, monkeypatch)
    for number in range(1, 11):
        store.write([request((number, 1), text="apple"), request((number + 100, 1), text="plum")])
    firsts = {word: lake.search(word, limit=4) for word in ("plum", "apple")}
    for word, first in firsts.items():
        assert len(set(in_pages(lake, word, first, 4))) == 10


def test_pages_have_no_rows_that_the_first_did_not_have(
    lake: tracelake.Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Rows between those indexed before and the newest matching ones are not searched, on any page."""
    left_to(lake, store, pipeline, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(index, "UNCOMMITTED_SEARCH_LEFT_BYTES", 1 << 20)
        store.write([request((50, 1), text="apple")])
        assert lake.search("apple").total == 1
    for number in range(1, 11):
        store.write([request((number, 1), text="apple")])
    of_one = sum(Uncommitted(store).sizes([11]).values())
    monkeypatch.setattr(search, "UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES", 3 * of_one)
    first = lake.search("apple", limit=1)
    assert first.total == 4
    with tracelake.open(tmp_path / "lake") as another:
        for reader in (another, lake):
            assert len(set(in_pages(reader, "apple", first, 1))) == 4


def test_the_newest_that_a_page_can_name_are_found(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in many ranges, as in a database of several lakes, are searched up to the number that a page can name."""
    left_to(lake, store, pipeline, monkeypatch)
    monkeypatch.setattr(limits, "UNCOMMITTED_RUN_GAP_MAX", 0)
    monkeypatch.setattr(limits, "UNCOMMITTED_RUNS_MAX", 3)
    for number in range(1, 12):
        store.write([request((number, 1), text="apple")])
    with store.database.writing() as connection:
        connection.execute(delete(outbox).where(outbox.c.sequence.in_(range(3, 12, 2))))
    results = lake.search("apple", limit=1)
    assert (results.total, str(results.not_searched)[:8]) == (3, "3 groups")
    assert len(set(in_pages(lake, "apple", results, 1))) == 3


def test_what_cannot_be_read_is_said_once_and_while_it_waits(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage is reported once, also if the trace has another matching part, and no more once the row has left."""
    left_to(lake, store, pipeline, monkeypatch)
    for span in (1, 2):
        store.write([request((1, span), text="apple")])
    of_damaged = trace_parts.c.sequence == 2
    with store.database.writing() as connection:
        connection.execute(update(trace_parts).where(of_damaged).values(payload=b"not zstd"))
    for _ in range(2):
        results = lake.search("apple")
        assert (results.total, str(results.not_searched)[:22]) == (1, "the spans of 1 traces ")
    with store.database.writing() as connection:
        connection.execute(delete(outbox).where(outbox.c.sequence == 2))
        connection.execute(delete(trace_parts).where(of_damaged))
    results = lake.search("apple")
    assert (results.total, results.not_searched) == (1, None)


def test_what_is_kept_is_not_much_more_than_what_came(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resource is kept once, for any number of spans of a trace."""
    left_to(lake, store, pipeline, monkeypatch)
    data = pb.TracesData()
    resource = data.resource_spans.add()
    resource.resource.attributes.add(key="x").value.string_value = "r" * 10_000
    scope = resource.scope_spans.add()
    for number in range(1, 201):
        scope.spans.add(
            trace_id=bytes.fromhex(trace_id(1)),
            span_id=number.to_bytes(8),
            name="apple",
            start_time_unix_nano=1_000,
            end_time_unix_nano=2_000,
        )
    body = data.SerializeToString()
    store.write([TracedRequest("protobuf", body, take_apart("protobuf", body))])
    assert lake.search("apple").total == 200
    texts = lake.hot._search._parts._texts
    assert sum(len(text.text) for text in texts.texts) < sum(texts.sizes.values())


Check = Callable[[tracelake.Lake, TrackingStore, InboxPipeline, pytest.MonkeyPatch], object]
