"""The list of traces: time ranges, filters by any span, activity, and pasted ids."""

from __future__ import annotations

import html
import re
from contextlib import closing
from dataclasses import replace
from typing import Any, get_args
from unittest import mock

import pytest

from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tracelake.lake import trace_list
from tracelake.lake.trace_details import previews_of, read_spans, span_values_of
from tracelake.lake.trace_list import TraceFilter, list_traces
from tracelake.otlp.conventions import SpanType
from tracelake.server.app import create_app
from tracelake.server.trace_page import TYPE_LABELS
from tracelake.storage.local import MemoryObjectStore
from tracelake.tracking.ingest_queue import Inbox

START_NS = 1_760_000_000_000_000_000  # 2025-10-09T08:53:20Z
MINUTE_NS = 60_000_000_000


@pytest.fixture
def lake() -> FakeLake:
    """Return a lake with four traces, one a minute, the third with an error in another service."""
    return FakeLake(
        [
            *(
                span_row(number, 1, name=f"ask {number}", input=f"question {number}")
                for number in range(1, 5)
            ),
            span_row(
                3,
                2,
                parent=1,
                service="bank",
                status="ERROR",
                model="gpt-4o",
                span_id="00000000deadbeef",
                type="tool",
            ),
        ]
    )


def names(client: Client, **parameters: Any) -> list[str]:
    """Return the names of the listed traces, oldest first."""
    response = client.get("/api/v1/traces", params={"order": "oldest", **parameters})
    assert response.status_code == 200, response.text
    return [row["name"].removeprefix("ask ") for row in response.json()["traces"]]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"service": "bank"}, "3"),
        ({"model": "gpt-4o"}, "3"),
        ({"type": "tool"}, "3"),
        ({"type": "llm"}, ""),
        ({"order": "cost"}, "4321"),
        ({"status": "error"}, "3"),
        ({"status": "ok"}, "124"),
        ({"max_duration_ms": 1000}, "124"),
        ({"start": str(START_NS + 2 * MINUTE_NS + 10**9)}, "234"),
        ({"end": str(START_NS + 2 * MINUTE_NS + 10**9)}, "12"),
        ({"start": "2025-10-09T08:55:00Z", "end": "2025-10-09T08:56"}, "23"),
        ({"start": "2025-10-09T10:55:00+02:00"}, "234"),
        ({"start": "2025-10-09", "end": "2025-10-09"}, "1234"),
        ({"end": "2025-10-08"}, ""),
        ({"last": "15m"}, ""),
        ({"last": "520w"}, "1234"),
        ({"start": "", "end": "", "last": "", "query": "", "status": ""}, "1234"),
    ],
)
def test_filters(client: Client, parameters: dict[str, Any], expected: str) -> None:
    """Filters use all spans of a trace, and an end of a time range includes its minute or day."""
    assert "".join(names(client, **parameters)) == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("servce=bank", "unknown parameter 'servce'; did you mean service?"),
        ("since=1h&limit=2", "unknown parameter 'since'"),
        ("start=yesterday", "is no time"),
        ("start=2025-13-01", "is no time"),
        ("last=soon", "is no length of time"),
        ("status=broken", "status is ok or error"),
    ],
)
def test_bad_parameters_are_named(client: Client, query: str, message: str) -> None:
    """An unknown parameter or a wrong value gets a 400 with its name, on the page and in the API."""
    for path in ("/", "/traces", "/api/v1/traces"):
        response = client.get(f"{path}?{query}")
        assert response.status_code == 400
        assert message in html.unescape(response.text)


@pytest.mark.parametrize(
    "path", ["/", "/traces", "/overview?service=bank", "/sessions", "/users", "/search?q=question"]
)
def test_every_list_has_a_time_range(client: Client, path: str) -> None:
    """Each list offers the same time ranges, marks the chosen one, keeps its filters, and takes any start and end."""
    ranges = r'<nav class="orders" aria-label="Time range">(.*?)</nav>'
    choices = re.findall(
        r'<a href="(.*?)"(.*?)>(.*?)</a>', re.findall(ranges, client.get(path).text, re.DOTALL)[0]
    )
    assert [label for _, _, label in choices] == ["15 min", "1 hour", "24 hours", "7 days", "All"]
    kept = re.findall(r"\?(.*)", path)
    for url, _, label in choices:
        response = client.get(html.unescape(url))
        assert response.status_code == 200
        (shown,) = re.findall(ranges, response.text, re.DOTALL)
        assert re.findall(r'aria-current="true">(.*?)</a>', shown) == [label]
        assert all(each in html.unescape(url) for each in kept)
    rest = "&".join([*kept, "start=2025-10-09T08:55", "end=2025-10-09T08:56"])
    assert "2025-10-09 08:55 – 2025-10-09 08:56 UTC" in client.get(f"{path.partition('?')[0]}?{rest}").text  # noqa: RUF001


