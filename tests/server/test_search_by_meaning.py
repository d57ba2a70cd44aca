"""Search by meaning over HTTP and on the page, with a real lake that has vectors, and one without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event, Semaphore
from typing import Any

import pytest

import tracelake
from tests.patience import HANG_S
from tests.pipeline.spans import a_line, a_span
from tests.search.embedders import HERE, bag
from tests.server.client import Client
from tests.server.faults import FaultyStore
from tracelake import Lake, limits
from tracelake.limits import VECTOR_PARAMETER_MAX_CHARS
from tracelake.search import vectors
from tracelake.server import traces
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

TEXTS = ("refund of a flight", "the weather is bad", "slow database login", "refund")


@pytest.fixture(scope="module")
def real_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake of some spans, without vectors."""
    folder = tmp_path_factory.mktemp("meaning")
    with tracelake.init(folder / "lake", buckets=2) as lake:
        spans = [
            a_span(number, 0, attributes=[{"key": "input.value", "value": {"stringValue": text}}])
            for number, text in enumerate(TEXTS)
        ]
        (folder / "spans.jsonl").write_bytes(a_line(*spans, service="shop"))
        lake.ingest(folder / "spans.jsonl", runner=InProcess())
        yield lake


@pytest.fixture
def plain_client(real_lake: Lake) -> Iterator[Client]:
    """Return a client of a server over the lake, whose index has no vectors."""
    real_lake.maintenance.rebuild_index(vectors="none", runner=InProcess())
    with closing(Inbox(FaultyStore(), ack_timeout_s=HANG_S)) as inbox:
        yield Client(create_app(real_lake, inbox))


@pytest.fixture
def client(real_lake: Lake, plain_client: Client) -> Client:
    """Return a client of a server over the lake with vectors."""
    real_lake.maintenance.rebuild_index(vectors=f"{HERE}:bag_of_words", runner=InProcess())
    return plain_client


def asked(client: Client, **parameters: Any) -> Any:
    """Return the answer of the API."""
    return client.get("/api/v1/search", params=parameters).json()


def test_the_api_finds_what_the_lake_does(client: Client, real_lake: Lake) -> None:
    """The API returns the lake's results in each mode: by words, by a vector, and like a span. Pages keep the
    order."""
    for mode in ("semantic", "hybrid"):
        answer, plainly = asked(client, q="refund", mode=mode), real_lake.search("refund", mode=mode)
        assert [hit["score"] for hit in answer["hits"]] == [hit.score for hit in plainly]
        assert (len(answer["hits"]), answer["total"]) == (len(TEXTS), len(TEXTS))
        assert "bag_of_words (32 dimensions, cosine" in answer["vectors"]
    vector = bag("slow login").tolist()
    by_vector = asked(client, q="service:shop", vector=",".join(map(str, vector)), limit=1)
    assert by_vector["hits"][0]["trace_id"] == real_lake.search("slow").pop().trace_id
    following = asked(
        client, q="service:shop", vector=",".join(map(str, vector)), page=by_vector["next_page"]
    )
    assert len(following["hits"]) == len(TEXTS) - 1
    like = asked(client, q=by_vector["hits"][0]["neighbours"]["like"], mode="semantic")
    assert (like["total"], like["hits"][0]["score"] <= 1) == (len(TEXTS) - 1, True)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"mode": "both"}, "mode"),
        ({"mode": "semantic", "sort": "newest"}, "is ordered by similarity"),
        ({"vector": "0.1,zero"}, "numbers with commas between"),
        ({"vector": "1,2"}, "2 dimensions"),
        ({"vector": ",".join(["nan"] * 32)}, "no"),
        ({"mode": "text", "vector": "1"}, "by meaning"),
        ({"vector": "1" * (VECTOR_PARAMETER_MAX_CHARS + 1)}, "vector"),
    ],
)
def test_what_cannot_be_asked_is_refused(client: Client, parameters: dict[str, str], says: str) -> None:
    """An invalid search gets a 400 with advice."""
    response = client.get("/api/v1/search", params={"q": "refund", **parameters})
    assert (response.status_code, says in response.json()["error"]) == (400, True), response.text


