"""Reading one span or a page of spans costs only their size, not the trace's; long responses are sent in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest

from tests.archive.place import HotLake
from tests.lake.test_large_resources import grown
from tests.server.client import Client
from tests.tracking.requests import request, trace_id
from tracelake._errors import UsageError
from tracelake.hot import tier
from tracelake.hot.rows import add_part as add_part_of
from tracelake.server import render
from tracelake.server.app import create_app
from tracelake.tables import table
from tracelake.tracking.ingest_queue import Inbox

COMMITTED, HOT, BOTH = 1, 2, 3
"""Traces in the tables only, in the tracking store only, and in both."""
SPANS = 40


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HotLake]:
    """Return a lake with a trace in each location."""
    hot = HotLake(tmp_path_factory.mktemp("pages") / "lake", layout="lake", retention="1m")
    with closing(hot.tracking), closing(hot.lake):
        hot.tracking.write([grown(COMMITTED, range(1, SPANS + 1))])
        hot.commit()
        assert hot.archive.run().fates["archived"] == 1
        hot.tracking.write([grown(BOTH, range(1, 31))])
        hot.commit()
        hot.tracking.write([grown(HOT, range(1, SPANS + 1)), grown(BOTH, range(21, SPANS + 1))])
        yield hot


@pytest.fixture
def client(hot: HotLake) -> Iterator[Client]:
    """Return a client of its server."""
    with closing(Inbox(hot.lake.objects)) as inbox:
        yield Client(create_app(hot.lake, inbox))


def pages(client: Client, trace: int, limit: int, **more: str) -> list[dict[str, Any]]:
    """Return all pages of a trace."""
    params: dict[str, Any] = {"limit": limit, **more}
    found: list[dict[str, Any]] = []
    while True:
        answer = client.get(f"/api/v1/traces/{trace_id(trace)}", params=params)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        if (token := found[-1]["next_page"]) is None:
            return found
        params["page"] = token


@pytest.mark.parametrize("trace", [COMMITTED, HOT, BOTH])
@pytest.mark.parametrize("limit", [1, 7, SPANS - 1, SPANS, 1_000])
def test_pages_have_each_span_once(hot: HotLake, client: Client, trace: int, limit: int) -> None:
    """The pages together are the lake's trace, each with the summary of the entire trace."""
    found = pages(client, trace, limit)
    whole = hot.lake.trace(trace_id(trace))
    assert [span for page in found for span in page["spans"]] == list(whole.spans)
    assert len(found) == -(-SPANS // limit)
    assert {json.dumps(page["summary"]) for page in found} == {json.dumps(whole.summary)}


def test_each_span_of_a_page_has_its_tier(client: Client) -> None:
    """With `tiers`, each page marks its spans from the tracking store."""
    tiers = [span["_tier"] for page in pages(client, HOT, 15, tiers="true") for span in page["spans"]]
    assert tiers == ["hot"] * SPANS
    assert {
        span["_tier"] for page in pages(client, COMMITTED, 15, tiers="true") for span in page["spans"]
    } == {"lake"}


@pytest.mark.parametrize(
    "token", ["x", "1.2.3", "-.0000000000000001.default", f"{1 << 70}.{1:016x}.x", "1" * 999]
)
def test_a_bad_token_is_refused(client: Client, hot: HotLake, token: str) -> None:
    """An invalid page token is an error of the request, and the message explains how to continue."""
    answer = client.get(f"/api/v1/traces/{trace_id(HOT)}", params={"page": token})
    assert answer.status_code == 400
    assert "page" in answer.json()["error"]
    with pytest.raises(UsageError, match="leave it out"):
        hot.lake.hot.page(trace_id(COMMITTED), 10, token)


def check_span_by_key(hot: HotLake) -> None:
    """Read one span of a trace that does not fit in memory: only its own row is read."""
    own = hot.lake.trace(trace_id(COMMITTED)).spans[7]
    most = hot.lake.hot.spans_of(trace_id(COMMITTED)).nbytes // 4
    with mock.patch.multiple(table, TRACE_ROWS_MAX_BYTES=most, LARGE_TRACE_ROWS_BYTES=most):
        rows = hot.lake.hot.span_rows(trace_id(COMMITTED), own["span_id"])
        assert rows["span_id"].to_pylist() == [own["span_id"]]
        assert len(hot.lake.hot.page(trace_id(COMMITTED), 1).rows) == 1
        assert len(hot.lake.hot.outline(trace_id(COMMITTED)).spans) == SPANS


def test_a_span_is_read_by_key(hot: HotLake) -> None:
    """Neither one span, nor a short page, nor the tree needs all rows of the trace."""
    check_span_by_key(hot)


@pytest.mark.parametrize("trace", [COMMITTED, HOT, BOTH])
def test_every_span_is_found(hot: HotLake, client: Client, trace: int) -> None:
    """Each span is found by its id, also with a prefix of its trace id, and an unknown id finds none."""
    for span in hot.lake.trace(trace_id(trace)).spans:
        answer = client.get(f"/api/v1/traces/{trace_id(trace)}/spans/{span['span_id']}")
        expected = msgspec.json.decode(msgspec.json.encode(span))
        assert {name: answer.json()[name] for name in expected} == expected
    for other in (f"{99:016x}", "nothing", "A" * 16, "é"):
        answer = client.get(f"/api/v1/traces/{trace_id(trace)}/spans/{other}")
        assert answer.status_code == 404
        assert "no span" in answer.json()["error"]


def test_only_parts_that_hold_the_id_are_decoded(hot: HotLake) -> None:
    """Reading one span of a trace with many parts in the tracking store decodes one part."""
    hot.tracking.write([request((9, number)) for number in range(1, 21)])
    with mock.patch.object(tier, "add_part", wraps=add_part_of) as add_part:
        assert len(hot.lake.hot.span_rows(trace_id(9), f"{13:016x}")) == 1
    assert add_part.call_count == 1


def check_pieces(client: Client) -> None:
    """Check that a long response is the same document in several pieces, each with few spans."""
    routes = ("/api/v1/traces/{}", "/api/v1/traces/{}?format=otlp", "/api/3.0/mlflow/traces/get?trace_id={}")
    for route in routes:
        url = route.format(trace_id(COMMITTED))
        whole = client.get(url).json()
        sizes: list[int] = []
        of = render.slices

        def counted(rows: pa.Table, of: Any = of, sizes: list[int] = sizes) -> Iterator[pa.Table]:
            for some in of(rows):
                sizes.append(len(some))
                yield some

        with (
            mock.patch.object(render, "JSON_PIECE_SPANS_MAX", 7),
            mock.patch.object(render, "slices", counted),
        ):
            answer = client.get(url)
        assert "content-length" not in answer.headers
        assert max(sizes) <= 7
        assert sum(sizes) == SPANS
        pieces = answer.json()
        if "resourceSpans" in whole:
            pieces, whole = spans_of(pieces), spans_of(whole)
        assert pieces == whole


def spans_of(otlp: dict[str, Any]) -> list[Any]:
    """Return all spans of OTLP/JSON."""
    return [
        span
        for resource in otlp["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def test_long_answers_come_in_pieces(client: Client) -> None:
    """Check that rows of the API, OTLP and MLflow's response are encoded piece by piece."""
    check_pieces(client)