def test_columns_are_chosen_in_the_address(client: Client) -> None:
    """The page has the columns of its address, by default those with content; an unknown one is refused by name."""
    page = client.get("/traces").text
    assert "<th>Models</th>" in page
    assert 'title="gpt-4o">gpt-4o</a>' in page
    assert "<th>Span types</th>" in page
    icon = r'title="Tool">\s*<span class="type type-tool"><svg.*?<span class="type-word">Tool</span>'
    assert re.search(icon, page)
    assert re.search(r'<th class="number">\s*<a[^>]*>\s*Cost', page) is None
    assert "question 3" in page
    chosen = client.get("/traces?columns=types,cost&columns=duration").text
    assert "<th>Span types</th>" in chosen
    assert re.search(r'<a class="type-link" href="[^"]*type=tool"', chosen)
    assert "<th>Models</th>" not in chosen
    assert "question 3" not in chosen
    assert 'value="types" checked' in chosen
    assert '<input type="hidden" name="columns" value="types,cost">' in chosen
    refused = client.get("/traces?columns=duration,color")
    assert refused.status_code == 400
    assert "unknown column 'color'; the columns are status, duration" in html.unescape(refused.text)


def test_each_span_type_has_an_icon_and_a_word(client: Client) -> None:
    """A type never depends on its colour alone."""
    icons = re.findall(r'id="(\w+)"', client.get("/static/types.svg").text)
    assert set(icons) == TYPE_LABELS.keys() == set(get_args(SpanType))
    assert len(set(TYPE_LABELS.values())) == len(TYPE_LABELS)


def test_latency_tokens_and_cost_are_beside_the_list() -> None:
    """Percentiles of all traces of the filter, and sums of their tokens and costs, are beside the chart."""
    spans = [span_row(n, 1, input_tokens=n, output_tokens=1, cost=0.25) for n in range(1, 101)]
    for n, span in enumerate(spans, 1):
        span["end_ns"] = span["start_ns"] + n * 10**9
    with closing(Inbox(MemoryObjectStore())) as inbox:
        page = Client(create_app(FakeLake(spans), inbox)).get("/traces?limit=3").text
    figures = dict(re.findall(r"<dt>([^<]+)</dt><dd><a[^>]*>([^<]+)</a>", page))
    assert figures["Traces"] == "100"
    assert [figures[f"Latency {name}"] for name in ("p50", "p95", "p99")] == [
        "50.0 s",
        "1 m 35 s",
        "1 m 39 s",
    ]
    assert (figures["Tokens in / out"], figures["Cost"]) == ("5.0 k / 100", "$25.00")


def test_tags_of_the_filter_are_removed_one_by_one(client: Client) -> None:
    """Each tag of the filter is a link to the list without it, and an empty field of the form is no filter."""
    with mock.patch.object(trace_list, "conditions_of", return_value=([], [])):  # this lake has no tags
        page = client.get("/traces?tag=a%3D1&tag=b%3D2&order=oldest").text
    assert 'href="/traces?tag=b%3D2&amp;order=oldest" title="Remove this filter"' in page
    assert client.get("/traces?tag=").status_code == 200


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, 1e300, None])
def test_hostile_costs_are_sorted(cost: float | None) -> None:
    """Any cost of a sender can be listed by cost, over pages."""
    lake = FakeLake([span_row(number, 1, cost=cost if number % 2 else number) for number in range(1, 6)])
    wanted = TraceFilter(order="cost", limit=2)
    seen: list[str] = []
    while True:
        page = list_traces(lake, wanted)
        seen += [row["trace_id"] for row in page.traces]
        if page.next_page is None:
            break
        wanted = replace(wanted, page=page.next_page)
    assert sorted(seen) == [f"{number:032x}" for number in range(1, 6)]


def test_models_and_types_are_bounded() -> None:
    """The list shows only a few models of a trace, and cuts their names."""
    lake = FakeLake([span_row(1, number, model=f"{number:03d}{'x' * 5_000}") for number in range(1, 50)])
    traces = list_traces(lake, TraceFilter()).traces
    (values,) = span_values_of(lake, traces, read_spans(lake, traces)).values()
    lake.looks_up = False
    assert [values] == [*span_values_of(lake, traces, read_spans(lake, traces)).values()]
    assert len(values["models"]) == 4
    assert max(map(len, values["models"])) <= 500
    assert values["types"] == []


def test_services_of_all_spans_are_offered(client: Client) -> None:
    """The list of services includes those in which no trace begins."""
    assert client.get("/api/v1/services").json() == {"services": ["bank", "shop"]}
    assert "<option >bank</option>" in client.get("/traces").text


