"""Searches find just acknowledged spans, with the same results as after the commit."""

from __future__ import annotations

import random
import shutil
import threading
import uuid
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from sqlalchemy import update

import tracelake
from tests.patience import HANG_S
from tests.search.test_dropped_words import EMOJI, LONG
from tests.server.client import Client
from tests.tracking.requests import request, trace_id
from tracelake import limits
from tracelake._errors import QueryError, StorageError
from tracelake.cli import run
from tracelake.hot import index
from tracelake.otlp.partition import take_apart
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.search.part_cache import TEMPORARY
from tracelake.server.app import create_app
from tracelake.tables.view import CommitView
from tracelake.tracking.ingest_queue import TrackingDoor
from tracelake.tracking.outbox import Outbox, Uncommitted, named_runs, read_runs, runs_of
from tracelake.tracking.schema import trace_parts
from tracelake.tracking.store import TracedRequest, TrackingStore

WORDS = (
    "refund",
    "refunds",
    "policy",
    "airline",
    "ticket",
    "exchange",
    "a-17",
    "getUser",
    "naïve",
    "東京都",
    "x",
)
SERVICES = ("checkout", "Agent", "search")
MODELS = ("gpt-4o", "claude")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search index all pending rows, as long as a slow machine needs; the tests of its timeout set one."""
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_BUILD_S", HANG_S)
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_WAIT_S", HANG_S)


def some_request(chance: random.Random, traces: range) -> TracedRequest:
    """Return a request of spans of any kind; several requests may contain versions of one span."""
    data = pb.TracesData()
    resource = data.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = chance.choice(SERVICES)
    scope = resource.scope_spans.add()
    for _ in range(chance.randint(1, 6)):
        number = chance.randint(1, 5)
        start_ns = 1_700_000_000_000_000_000 + chance.randint(0, 10**12)
        span = scope.spans.add(
            trace_id=bytes.fromhex(trace_id(chance.choice(traces))),
            span_id=number.to_bytes(8),
            name=" ".join(chance.sample(WORDS, 2)),
            start_time_unix_nano=start_ns,
            end_time_unix_nano=start_ns + chance.randint(0, 10**10),
        )
        if number != 1:
            span.parent_span_id = (1).to_bytes(8)
        span.status.code = chance.choice((pb.Status.STATUS_CODE_OK, pb.Status.STATUS_CODE_ERROR))
        span.attributes.add(key="input.value").value.string_value = " ".join(chance.choices(WORDS, k=8))
        span.attributes.add(key="gen_ai.request.model").value.string_value = chance.choice(MODELS)
        span.attributes.add(key="retries").value.int_value = chance.randint(0, 3)
    body = data.SerializeToString()
    return TracedRequest("protobuf", body, take_apart("protobuf", body))


def some_query(chance: random.Random) -> str:
    """Return a query of any kind."""
    word = chance.choice(WORDS)
    kinds = (
        word,
        f'"{" ".join(chance.choices(WORDS, k=2))}"',
        f"-{word}",
        f"{word[:3]}*",
        f"{word}~1" if word.isalpha() and len(word) > 3 else word,
        f"service:{chance.choice(SERVICES)}",
        f"model:{chance.choice(MODELS)}",
        f"attributes.retries>={chance.randint(0, 3)}",
        f"attributes.retries:{chance.randint(0, 3)}",
        f"duration>{chance.randint(0, 10)}s",
        "status:error",
        "has:parent",
        f"name:{word}",
        f"trace:{trace_id(chance.randint(1, 9))}",
        f"{word}^2",
        "*",
    )
    clauses = [chance.choice(kinds) for _ in range(chance.randint(1, 3))]
    if chance.random() < 0.3:
        clauses = [f"({clauses[0]} OR {chance.choice(kinds)})", *clauses[1:]]
    return chance.choice((" ", " AND ", " OR ")).join(clauses)


def answer(lake: tracelake.Lake, query: str, where: str | None) -> object:
    """Return a search's results, without the commit and the order of equal scores."""
    results = lake.search(query, where, limit=1_000, facets=() if where else ("service", "model", "day"))
    newest = lake.search(query, where, limit=1_000, sort="newest")
    assert results.not_searched is None
    hits = sorted((hit.id, round(hit.score, 4), hit.highlight, hit.service, hit.name) for hit in results)
    return hits, results.total, results.facets, [hit.start_ns for hit in newest]


