"""The overview: statistics by service, model, operation and error, with links to the traces behind them."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode

import pytest

from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake.lake.trace_list import TraceFilter, read_overview
from tracelake.server.call_graph import draw, service_graph


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake in which a shop calls a bank, which fails once, and a model."""
    called = {"service": "bank", "name": "pay"}
    chat = {"name": "chat", "type": "llm", "model": "gpt-4o"}
    failed = {"status": "ERROR", "status_message": "no funds"}
    return FakeLake(
        [
            *(span_row(number, 1, name="buy") for number in (1, 2, 3)),
            span_row(1, 2, parent=1, **called),
            span_row(2, 2, parent=1, duration_ns=9_000_000_000, **called, **failed),
            span_row(
                3,
                2,
                parent=1,
                name="chat",
                type="llm",
                model="gpt-4o",
                input_tokens=7,
                output_tokens=5,
                cost=0.25,
            ),
            span_row(3, 3, parent=1, **chat, output_tokens=6, cost=0.5),
            span_row(3, 4, parent=1, name="run", type="agent", model="gpt-4o", output_tokens=11, cost=0.75),
            span_row(3, 5, parent=1, name="run", type="agent", model="own", output_tokens=4),
        ]
    )


def test_statistics(client: Client) -> None:
    """Each table has its numbers."""
    overview = client.get("/api/v1/overview").json()
    total = overview["activity"]["total"]
    assert (total["traces"], total["errors"]) == (3, 1)
    assert {row["service"]: (row["traces"], row["errors"]) for row in overview["services"]} == {
        "shop": (3, 0),
        "bank": (2, 1),
    }
    columns = ("model", "input_tokens", "output_tokens", "cost")
    # The usage that an agent repeats counts once; that of an agent without traced calls counts.
    assert [tuple(row[name] for name in columns) for row in overview["models"]] == [
        ("gpt-4o", 7, 11, 0.75),
        ("own", 0, 4, None),
    ]
    assert [(row["type"], row["spans"]) for row in overview["types"]] == [("agent", 2), ("llm", 2)]
    slowest = overview["operations"][0]
    assert (slowest["name"], slowest["service"], slowest["spans"], slowest["p95_ns"]) == (
        *("pay", "bank", 2),
        9_000_000_000,
    )
    (error,) = overview["errors"]
    assert (error["message"], error["spans"], error["trace_id"]) == ("no funds", 1, f"{2:032x}")
    assert overview["calls"] == [
        {"caller": "shop", "callee": "bank", "calls": 2, "errors": 1, "total_ns": 10_000_000_000}
    ]
    assert sum(row["traces"] for row in overview["activity"]["buckets"].values()) == 3


def test_filters_apply_to_every_table(client: Client) -> None:
    """The spans of other traces are not counted."""
    overview = client.get("/api/v1/overview?model=gpt-4o").json()
    assert overview["activity"]["total"]["traces"] == 1
    assert [row["service"] for row in overview["services"]] == ["shop"]
    assert overview["errors"] == overview["calls"] == []
    assert client.get("/api/v1/overview?model=none").json()["activity"] is None


def test_numbers_lead_to_the_list(client: Client) -> None:
    """Links go to the list of traces and keep the time range; intervals narrow the overview."""
    page = client.get("/overview?last=520w").text
    (service,) = re.findall(r'<a href="([^"]+)">bank</a></td><td class="number">\d', page)
    assert html.unescape(service) == "/traces?last=520w&service=bank"
    assert client.get(html.unescape(service)).text.count('<td class="name">') == 2
    (interval, *_) = re.findall(r'<td><a href="([^"]+)"><time', page)
    assert interval.startswith("/overview?start=")
    assert client.get(html.unescape(interval)).status_code == 200
    assert "/traces?last=520w&query=service%3Abank+status%3Aerror&service=shop" in html.unescape(page)
    for query in (
        "service:bank status:error",
        "service:bank name:pay duration>=9000000000ns",
        "model:gpt-4o",
        "type:llm",
    ):
        assert urlencode({"last": "520w", "query": query}) in html.unescape(page), query
    (calls,) = re.findall(r'<a class="figure" href="([^"]+)">2</a>', page)
    assert html.unescape(calls) == "/traces?last=520w&query=service%3Abank&service=shop"
    (error,) = re.findall(r'<a href="([^"]+)">no funds</a>', page)
    assert html.unescape(error) == "/traces?last=520w&query=status%3Aerror+%22no+funds%22"