@pytest.mark.parametrize(
    "written", ["3", "0x3", f"{3:032x}", f"tr-{3:032x}", f"{3:032X}", "00000000-0000-0000-0000-000000000003"]
)
def test_a_pasted_trace_id_opens_the_trace(client: Client, written: str) -> None:
    """Ids are accepted in any usual form; a short text without `0x` is a query."""
    response = client.get("/traces", params={"query": written}, follow_redirects=False)
    if written == "3":
        assert response.status_code == 200
    else:
        assert (response.status_code, response.headers["location"]) == (303, f"/traces/{3:032x}")


def test_a_pasted_span_id_opens_its_span(client: Client) -> None:
    """The page of the trace opens with the span selected."""
    for written in ("0xdeadbeef", "00000000deadbeef"):
        response = client.get("/traces", params={"query": written}, follow_redirects=False)
        assert response.headers["location"].startswith(f"/traces/{3:032x}?span=00000000deadbeef")
        assert client.get("/search", params={"q": written}, follow_redirects=False).status_code == 303


def test_each_number_leads_to_its_traces(client: Client) -> None:
    """The intervals and the statistics link to lists with as many traces as they count."""
    page = client.get("/traces").text
    number = r'<td class="number" data-value="(\d+)">\d+</td>'
    intervals = re.findall(rf'<td><a href="([^"]+)"><time .*?</time></a></td>{number}{number}', page)
    assert sum(int(traces) for _, traces, _ in intervals) == 4
    for url, traces, errors in intervals:
        listed = client.get(f"/api/v1{html.unescape(url)}").json()["traces"]
        assert len(listed) == int(traces)
        assert sum(row["error_count"] > 0 for row in listed) == int(errors)
    errors = re.search(r'<dt>With errors</dt><dd><a href="([^"]+)" class="error">1</a>', page)
    assert errors is not None
    assert "ask 3" in client.get(html.unescape(errors[1])).text


def test_input_and_output_are_shown_on_request(client: Client) -> None:
    """The page shows the beginning of a root's input; the API only with `previews`."""
    assert "question 2" in client.get("/traces").text
    (row,) = client.get("/api/v1/traces?limit=1&order=oldest&previews=true").json()["traces"]
    assert (row["input"], row["output"]) == ("question 1", None)
    assert "input" not in client.get("/api/v1/traces?limit=1").json()["traces"][0]


def test_previews_come_from_the_first_span_that_has_them() -> None:
    """The root's texts come first; without them, the input of the first model call and the output of the last."""
    lake = FakeLake(
        [
            span_row(1, 1, input="asked", output=""),
            span_row(1, 2, parent=1, type="llm", input="prompt", output="first answer"),
            span_row(1, 3, parent=1, type="llm", output="last answer"),
            span_row(1, 4, parent=1, output="written"),
            span_row(2, 1),
            span_row(2, 2, parent=1, input="query", output="rows"),
            span_row(2, 3, parent=1, type="llm", input="prompt"),
            span_row(3, 1, output=None, end_ns=2**63 - 1),
            span_row(4, 1, output="of the first root"),
            span_row(4, 2, output="of the second root"),
        ]
    )
    traces = list_traces(lake, TraceFilter()).traces
    texts, values = (
        previews_of(lake, traces, read_spans(lake, traces)),
        span_values_of(lake, traces, read_spans(lake, traces)),
    )
    lake.looks_up = False
    assert (texts, values) == (
        previews_of(lake, traces, read_spans(lake, traces)),
        span_values_of(lake, traces, read_spans(lake, traces)),
    )
    assert {int(trace_id, 16): (each["input"], each["output"]) for trace_id, each in texts.items()} == {
        1: ("asked", "last answer"),
        2: ("prompt", "rows"),
        3: (None, None),
        4: (None, "of the first root"),
    }


def test_models_and_types_are_listed_on_request(client: Client, lake: FakeLake) -> None:
    """The rows of the API have the models and types of spans only with `values`."""
    rows = client.get("/api/v1/traces?values=true").json()["traces"]
    assert rows
    values = span_values_of(lake, rows, read_spans(lake, rows))
    assert {row["trace_id"]: {"models": row["models"], "types": row["types"]} for row in rows} == values
    assert any(each["models"] for each in values.values())
    assert "models" not in client.get("/api/v1/traces").json()["traces"][0]


def test_an_empty_list_says_what_to_do(client: Client, lake: FakeLake) -> None:
    """Without matches the page offers to clear filters, and without traces to send some."""
    assert "clear the filters" in client.get("/traces?service=none").text
    lake.clear()
    assert "OTEL_EXPORTER_OTLP_ENDPOINT=http://" in client.get("/traces").text
    assert client.get("/api/v1/traces").json()["traces"] == []
