"""The pages as HTML; `tests/browser` tests them in a browser."""

from __future__ import annotations

import html
import re
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from tests.archive.place import HotLake
from tests.datasets.conversations import ids
from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tests.server.test_guard import every_route
from tracelake import limits
from tracelake.server.app import create_app
from tracelake.server.routes import STATIC, without_lake_path
from tracelake.storage.local import MemoryObjectStore
from tracelake.tracking.ingest_queue import Inbox, TrackingDoor

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
TRACE, TALK = f"{1:032x}", f"{9:032x}"
PAGES = {
    "/": "/",
    "/overview": "/overview?service=agent",
    "/traces": "/traces",
    "/traces/trace_id": f"/traces/{TALK}",
    "/traces/trace_id/graph": f"/traces/{TALK}/graph",
    "/traces/trace_id/compare/other_id": f"/traces/{TALK}/compare/{TRACE}",
    "/sessions": "/sessions",
    "/session": "/session?session=none",
    "/users": "/users",
    "/user": "/user?user=none",
    "/search": "/search?q=refund",
    "/versions": "/versions",
    "/versions/merge": "/versions/merge?source=labels&into=main",
    "/diff": "/diff?to=main",
    "/datasets": "/datasets",
    "/datasets/name": "/datasets/refunds",
    "/datasets/name/diff": "/datasets/refunds/diff?from=main~1",
    "/datasets/name/examples/example_id": f"/datasets/refunds/examples/{ids(0, 0)}",
    "/add-to-dataset": f"/add-to-dataset?trace={TALK}&span={1:016x}",
    "/datasets/name/runs": "/datasets/refunds/runs",
    "/datasets/name/runs/run": "/datasets/refunds/runs/none",
    "/datasets/name/comparison": "/datasets/refunds/comparison?base=a&run=b",
    "/pipeline": "/pipeline",
    "/pipeline/prices": "/pipeline/prices",
    "/pipeline/transaction": "/pipeline/0",
    "/archive": "/archive",
    "/retention": "/retention",
    "/erasures": "/erasures",
    "/sign-in": "/sign-in",
}
"""An address of each page; some show an error or that there is nothing."""
NO_PAGES = {
    *("/openapi.json", "/metrics", "/version", "/favicon.ico", "/static/icon.svg", "/healthz", "/readyz"),
    *("/compare", "/traces/trace_id/details", "/traces/trace_id/image"),
    *("/versions/revert", "/versions/cherry-pick"),
}


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake with one trace whose every text is hostile, and one trace with many spans."""
    names = ("service", "name", "session_id", "user_id", "model", "status_message", "input")
    texts: dict[str, Any] = dict.fromkeys(names, HOSTILE)
    return FakeLake(
        [
            span_row(1, 1, **texts, output=f"{HOSTILE} word", end_ns=0, duration_ns=0, type="llm"),
            *(span_row(2, number, parent=number // 2 or None) for number in range(1, 51)),
        ]
    )


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/traces",
        f"/traces/{TRACE}",
        "/search?q=word",
        f"/search?q={HOSTILE}",
        f"/traces?service={HOSTILE}",
        f"/traces/{HOSTILE}",
    ],
)
def test_hostile_text_is_escaped(client: Client, path: str) -> None:
    """HTML from a span or from the URL never becomes markup, and the policy allows no script in the page."""
    response = client.get(path)
    assert response.headers["content-type"].startswith("text/html")
    assert "<script>alert" not in response.text
    assert "<img src=x" not in response.text
    assert response.headers["content-security-policy"].startswith("default-src 'self';")


@pytest.mark.parametrize(
    ("path", "twin"),
    [
        ("/", "/api/v1/overview"),
        ("/traces", "/api/v1/traces"),
        ("/traces?service=shop&errors=true", "/api/v1/traces?service=shop&amp;errors=true"),
        ("/search?q=word", "/api/v1/search?q=word"),
        (f"/traces/{TRACE}", f"/api/v1/traces/{TRACE}"),
    ],
)
def test_every_page_links_to_its_json(client: Client, path: str, twin: str) -> None:
    """The link to the JSON form has the same parameters."""
    assert f'class="twin" href="{twin}"' in client.get(path).text
    assert client.get(twin.replace("&amp;", "&")).status_code == 200


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/", "Overview"),
        ("/overview", "Overview"),
        ("/traces", "Traces"),
        (f"/traces/{TRACE}", "Traces"),
        ("/session?session=none", "Sessions"),
        ("/user?user=none", "Users"),
        ("/datasets/none/runs", "Datasets"),
        ("/diff?to=main", "Versions"),
    ],
)
def test_the_navigation_marks_the_section_of_a_page(client: Client, path: str, label: str) -> None:
    """A page below a section marks the section's link, which is the current page only at its own path."""
    navigation = client.get(path).text.partition("<main>")[0]
    ((kind, marked),) = re.findall(r'<a href="[^"]*" aria-current="(page|true)">([^<]*)</a>', navigation)
    assert (marked, kind) == (label, "page" if path in ("/", "/traces") else "true")