def test_queries_find_the_same_before_and_after_the_commit(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Any query, with scores, facets, orders and conditions, gives one result: hot, in both tiers, and committed."""
    chance = random.Random(13)
    queries = [(some_query(chance), chance.choice((None, None, "duration_ns > 3e9"))) for _ in range(16)]

    def check() -> None:
        before = [answer(lake, *query) for query in queries]
        assert pipeline.run_once() is not None
        after = [answer(lake, *query) for query in queries]
        for query, one, other in zip(queries, before, after, strict=True):
            assert scoreless(one) == scoreless(other), query
        assert sum(bool(one[1]) for one in before if isinstance(one, tuple)) > 5

    store.write([some_request(chance, range(1, 10)) for _ in range(20)])
    store.write([some_request(chance, range(1, 10)) for _ in range(5)])
    check()
    for _ in range(4):
        store.write([some_request(chance, range(5, 20))])
        lake.search("*")
    check()


def scoreless(one: object) -> object:
    """Return results without scores, which count words of replaced versions until parts are merged."""
    assert isinstance(one, tuple)
    hits, *rest = one
    return [(hit[0], *hit[2:]) for hit in hits], rest


def test_scores_are_those_of_one_index(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """With half of the spans committed and half hot, hits have the same scores as after the commit (F15)."""
    chance = random.Random(5)
    texts = [" ".join(chance.choices(WORDS, k=9)) for _ in range(30)]
    for number, text in enumerate(texts[:15], 1):
        store.write([request((number, 1), text=text)])
    assert pipeline.run_once() is not None
    for number, text in enumerate(texts[15:], 16):
        store.write([request((number, 1), text=text)])
    queries = ("refund policy", '"airline ticket"', "exchange OR 東京", "naïve -x")
    before = [answer(lake, query, None) for query in queries]
    assert pipeline.run_once() is not None
    assert [answer(lake, query, None) for query in queries] == before


def test_the_claim_that_stands_is_found(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A span is found once, by the words of its winning version, in whichever tier that is."""
    running, finished = request((1, 1), end_ns=0, text="apple"), request((1, 1), text="banana")
    store.write([running])
    assert pipeline.run_once() is not None
    assert (lake.search("apple").total, lake.search("banana").total) == (1, 0)
    store.write([finished])
    assert (lake.search("apple").total, lake.search("banana").total) == (0, 1)
    assert [hit.highlight for hit in lake.search("*")] == ["banana"]
    assert pipeline.run_once() is not None
    store.write([running, finished])  # the same versions again, and one that lost
    assert (lake.search("apple").total, lake.search("banana").total, lake.search("*").total) == (0, 1, 1)
    like = f"like:{trace_id(1)}-{1:016x}"
    store.write([request((2, 1), text="banana banana")])
    assert [hit.trace_id for hit in lake.search(like)] == [trace_id(2)]


def test_w11_a_claim_of_another_workspace_hides_nothing(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """A span with the ids of another workspace's span and a higher precedence exists as a separate span (W11)."""
    ours = request((1, 1), text="apple", workspace="a")
    theirs = request((1, 1), text="banana", end_ns=9_000, workspace="b")
    for claim in (ours, theirs):
        store.write([claim])
        assert lake.search("apple").total == 1
        assert pipeline.run_once() is not None
    assert [(hit.workspace, hit.highlight) for hit in lake.search("apple OR banana", sort="newest")] == [
        ("a", "[[apple]]"),
        ("b", "[[banana]]"),
    ]
    store.write([request((1, 1), text="banana banana", end_ns=9_500, workspace="b")])
    for workspace, word, texts in (("a", "apple", ["[[apple]]"]), ("b", "banana", ["[[banana]] [[banana]]"])):
        found = lake.within(workspace).search("apple OR banana")
        assert ([hit.highlight for hit in found], found.total) == (texts, 1), word
        assert len(lake.within(workspace).search(f"like:{trace_id(1)}-{1:016x}")) == 0


def test_the_commit_is_asked_for_what_waits_alone(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were indexed here and have left the store belong to the commit: they are not read for comparison."""
    asked: set[str] = set()
    indexed_claims, waiting = CommitView.indexed_claims, Outbox.waiting

    def looked_up(view: CommitView, claims: pa.Table) -> object:
        asked.update(map(str, claims["trace_id"].to_pylist()))
        return indexed_claims(view, claims)

    monkeypatch.setattr(CommitView, "indexed_claims", looked_up)
    store.write([request((1, 1), (4, 1), text="apple")])
    store.write([request((2, 1), (3, 1), (4, 2), text="apple")])
    assert (lake.search("apple").total, asked) == (5, {trace_id(number) for number in (1, 2, 3, 4)})
    with monkeypatch.context() as patch:  # commit the first row
        patch.setattr(Outbox, "waiting", lambda outbox, _limit=None: waiting(outbox, 1))
        assert pipeline.run_once() is not None
    store.write([request((5, 1), text="banana")])
    asked.clear()
    assert (lake.search("apple").total, asked) == (5, {trace_id(number) for number in (2, 3, 4, 5)})
    assert len(lake.search("apple", limit=9)) == 5


def test_pages_go_on_where_they_began(
    tmp_path: Path, lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """Pages have each span once, even if another process requests the next one, or a commit happens in between."""
    for number in range(1, 31):
        store.write([request((number, 1), (number, 2), text="apple")])
        if number == 10:
            assert pipeline.run_once() is not None
    first = lake.search("apple", limit=13)
    assert first.total == 60
    store.write([request((99, 1), text="apple")])
    assert pipeline.run_once() is not None
    with tracelake.open(tmp_path / "lake") as another:
        for reader in (lake, another):
            ids, page = [hit.id for hit in first], first.next_page
            while page is not None:
                results = reader.search("apple", limit=13, page=page)
                assert results.total == 60
                ids += [hit.id for hit in results]
                page = results.next_page
            assert (len(ids), len(set(ids))) == (60, 60)
    assert first.next_page is not None
    commit_and_more, _, newer = first.next_page.rpartition("-")
    signature = newer.rpartition("_")[2]
    made_up = (
        f"{commit_and_more}-{runs}_{signature}" for runs in ("1.29", "1.30_1.30", "0.9999999999999999999")
    )
    with tracelake.open(tmp_path / "lake") as another, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uncommitted, "in_ranges", lambda *_: pytest.fail("a made-up page is looked for"))
        for page in (
            *made_up,
            *(f"{commit_and_more}-{bad}" for bad in ("1.2", "1", "_.", "5.1_.1")),
        ):
            for reader in (lake, another):
                with pytest.raises(QueryError, match="is not a page"):
                    reader.search("apple", limit=13, page=page)


def test_pages_of_a_lake_without_commits(lake: tracelake.Lake, store: TrackingStore) -> None:
    """Pages work before the first commit, too."""
    store.write([request(*((number, 1) for number in range(1, 6)), text="apple")])
    first = lake.search("apple", limit=3)
    assert (first.commit, first.total) == (None, 5)
    second = lake.search("apple", limit=3, page=first.next_page)
    assert len({hit.id for hit in (*first, *second)}) == 5
    assert second.next_page is None


def test_what_does_not_fit_is_said(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest rows are found at once, for any number of pending ones. The result reports the rest; a later
    search finds it."""
    for number in range(1, 21):
        store.write([request((number, 1), text=f"apple word{number}")])
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 300)
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_BUILD_S", -1.0)
    totals: list[int] = []
    while not totals or totals[-1] != 20:
        results = lake.search("apple")
        assert results.total is not None
        assert lake.search("word20").total == 1
        assert (results.not_searched is None) == (results.total == 20)
        assert not totals or results.total > totals[-1]
        totals.append(results.total)
    assert len(totals) > 3
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_MAX_BYTES", 1_000)
    bounded = lake.search("apple")
    assert bounded.total is not None
    assert 0 < bounded.total < 10
    assert "wait for the pipeline" in str(bounded.not_searched)
    assert bounded.to_dict()["not_searched"] == bounded.not_searched
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_BUILD_S", 1e9)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_ROWS_MAX", 3)
    assert lake.search("apple").total == 3
    assert lake.search("word20").total == 1


def test_few_runs_are_named(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there are more ranges of rows than a page can name, the oldest are not searched, and the result reports
    that."""
    monkeypatch.setattr(limits, "UNCOMMITTED_RUN_GAP_MAX", 0)
    monkeypatch.setattr(limits, "UNCOMMITTED_RUNS_MAX", 2)
    with tracelake.init(f"memory://{uuid.uuid4().hex}") as other:
        beside = TrackingStore(store.database, other.config.id)
        for number in range(1, 6):
            store.write([request((number, 1), text="apple")])
            assert lake.search("apple").total == min(number, 2)
            beside.write([request((number, 1), text="pear")])
    results = lake.search("apple", limit=1)
    assert results.not_searched is not None
    assert len(lake.search("apple", limit=1, page=results.next_page)) == 1


def test_damage_hides_nothing_else(lake: tracelake.Lake, store: TrackingStore) -> None:
    """A search reports an unreadable part and finds all others."""
    store.write([request((1, 1), text="apple")])
    store.write([request((2, 1), (3, 1), text="apple")])
    with store.database.writing() as connection:
        connection.execute(
            update(trace_parts).where(trace_parts.c.trace_id != trace_id(2)).values(payload=b"not zstd")
        )
    results = lake.search("apple")
    assert [hit.trace_id for hit in results] == [trace_id(2)]
    assert "the spans of 2 traces in the tracking store cannot be read" in str(results.not_searched)


def test_a_database_that_is_away_hides_no_commit(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the tracking store does not answer, the search covers commits, and its result reports the gap."""
    store.write([request((1, 1), text="apple")])
    assert pipeline.run_once() is not None

    def away(*_: object) -> object:
        raise StorageError("the tracking store is away")

    monkeypatch.setattr(Uncommitted, "newest", away)
    results = lake.search("apple")
    assert results.total == 1
    assert "the tracking store is away" in str(results.not_searched)


class PanicException(BaseException):
    """The error that tantivy raises on failure."""


FULL = "An IO error occurred: 'No space left on device (os error 28)'"


@pytest.mark.parametrize("error", [ValueError(FULL), OSError(28, FULL), PanicException(FULL)], ids=type)
def test_a_cache_that_is_full_hides_no_commit(
    lake: tracelake.Lake,
    store: TrackingStore,
    pipeline: InboxPipeline,
    error: BaseException,
) -> None:
    """If this machine cannot index anything, the search covers commits, and its result reports the gap."""
    store.write([request((1, 1), text="apple")])
    assert pipeline.run_once() is not None
    store.write([request((2, 1), text="apple")])
    check_full(lake, error)
    assert lake.search("apple").total == 2
    store.write([request((3, 1), text="apple")])


def check_full(lake: tracelake.Lake, error: BaseException) -> None:
    """Check searches while nothing can be indexed."""

    def full(*_: object) -> object:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelake.search.build.write_index", full)
        results = lake.search("apple")
    assert results.total
    assert "No space left on device" in str(results.not_searched)


def test_acknowledged_is_found_by_all_at_any_time(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """During concurrent writes, searches and commits, each search finds all spans acknowledged before it, once."""
    acknowledged: list[int] = []
    failures: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set() and not failures:
            least = len(acknowledged)
            try:
                results = lake.search("apple", limit=1_000)
                ids = {hit.id for hit in results}
                assert least <= len(ids) == len(results) == results.total
                assert results.not_searched is None
            except BaseException as error:  # noqa: BLE001  said by the thread that waits
                failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 31):
            store.write([request((number, 1), text="apple")])
            acknowledged.append(number)
            if number % 10 == 0:
                pipeline.run_once()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert lake.search("apple").total == 30


def test_api_page_and_command_find_it(
    tmp_path: Path,
    lake: tracelake.Lake,
    store: TrackingStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """API, page and command find just acknowledged spans, and report unsearched ones."""
    for number in (1, 2, 3):
        store.write([request((number, 1), text="apple <b>")])
    with closing(TrackingDoor(store)) as door:
        client = Client(create_app(lake, door))
        found = client.get("/api/v1/search?q=apple").json()
        assert (found["total"], found["not_searched"], len(found["hits"])) == (3, None, 3)
        assert "The search is incomplete" not in client.get("/search?q=apple").text
        monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_ROWS_MAX", 1)
        page = client.get("/search?q=apple").text
        assert "1 span<" in page
        assert "The search is incomplete: some groups of acknowledged requests" in page
        assert "wait for the pipeline" in client.get("/api/v1/search?q=apple").json()["not_searched"]
    capsys.readouterr()
    assert run(["search", "apple", "--lake", str(tmp_path / "lake")]) == 0
    out, err = capsys.readouterr()
    assert "apple" in out
    assert "The search is incomplete: " in err


def test_small_parts_become_one(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any number of writes and searches there are few parts of bounded size, and each span is found once."""
    store.write([request((99, 1), text="apple")])
    of_one = sum(part[2] for part in Uncommitted(store).listed_in([1])[1])
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_PARTS_MAX", 3)
    monkeypatch.setattr(limits, "UNCOMMITTED_SEARCH_STEP_BYTES", 4 * (3 * of_one + of_one // 2))
    for number in range(1, 25):
        store.write([request((number, 1), text="apple")])
        assert lake.search("apple").total == number + 1
    sizes = [part.size_bytes for part in lake.hot._search._index._pending.parts]
    assert len(sizes) < 20
    assert 24 * of_one < sum(sizes) < 26 * of_one
    assert 2 * of_one < max(sizes) < 4 * of_one


def test_a_search_waits_for_others_no_longer_than_it_may(
    lake: tracelake.Lake, store: TrackingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If other callers always hold the index, a search finds the rows indexed so far, and reports how many are
    missing."""
    store.write([request((1, 1), text="apple")])
    assert lake.search("apple").total == 1
    store.write([request((2, 1), text="apple")])
    store.write([request((3, 1), text="apple")])
    monkeypatch.setattr(index, "UNCOMMITTED_SEARCH_WAIT_S", 0.0)
    with lake.hot._search._index._making:
        results = lake.search("apple")
    assert results.total == 1
    assert "2 groups of acknowledged requests wait" in str(results.not_searched)
    results = lake.search("apple")
    assert (results.total, results.not_searched) == (3, None)


def test_what_others_swept_away_is_indexed_again(
    lake: tracelake.Lake, store: TrackingStore, pipeline: InboxPipeline
) -> None:
    """After an hour another process takes a part's files for those of a killed process, and deletes them."""
    store.write([request((1, 1), text="apple")])
    assert pipeline.run_once() is not None
    store.write([request((2, 1), (3, 1), text="apple")])
    first = lake.search("apple", limit=1)
    cache = lake.hot._opened.stores.cache / "search"
    for directory in cache.glob(f"{TEMPORARY}*"):
        shutil.rmtree(directory)
    store.write([request((4, 1), text="apple")])
    assert lake.search("apple").total == 4
    assert lake.search("apple", limit=2, page=first.next_page).total == 3


def test_runs() -> None:
    """Row numbers are named by ranges, the newest first, and an invalid name is refused."""
    assert runs_of([], 1) == []
    assert runs_of([1, 2, 4, 9, 7], 1) == [(7, 9), (1, 4)]
    assert runs_of([1, 2, 4], 0) == [(4, 4), (1, 2)]
    runs = runs_of([5, 1, 2, 900], 2)
    assert read_runs(named_runs(runs)) == runs == [(900, 900), (1, 5)]
    for text in ("", ".", "1", "1.", "1.2_", "a.b", "_".join(["1.2"] * 9), "1.99999999999999999999"):
        assert read_runs(text) is None


def test_a_query_of_uncommitted_spans_is_refused_alike(lake: tracelake.Lake, store: TrackingStore) -> None:
    """A narrower or wider query does not find uncommitted spans."""
    store.write([request((900, 1), text="pear"), request((901, 1), text=f"pear {EMOJI}")])
    assert lake.search("pear").total == 2
    for query in (f"pear AND {EMOJI}", f"pear -{EMOJI}", f'"pear {EMOJI}"', f"pear -{LONG}", "pear -!!!"):
        with pytest.raises(QueryError, match="leave it out"):
            lake.search(query)
