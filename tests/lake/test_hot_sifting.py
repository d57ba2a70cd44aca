"""Searches scan pending rows, with the same results as after the commit."""

from __future__ import annotations

import random
import re
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
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
from tests.search.test_payload_sieve import CASES, payload_of
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake.hot import index, search
from tracelake.otlp.partition import rows_of, take_apart
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search import prefilter
from tracelake.search.analyzers import Analyzer
from tracelake.search.build import UnpublishedPart, write_unpublished
from tracelake.search.documents import written
from tracelake.search.results import SearchResults
from tracelake.search.tokenization import normalized
from tracelake.tracking.outbox import ListedPart, StoredPart, Uncommitted
from tracelake.tracking.schema import outbox, trace_parts
from tracelake.tracking.store import TracedRequest, TrackingStore

NUMBERS = (
    "attributes.x:1e3",
    "attributes.x:1000",
    'attributes.x:"1000"',
    "attributes.x:true",
    "kind:internal",
)


def scanned(store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit a row, and let searches scan later rows, even few of them."""
    store.write([request((900, 1), text="pear")])
    assert pipeline.run_once() is not None
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_WHOLE_BYTES", -1)


def pending_of(lake: tracelake.Lake) -> index._Pending:
    """Return what searches of a lake have read."""
    return lake.hot._search._index._pending


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


def test_queries_find_what_is_scanned(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any query has facets, orders and conditions as after the commit."""
    chance = random.Random(31)
    scanned(store, pipeline, monkeypatch)
    queries = [(some_query(chance), chance.choice((None, None, "duration_ns > 3e9"))) for _ in range(60)]
    for traces in (range(1, 10), range(10, 40)):
        for _ in range(12):
            store.write([some_request(chance, traces) for _ in range(chance.randint(1, 3))])
            lake.search("refund")
        before = {query: answer(lake, *query) for query in queries}
        assert pipeline.run_once() is not None
        for query, one in before.items():
            assert scoreless(one) == scoreless(answer(lake, *query)), query
        found = [one for one in before.values() if isinstance(one, tuple) and one[1]]
        assert len(found) > 15


def test_each_text_is_read_once(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New rows are read by a search, or before it, in small steps; rows that left the outbox are dropped."""
    scanned(store, pipeline, monkeypatch)
    for number in range(1, 5):
        store.write([request((number, 1), text=f"apple word{number}")])
    with counted(monkeypatch) as read:
        assert [lake.search(f"word{number}").total for number in range(1, 5)] == [1] * 4
        assert sorted(read) == [2, 3, 4, 5]
        for number in range(5, 8):
            store.write([request((number, 1), text="apple")])
        assert (lake.search("apple").total, lake.search("apple").not_searched) == (7, None)
        assert sorted(read) == list(range(2, 9))
    assert sorted(row for _, row, _ in pending_of(lake).texts) == list(range(2, 9))
    assert pipeline.run_once() is not None
    store.write([request((8, 1), text="apple")])
    assert lake.search("apple").total == 8
    assert [row for _, row, _ in pending_of(lake).texts] == [9]
    assert pipeline.run_once() is not None
    assert lake.search("apple").total == 8
    assert pending_of(lake).texts == {}


def test_texts_are_read_of_what_may_match(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload without the words of a query is not decoded, and each payload is read once."""
    scanned(store, pipeline, monkeypatch)
    for number in range(1, 9):
        store.write(
            [request((number, 1), text=f"word{number} \u212aelvin" if number == 8 else f"word{number}")]
        )
    with counted(monkeypatch) as read:
        for word, rows in (
            ("word3", {4, 9}),
            ("nothing", {4, 9}),
            ("word5", {4, 6, 9}),
            ("kelvin", {4, 6, 9}),
        ):
            assert lake.search(word).total == (word != "nothing"), word
            pending = pending_of(lake)
            assert {row for _, row, _ in pending.texts} == rows, word
            assert {row for _, row, _ in pending.payloads} == set(range(2, 10)) - rows, word
        tested: list[ListedPart] = []
        may_match = index._Pending.may_match

        def noted(pending: index._Pending, part: ListedPart, sieve: prefilter.Prefilter) -> bool:
            tested.append(part)
            return may_match(pending, part, sieve)

        monkeypatch.setattr(index._Pending, "may_match", noted)
        assert lake.search("word7 nothing").total == 0
        assert len(tested) == 8, "each part is tested once"
    assert sorted(read) == list(range(2, 10))
    assert lake.search("status:unset OR word1").total == 9, "without a condition all are indexed"


def test_words_in_any_case_and_form_are_found(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan passes each word that the index finds after the commit."""
    scanned(store, pipeline, monkeypatch)
    words = (
        "AP\u0130X",
        "\u212aelvin",
        "\ufb01ne",
        "\uff26ull",
        "ÉCLAIR",
        "e\u0301te\u0301",
        "ΣΊΣΥΦΟΣ",
        "GROẞ",
        "東京都",
    )
    for number, word in enumerate(words, 1):
        store.write([request((number, 1), text=f"The {word}.\nAPPLE")])
    queries = {
        form for word in words for form in (word, word.lower(), word.upper(), normalized(word).lower())
    }
    before = {query: lake.search(query).total for query in queries}
    assert all(before[word] for word in words), before
    assert lake.search("apple").total == len(words)
    assert pipeline.run_once() is not None
    assert {query: lake.search(query).total for query in queries} == before


def test_any_form_of_a_text_is_found(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test of payloads passes each span that the index finds after the commit, in whatever form its text was sent."""
    scanned(store, pipeline, monkeypatch)
    queries = {*NUMBERS, "trace:" + trace_id(1), trace_id(2), "refund", f"{b64encode(b'refund').decode()}*"}
    for number, case in enumerate(CASES.values(), 1):
        body = payload_of(*case, trace_id=bytes.fromhex(trace_id(number)))  # type: ignore[misc]
        store.write([TracedRequest("protobuf", body, take_apart("protobuf", body))])
        words = re.findall(r"[\w@-]+", "\n".join(written(rows_of(body).take()).to_pylist()))
        for word in {word[:40] for word in words if not word.isdigit()}:
            queries |= {word.upper(), f"{word[: len(word) // 2 + 1]}*", f'attributes.x:"{word}"'}
    chosen = [*random.Random(31).sample(sorted(queries), 60), *NUMBERS]
    assert lake.search("nothing").total == 0
    unread = pending_of(lake)
    assert len(unread.texts) < len(unread.payloads), "some payloads hide their text"
    before = {}
    for query in chosen:
        monkeypatch.setattr(lake.hot._search._index, "_pending", unread)
        before[query] = [hit.trace_id for hit in lake.search(query, limit=100, sort="newest")]
    assert pipeline.run_once() is not None
    for query, found in before.items():
        assert [hit.trace_id for hit in lake.search(query, limit=100, sort="newest")] == found, query
    assert sum(map(bool, before.values())) > 20


def test_only_what_may_match_is_indexed(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query indexes the traces that pass its prefilter, once, and a small number of new spans whole."""
    made: list[int] = []

    def noted(rows: pa.Table, analyzer: Analyzer, cache: Path) -> UnpublishedPart:
        made.append(len(rows))
        return write_unpublished(rows, analyzer, cache)

    scanned(store, pipeline, monkeypatch)
    monkeypatch.setattr(index, "write_unpublished", noted)
    for number in range(1, 9):
        store.write([request((number, 1), (number, 2), text=f"apple word{number}")])
    for _ in range(2):
        assert lake.search("word5").total == 2
        assert lake.search("nothing").total == 0
    assert made == [2]
    for _ in range(2):
        assert lake.search("apple").total == 16
    assert sum(made[1:]) == 14
    assert lake.search("has:parent").total == 8
    assert sum(made[1:]) == 14
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_WHOLE_BYTES", 1 << 20)
    with counted(monkeypatch) as read:
        store.write([request((9, 1), text="apple")])
        assert (lake.search("word5").total, read) == (2, [])
    assert sum(made[1:]) == 15


def test_equal_hits_have_one_order(
    lake: tracelake.Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Pages have each span once if earlier queries indexed traces in another order than their rows."""
    scanned(store, pipeline, monkeypatch)
    for number in range(1, 13):
        text = f"apple word{number}{' fourth' * (number % 4 == 0)}"
        store.write([request((number, 1), (number + 100, 1), text=text)])
    for word, spans in (("fourth", 6), ("word6", 2), ("word3", 2), ("word9", 2), ("word1", 2)):
        assert lake.search(word).total == spans
    for query in ("apple", "service:checkout", "*"):
        first = lake.search(query, limit=9)
        with tracelake.open(tmp_path / "lake") as another:
            ids = in_pages(another, query, first, 9)
        assert len(ids) == len(set(ids)) == first.total
        assert len(ids) >= 24


def test_the_newest_that_pass_are_found_and_the_rest_is_said(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If many rows match, a search finds the newest. It finds a rare word among any number of rows, and reports a
    timeout."""
    scanned(store, pipeline, monkeypatch)
    for number in range(1, 11):
        store.write([request((number, 1), text=f"apple word{number}")])
    of_one = sum(part[2] for part in Uncommitted(store).listed_in([11])[11])
    assert lake.search("apple workspace:other").not_searched is None, "all texts are read"
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_BUILD_S", -1.0)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 3 * of_one)
    results = lake.search("apple", limit=2)
    assert (results.total, results[0].trace_id > trace_id(7)) == (3, True)
    assert str(results.not_searched).startswith("7 groups of acknowledged requests")
    assert len(lake.search("apple", limit=2, page=results.next_page)) == 1
    assert (lake.search("word1").total, lake.search("word1").not_searched) == (1, None)
    results = lake.search("apple", limit=2)
    assert (results.total, str(results.not_searched)[:8]) == (7, "3 groups")
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 4)
    store.write([request((11, 1), text="word1")])
    store.write([request((12, 1), text="word1")])
    assert str(lake.search("nothing").not_searched).startswith("1 groups of acknowledged requests")
    results = lake.search("word1")
    assert ([hit.trace_id for hit in results], results.total) == ([trace_id(12), trace_id(1)], 2)
    assert str(results.not_searched).startswith("1 groups of acknowledged requests")
    with monkeypatch.context() as no_wait, lake.hot._search._index._making:
        no_wait.setattr(index, "UNCOMMITTED_SEARCH_WAIT_S", 0.0)
        results = lake.search("word1")
        assert (results.total, str(results.not_searched)[:8]) == (2, "1 groups"), "others are at it"


def test_the_claim_that_stands_is_found(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span is found by the words of its newest pending version, even if other versions matched or were indexed
    before."""
    store.write([request((1, 1), end_ns=0, text="apple")])
    scanned(store, pipeline, monkeypatch)
    store.write([request((2, 1), (3, 1), end_ns=0, text="apple")])
    with monkeypatch.context() as patch:
        patch.setattr(index, "UNCOMMITTED_SEARCH_WHOLE_BYTES", 1 << 20)
        assert lake.search("apple").total == 3, "few spans are indexed whole"
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
    scanned(store, pipeline, monkeypatch)
    for number in range(1, 31):
        store.write([request((number, 1), text="apple"), request((number + 100, 1), text="plum")])
    store.write([request((50, 1), text="plum")])
    monkeypatch.setattr(search, "UNCOMMITTED_SEARCHES_KEPT", 0)
    first = lake.search("apple", limit=13)
    assert (first.total, first.not_searched) == (30, None)
    store.write([request((99, 1), text="apple")])
    assert pipeline.run_once() is not None
    of_traces = Uncommitted.of_traces
    with tracelake.open(tmp_path / "lake") as another:
        for reader in (another, lake):
            ids, page = [hit.id for hit in first], first.next_page
            while page is not None:
                with monkeypatch.context() as patch:
                    indexed: list[int] = []
                    patch.setattr(
                        Uncommitted,
                        "of_traces",
                        lambda uncommitted, parts, indexed=indexed: (
                            indexed.append(len(parts)) or of_traces(uncommitted, parts)
                        ),
                    )
                    results = reader.search("apple", limit=13, page=page)
                assert results.total == 30
                assert indexed == [30, 1], "only traces that may match are indexed"
                ids += [hit.id for hit in results]
                page = results.next_page
            assert (len(ids), len(set(ids))) == (30, 30)


def test_damage_hides_nothing_else(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search reports an unreadable part and finds all others."""
    scanned(store, pipeline, monkeypatch)
    store.write([request((1, 1), (2, 1), text="apple")])
    with store.database.writing() as connection:
        connection.execute(
            update(trace_parts).where(trace_parts.c.trace_id == trace_id(2)).values(payload=b"not zstd")
        )
    results = lake.search("apple")
    assert [hit.trace_id for hit in results] == [trace_id(1)]
    assert "the spans of 1 traces in the tracking store cannot be read" in str(results.not_searched)
    assert "wait for" not in str(results.not_searched)


def test_workspaces_are_walls(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matching spans of another workspace stay invisible, even with the same ids (W11)."""
    scanned(store, pipeline, monkeypatch)
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
    scanned(store, pipeline, monkeypatch)
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
    """Rows between those indexed before and the newest matching ones are not searched, on any page, even if some of
    their traces are indexed."""
    scanned(store, pipeline, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(index, "UNCOMMITTED_SEARCH_WHOLE_BYTES", 1 << 20)
        store.write([request((50, 1), text="apple")])
        assert lake.search("apple").total == 1
    store.write([request((60, 1), text="apple word60"), request((61, 1), text="apple")])
    assert lake.search("word60").total == 1
    for number in range(1, 11):
        store.write([request((number, 1), text="apple")])
    of_one = sum(part[2] for part in Uncommitted(store).listed_in([12])[12])
    assert lake.search("apple workspace:other").not_searched is None, "all texts are read"
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_BUILD_S", -1.0)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 3 * of_one)
    first = lake.search("apple", limit=1)
    assert first.total == 4
    with tracelake.open(tmp_path / "lake") as another:
        for reader in (another, lake):
            assert len(set(in_pages(reader, "apple", first, 1))) == 4


def test_the_newest_that_a_page_can_name_are_found(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows in many ranges, as in a database of several lakes, are searched up to the number that a page can name."""
    scanned(store, pipeline, monkeypatch)
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
    scanned(store, pipeline, monkeypatch)
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
    scanned(store, pipeline, monkeypatch)
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
    (text,) = pending_of(lake).texts.values()
    assert len(text) < len(body)


Check = Callable[[tracelake.Lake, TrackingStore, InboxPipeline, pytest.MonkeyPatch], object]