def test_spans_are_split_by_a_column(client: Client) -> None:
    """Each series has the sums of its value, the usage of agents counts once, and each number leads to its traces."""
    series = client.get("/api/v1/overview?split=model").json()["split"]
    columns = ("spans", "errors", "tokens", "cost")
    assert [(each["value"], *(each["total"][name] for name in columns)) for each in series] == [
        ("gpt-4o", 3, 0, 18, 0.75),
        ("own", 1, 0, 4, None),
    ]
    for column in ("service", "model", "type"):
        for each in client.get(f"/api/v1/overview?split={column}").json()["split"]:
            assert sum(row["spans"] for row in each["buckets"].values()) == each["total"]["spans"]
    assert client.get("/api/v1/overview").json()["split"] == []
    page = client.get("/?last=520w&split=service").text
    titles = ("Spans", "Errors", "Latency p95", "Tokens", "Cost")
    assert tuple(re.findall(r"<figcaption><span>([^<]+)", page)) == titles
    links = [
        html.unescape(each)
        for each in re.findall(r'class="figure" href="([^"]+service=bank[^"]*start[^"]+)"', page)
    ]
    assert links
    assert all(
        client.get(each).text.count('<td class="name">') == (1 if "status=error" in each else 2)
        for each in links
    )
    assert any("status=error" in each for each in links)
    assert client.get("/overview?split=name").status_code == 400


def test_errors_are_grouped_by_message() -> None:
    """The most frequent message comes first, with its newest trace; a span without a message counts by its name."""
    messages = ("no funds", "timeout", "no funds", None)
    lake = FakeLake(
        [span_row(n, 1, status="ERROR", status_message=text) for n, text in enumerate(messages, 1)]
    )
    errors = read_overview(lake, TraceFilter()).errors
    assert [(row["message"], row["spans"], row["trace_id"]) for row in errors] == [
        ("no funds", 2, f"{3:032x}"),
        ("step 1", 1, f"{4:032x}"),
        ("timeout", 1, f"{2:032x}"),
    ]


def test_rare_values_are_one_series() -> None:
    """The five most frequent values have a series each; all others share the last one, which leads to every trace."""
    counts = {f"s{number}": 9 - number for number in range(1, 8)}
    lake = FakeLake(
        [
            span_row(number, span, service=service)
            for number, (service, count) in enumerate(counts.items(), 1)
            for span in range(1, count + 1)
        ]
    )
    series = read_overview(lake, TraceFilter(), "service").split
    assert [(each.value, each.total["spans"]) for each in series] == [
        *(("s1", 8), ("s2", 7), ("s3", 6), ("s4", 5), ("s5", 4)),
        (None, 5),
    ]


def test_a_split_within_its_own_filter(client: Client) -> None:
    """Links of a split by a column that is also filtered keep the filter, and name the value in the query."""
    page = html.unescape(client.get("/overview?split=service&service=shop").text)
    assert re.search(r"/traces\?service=shop&query=service%3Abank&start=\d+&end=\d+", page)
    assert '<option value="service" selected>service</option>' in page


def test_an_empty_overview_and_unknown_parameters(client: Client, lake: FakeLake) -> None:
    """Without traces the page says what to do; an unknown parameter is refused."""
    assert "No traces in this time" in client.get("/?last=1h").text
    lake.clear()
    for path in ("/", "/overview", "/traces"):
        page = client.get(path).text
        assert "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1" in page
        assert '<form class="filters"' not in page or path == "/traces"
        assert client.get(f"{path}?lst=1h").status_code == 400


def test_the_start_page_is_the_overview(client: Client) -> None:
    """A link with filters, which had this path when it was the list, leads to the list."""
    assert '<a href="/" aria-current="page">Overview</a>' in client.get("/?last=520w").text
    assert "Slowest operations" in client.get("/").text
    for query in ("service=bank&last=520w", "page=x", "columns=duration", "compare=1", "query=a&query=b"):
        response = client.get(f"/?{query}")
        assert (response.status_code, response.headers["location"]) == (307, f"/traces?{query}")


def test_the_service_map(client: Client, lake: FakeLake) -> None:
    """The map has the services that call others, also in a circle, with their figures and links."""
    page = client.get("/").text
    (bank,) = re.findall(r'<a class="node type-none failed" href="([^"]+)"><title>bank</title>', page)
    assert bank == "/traces?service=bank"
    assert re.search(r'2 spans · p95 9\.00 s · <tspan class="error">✕ 1</tspan>', page)
    assert "shop → bank: 2 calls, 1 failed, 5.00 s on average" in page
    rows = [{"service": name, "spans": 1, "errors": 0, "p95_ns": 1} for name in "abcd"]
    calls = [
        {"caller": caller, "callee": callee, "calls": 1, "errors": 0, "total_ns": 1}
        for caller, callee in ("ab", "bc", "ca", "ad", "xy", "yx")
    ]
    drawing = draw(service_graph(rows, calls, "/{}".format))
    places = [(box.x, box.y) for box in drawing.boxes]
    assert len(set(places)) == len(places) == 6
    lake.clear()
    assert "Service map" not in client.get("/").text