def test_the_page_leads_to_each_mode_and_keeps_it(client: Client) -> None:
    """The page offers words, meaning and both. Facets, form and JSON form keep the mode; similarity is the only
    order."""
    by_words = client.get("/search?q=refund").text
    assert 'href="/search?q=refund&amp;mode=semantic">meaning</a>' in by_words
    assert "newest</a>" in by_words
    page = client.get("/search?q=refund&mode=semantic")
    assert page.status_code == 200
    assert page.text.count('<div class="head">') == len(TEXTS)
    assert '<input type="hidden" name="mode" value="semantic">' in page.text
    assert 'href="/search?q=refund&amp;mode=semantic" aria-current="true">meaning</a>' in page.text
    assert 'href="/search?q=refund+service%3Ashop&amp;mode=semantic"' in page.text
    assert 'href="/api/v1/search?q=refund&amp;mode=semantic"' in page.text
    assert "newest</a>" not in page.text
    second = client.get("/search?q=refund&mode=hybrid&limit=2").text
    (following,) = re.findall(r'href="([^"]+)" rel="next"', second)
    third = client.get(following.replace("&amp;", "&"))
    assert (third.status_code, "4 of 4" in third.text) == (200, True)
    assert "mode=hybrid" in re.findall(r'href="([^"]+)" rel="prev"', third.text)[0]


def test_a_lake_without_vectors_offers_none(plain_client: Client) -> None:
    """The page shows no modes without vectors. A request for one explains how to enable vectors and links to word
    search."""
    assert "meaning</a>" not in plain_client.get("/search?q=refund").text
    refused = plain_client.get("/search?q=refund&mode=semantic")
    assert refused.status_code == 400
    assert "tracelake index rebuild --vectors" in refused.text
    assert 'href="/search?q=refund">words</a>' in refused.text
    assert asked(plain_client, q="refund")["vectors"] is None


def test_a_function_that_fails_or_is_gone_is_said_in_the_page(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search page shows an error that the user can fix, and word search works as before."""
    from tests.search import embedders  # noqa: PLC0415

    def fail(_texts: list[str]) -> Any:
        raise RuntimeError("no model here")

    monkeypatch.setattr(embedders, "bag_of_words", vectors.embedder(dimensions=32, version="1")(fail))
    failed = client.get("/search?q=refund+money&mode=semantic")
    assert (failed.status_code, "no model here" in failed.text) == (500, True)
    assert 'value="refund money"' in failed.text
    assert "Traceback" not in failed.text
    assert client.get("/search?q=refund").status_code == 200


def check_slow(client: Client, lake: Lake) -> None:
    """Search while a function does not answer: a limited number waits for it, few for those, and others are
    answered at once."""
    from tests.search import embedders  # noqa: PLC0415

    let_go, begun, before = Event(), Semaphore(0), embedders.bag_of_words

    def wait(texts: list[str]) -> Any:
        begun.release()
        assert let_go.wait(HANG_S)
        return before.function(texts)

    url, most = "/api/v1/search?q=refund+{}&mode=semantic", limits.SEMANTIC_SEARCHES_AT_ONCE_MAX
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(most) as threads:
        patch.setattr(embedders, "bag_of_words", vectors.embedder(dimensions=32, version="1")(wait))
        patch.setattr(limits, "LARGE_TRACES_WAITING_MAX", 0)
        waiting = [
            threads.submit(traces.search, lake, "refund " * number, limit=9, mode="hybrid")
            for number in range(1, most + 1)
        ]
        try:
            assert all(begun.acquire(timeout=HANG_S) for _ in waiting)
            for path in (url.format("more"), "/search?q=refund+more&mode=hybrid"):
                refused = client.get(path)
                assert (refused.status_code, "search again later" in refused.text) == (503, True)
                assert refused.headers["retry-after"]
            vector = ",".join(map(str, bag("refund")))
            for path in ("/api/v1/search?q=refund", f"/api/v1/search?q=*&mode=semantic&vector={vector}"):
                assert client.get(path).status_code == 200
        finally:
            let_go.set()
        assert all(each.result() for each in waiting)
        assert client.get(url.format("again")).status_code == 200


def test_a_function_that_is_slow_keeps_few_threads_of_a_server(client: Client, real_lake: Lake) -> None:
    """Other requests do not wait for a slow function."""
    check_slow(client, real_lake)