def test_list_is_paged_by_links(client: Client) -> None:
    """Pages of the list link to each other and keep the filters."""
    first = client.get("/traces?order=oldest&limit=1").text
    following = re.search(r'href="(/traces\?order=oldest&amp;limit=1&amp;page=a_[^"]+)" rel="next"', first)
    assert following is not None
    second = client.get(html.unescape(following[1])).text
    before = re.search(r'href="(/traces\?order=oldest&amp;limit=1&amp;page=b_[^"]+)" rel="prev"', second)
    assert before is not None
    assert client.get(html.unescape(before[1])).text.count('rel="prev"') == 0
    assert first.count("/traces/") == second.count("/traces/") == 1
    assert re.search(r'aria-current="true">\s*Started ↑</a>', first)
    assert (
        'href="/traces?order=oldest&amp;limit=1&amp;offset=0" rel="prev"'
        in client.get("/traces?order=oldest&limit=1&offset=1").text
    )


def test_empty_form_fields_are_no_filters(client: Client) -> None:
    """The form sends all its fields; empty ones filter nothing."""
    page = client.get("/traces?service=&name=&session=&user=&min_duration_ms=&order=newest").text
    assert page.count('<td class="name">') == 2


def test_long_traces_are_paged(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a trace with more spans than fit reports that, and a request can name the page with a given span."""
    monkeypatch.setattr(limits, "TRACE_PAGE_SPANS_MAX", 20)
    first = client.get(f"/traces/{2:032x}").text
    assert "50 spans; the page shows 1–20" in first  # noqa: RUF001 the page has an en dash
    assert first.count('role="treeitem"') == 20
    assert 'href="?first=20"' in first
    last = client.get(f"/traces/{2:032x}?first=40").text
    assert last.count('role="treeitem"') == 10
    wanted = client.get(f"/traces/{2:032x}?span={31:016x}").text
    assert f'data-span="{31:016x}"' in wanted
    assert wanted.count('role="treeitem"') <= 20
    assert "the page shows 41–50" in wanted  # noqa: RUF001 the page has an en dash


def test_search_page_shows_matches_and_problems(client: Client) -> None:
    """Matches are marked and hits have the icon of their type. An invalid query shows its error and stays in its field;
    an empty query asks for a text."""
    found = client.get("/search?q=word").text
    assert "<mark>word</mark>" in found
    assert re.search(r'class="type type-llm"><svg.*?<span class="type-word">LLM</span>', found)
    broken = client.get("/search", params={"q": '"open'})
    assert broken.status_code == 400
    assert "quotation mark is open" in broken.text
    assert "&#34;open" in broken.text
    assert "<pre><mark>&#34;</mark>open</pre>" in broken.text
    assert "Nothing found" in client.get("/search?q=absent").text
    assert client.get("/search").status_code == 200


def test_errors_are_pages(client: Client) -> None:
    """An unknown page and an invalid parameter get an error page."""
    missing = client.get("/traces/unknown")
    assert (missing.status_code, "no trace unknown" in missing.text) == (404, True)
    assert "<h1>" in client.get("/nothing").text
    assert client.get("/traces?limit=0").status_code == 400


@pytest.mark.parametrize("name", ["tracelake.css", "charts.js", "icon.svg", "uplot/uPlot.iife.min.js"])
def test_static_files_are_served(client: Client, name: str) -> None:
    """Pages load their files from this server."""
    assert client.get(f"/static/{name}").status_code == 200


def test_the_chart_library_is_the_published_one() -> None:
    """The files of uPlot have the checksums that `scripts/fetch-uplot` checks, and its license is beside them."""
    folder = STATIC / "uplot"
    lines = [line.split() for line in (folder / "SHA256SUMS").read_text().splitlines()]
    sums = {name: checksum for checksum, name in lines}
    files = {file.name: sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    del files["SHA256SUMS"]
    assert files == sums
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_events_links_and_the_download_of_a_trace() -> None:
    """A span shows its events with their time, and links that lead to their spans; the page offers the whole trace."""
    start = span_row(1, 1)["start_ns"]
    event = {"time_ns": start + 2_000_000, "name": "cache miss", "attributes": {"key": "42"}}
    link = {"trace_id": f"{2:032x}", "span_id": f"{7:016x}", "attributes": {"reason": "retry"}}
    lake = FakeLake([span_row(1, 1, events=[event], links=[link])])
    with closing(Inbox(MemoryObjectStore())) as inbox:
        text = " ".join(Client(create_app(lake, inbox)).get(f"/traces/{TRACE}?span={1:016x}").text.split())
    assert '<strong>cache miss</strong> <span class="meta">2.00 ms after the start</span>' in text
    assert f'<a href="/traces/{2:032x}?span={7:016x}">' in text
    assert all(word in text for word in ("reason", "retry", "key", "42"))
    assert f'href="/api/v1/traces/{TRACE}?format=otlp" download="trace-{TRACE}.json"' in text


def test_the_list_of_pages_is_complete() -> None:
    """Each route that is no document, redirect or part of a page has an address in PAGES."""
    with closing(Inbox(MemoryObjectStore())) as inbox:
        routes = every_route(create_app(FakeLake([span_row()]), inbox))
    found = {path for method, path in routes if method == "GET" and not path.startswith("/api/")}
    assert found == PAGES.keys() | NO_PAGES


@pytest.mark.parametrize("is_damaged", [False, True])
def test_no_page_shows_where_the_server_keeps_the_lake(tmp_path: Path, is_damaged: bool) -> None:
    """Pages of an empty lake, and errors of one whose files are damaged, have no path of the machine."""
    here = HotLake(tmp_path / "a lake")
    with closing(here.tracking), closing(here.lake), closing(TrackingDoor(here.tracking)) as door:
        client = Client(create_app(here.lake, door))
        for file in (tmp_path / "a lake").rglob("*.json") if is_damaged else ():
            file.write_bytes(b"x" * file.stat().st_size)
        answers = {path: client.get(path) for path in [*PAGES.values(), "/none", "/api/v1/archive"]}
        assert {path: each.text for path, each in answers.items() if tmp_path.name in each.text} == {}
        for path in ("/", "/api/v1/archive"):
            assert ("tracking.json cannot be read" in answers[path].text) == is_damaged


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{lake}/tables/a.parquet is damaged", "tables/a.parquet is damaged"),
        ("cannot write to {lake}: no space", "cannot write to the lake: no space"),
        ("cannot read {lake}.", "cannot read the lake."),
        ("not {lake}-2, nor {lake}.old", "not {lake}-2, nor {lake}.old"),
    ],
)
def test_an_error_names_places_within_the_lake(text: str, shown: str) -> None:
    """A message names files within the lake's folder, and never the folder, as a path or as a URL."""
    app = SimpleNamespace(state=SimpleNamespace(lake=SimpleNamespace(url="file:///data/a%20lake")))
    request = Request({"type": "http", "app": app})
    for lake in ("/data/a lake", "file:///data/a%20lake"):
        assert without_lake_path(request, text.format(lake=lake)) == shown.format(lake=lake)
