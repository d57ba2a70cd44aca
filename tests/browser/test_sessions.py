"""Sessions, users and the lists in a browser: the conversation, links, keys, brush, Live, accessibility, screenshots.

With TRACELAKE_SCREENSHOTS=1 the screenshots go to docs/images.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.agent_trace import priced
from tests.browser.conftest import serving
from tests.browser.test_trace_page import check_look, images, looking
from tests.server.fake_lake import FakeLake, span_row
from tracelake.results import Row

SESSION = "trip-2291"
PATHS = {
    "sessions": "/sessions",
    "session": f"/session?session={SESSION}",
    "users": "/users",
    "user": "/user?user=ada",
    "traces": "/traces",
    "overview": "/",
}
TURNS = (
    ("I have to be in Lyon on Thursday at 14:00. Which train do you suggest?", "rail_search",
     {"from": "Paris", "to": "Lyon", "arrive_before": "13:30"}, "TGV 6607, 08:58 to 10:56, 74 EUR",
     "Take **TGV 6607** at 08:58. It arrives at 10:56 and costs 74 EUR.\n\n- Seats are left in both classes\n"
     "- You can exchange the ticket until departure"),
    ("Book it, please, and find me a hotel near the station.", "hotel_search", {"city": "Lyon", "nights": 1}, None,
     "The train is booked. The hotel search did not answer, so I could not reserve a room."),
    ("Try the hotel again.", "hotel_search", {"city": "Lyon", "nights": 1}, "Hotel Part-Dieu, 129 EUR",
     "I reserved a room at **Hotel Part-Dieu** for 129 EUR, five minutes from the station."),
)  # fmt: skip
"""Question, tool, its arguments and result, and answer of each trace of the session."""


def turn(number: int, history: list[dict[str, Any]]) -> list[Row]:
    """Return the spans of one trace of the session; the history grows."""
    question, tool, arguments, result, answer = TURNS[number]
    trace, zero = 10 + 2 * number, span_row(10 + 2 * number, 0)["start_ns"]
    asked = [*history, {"role": "user", "content": question}]
    call = {"id": f"call_{number}", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    planned = {"role": "assistant", "content": "", "tool_calls": [call]}
    found = [
        *asked,
        planned,
        {"role": "tool", "tool_call_id": call["id"], "content": result or "no answer in 5 s"},
    ]
    llm = {"model": "gpt-4o", "attributes": {"openinference.span.kind": "LLM"}, "kind": "CLIENT", "parent": 1}

    def step(span: int, start_ms: int, length_ms: int, **columns: Any) -> Row:
        start_ns, length_ns = zero + start_ms * 10**6, length_ms * 10**6
        times = {"start_ns": start_ns, "end_ns": start_ns + length_ns, "duration_ns": length_ns}
        return priced(
            span_row(
                trace,
                span,
                **{"service": "travel-desk", "session_id": SESSION, "user_id": "ada"} | times | columns,
            )
        )

    history[:] = [*found, {"role": "assistant", "content": answer}]
    failed = (
        {"status": "ERROR", "status_message": "no answer from hotels.internal within 5 s"}
        if result is None
        else {}
    )
    return [
        step(1, 0, 5_400, name="plan trip", input=question, output=answer,
             attributes={"openinference.span.kind": "AGENT"}),
        step(2, 100, 1_300, name="chat gpt-4o", input_tokens=412 + 300 * number, output_tokens=46,
             input=json.dumps({"messages": asked}), output=json.dumps([planned]), **llm),
        step(3, 1_450, 1_900, name=tool, parent=1, input=json.dumps(arguments), output=result,
             attributes={"openinference.span.kind": "TOOL"}, **failed),
        step(4, 3_400, 1_900, name="chat gpt-4o", input_tokens=520 + 300 * number, output_tokens=81,
             input=json.dumps({"messages": found}), output=json.dumps([history[-1]]), **llm),
    ]  # fmt: skip


def steps_of(number: int, root: Row, usage: Row) -> list[Row]:
    """Return the spans below the root of a trace: a model call, and a tool that calls other services."""

    def step(span: int, parent: int, share: float, **columns: Any) -> Row:
        length_ns = int(root["duration_ns"] * share)
        times = {"end_ns": root["start_ns"] + length_ns, "duration_ns": length_ns}
        inherited = {name: root[name] for name in ("session_id", "user_id", "service", "start_ns")}
        return span_row(100 + number, span, parent, **inherited | times | columns)

    api, store = ("rail-api", "timetable-db") if number % 3 else ("hotel-api", "rooms-db")
    broken = {"status": "ERROR", "status_message": f"{api} did not answer"} if number % 24 == 5 else {}
    steps = [
        priced(step(2, 1, 0.6, name="chat", type="llm", **usage)),
        step(3, 1, 0.3, name="search", type="tool"),
        step(4, 3, 0.25, name="GET /search", service=api, **broken),
        step(5, 4, 0.15, name="SELECT", service=store),
    ]
    policy = step(6, 1, 0.2, name="retrieve", type="retriever", service="policy-search")
    return steps if number % 4 else [*steps, policy]


def desk() -> FakeLake:
    """Return a lake with the session, and other sessions and users with errors and tokens."""
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "You are the travel desk of Northwind. Trains before flights."}
    ]
    spans = [span for number in range(len(TURNS)) for span in turn(number, history)]
    questions = (
        "Where is my refund for the cancelled flight?", "Can I take my bike on the night train?",
        "Which hotels in Porto are below 120 EUR?", "Move my flight to Berlin to Friday",
        "Is breakfast included in my booking?", "Find a train from Milan to Zurich after 18:00",
    )  # fmt: skip
    for number in range(72):
        failed = {"status": "ERROR", "status_message": "payment refused"} if number % 11 == 3 else {}
        long_ms = 900 + 137 * (number * 7 % 23)
        start_ns = span_row(12, 0)["start_ns"] + number * 31_000_000_000 % 1_900_000_000_000
        of = {
            "session_id": f"chat-{4_000 + number // 3}",
            "user_id": ("ada", "grace", "edsger", "barbara")[number // 3 % 4],
            "input": questions[number % 6], "output": "Let me check that for you.", "model": "gpt-4o-mini",
            "service": ("travel-desk", "support-desk")[number % 2], "name": "answer", "start_ns": start_ns,
            "end_ns": start_ns + long_ms * 10**6, "duration_ns": long_ms * 10**6,
            "input_tokens": 300 + number * 13 % 400, "output_tokens": 60 + number * 7 % 90,
        }  # fmt: skip
        usage = {each: of.pop(each) for each in ("model", "input_tokens", "output_tokens")}
        root = span_row(100 + number, 1, **of | failed, type="agent")
        spans += [root, *steps_of(number, root, usage)]
    return FakeLake(spans)


@pytest.fixture(scope="module")
def desk_site() -> Iterator[str]:
    """Return the address of a server over the lake."""
    with serving(desk()) as address:
        yield address


def test_a_session_is_one_conversation(page: Page, desk_site: str) -> None:
    """From the list to the conversation: messages in order, history and tool calls folded, errors marked."""
    page.goto(f"{desk_site}/sessions?user=ada")
    page.click(f"text={SESSION}")
    expect(page.locator("h1")).to_have_text(SESSION)
    expect(page.locator(".turn")).to_have_count(3)
    expect(page.locator(".turn.failed")).to_have_count(1)
    second = page.locator(".turn").nth(1)
    expect(second.locator(":scope > .message h3")).to_have_text(["User", "Assistant"])
    expect(second.locator(".earlier summary")).to_contain_text("earlier messages")
    steps = second.locator(".steps")
    expect(steps.locator("pre").first).to_be_hidden()
    steps.locator("summary").click()
    expect(steps).to_contain_text("no answer in 5 s")
    expect(page.locator(".turns li.failed")).to_contain_text("Book it, please")
    second.locator("h2 a").click()
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()


def test_each_number_leads_to_its_traces(page: Page, desk_site: str) -> None:
    """The number of errors of a user opens the list with these traces only."""
    page.goto(f"{desk_site}/users?order=errors")
    first = page.locator(".groups tbody tr").first
    traces = int(re.sub(r"\D", "", first.locator("td.number .error").get_attribute("title") or ""))
    first.locator("td.number .error").click()
    expect(page.locator(".traces tbody tr")).to_have_count(traces)
    expect(page.locator(".traces .status .error")).to_have_count(traces)


def test_a_heading_sorts_the_list(page: Page, desk_site: str) -> None:
    """A click on a column's heading orders the traces by it, and a second one on the time reverses the order."""
    page.goto(f"{desk_site}/traces")
    page.click(".traces th >> text=Duration")
    expect(page.locator(".traces th [aria-current]")).to_have_text("Duration ↓")
    numbers = page.locator(".traces td.number").all_inner_texts()
    took = [float(text.split()[0]) for text in numbers if text.endswith(" s")]
    assert took == sorted(took, reverse=True)
    chosen = page.locator(".traces th [aria-current]")
    for arrow in "↓↑":
        page.click(".traces th >> text=Started")
        expect(chosen).to_have_text(f"Started {arrow}")


def test_a_phone_shows_name_status_and_duration_first(browser: Browser, desk_site: str) -> None:
    """These columns are on the screen of a phone before the user scrolls sideways."""
    with looking(browser, 390, "light") as page:
        page.goto(f"{desk_site}/traces")
        row = page.locator(".traces tbody tr").first
        for cell in (row.locator("td.name a"), row.locator("td.status"), row.locator("td.number").first):
            box = cell.bounding_box()
            assert box is not None
            assert 0 <= box["x"] < box["x"] + box["width"] <= 390


def test_the_brush_selects_a_time(page: Page, desk_site: str) -> None:
    """Dragging over the chart narrows the list to the traces below the brush."""
    page.goto(f"{desk_site}/traces")
    expect(page.locator(".intervals .wide")).to_be_hidden()
    box = page.locator(".plot .u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.6, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, middle, steps=4)
    expect(page.locator(".u-select")).to_be_visible()
    page.mouse.up()
    page.wait_for_url("**start=*")
    shown = int(page.locator(".figures dd").first.inner_text())
    assert 0 < shown < 75
    expect(page.locator(".traces tbody tr")).to_have_count(min(shown, 50))


def test_a_click_on_the_chart_opens_its_interval(page: Page, desk_site: str) -> None:
    """Each chart of the overview shows numbers under the pointer; a click opens the time of the bar."""
    page.goto(desk_site)
    expect(page.locator(".plot canvas")).to_have_count(4)
    box = page.locator(".plot .u-over").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 2, box["y"] + 20)
    for place, text in ((0, "Traces"), (1, "p50"), (2, "Tokens in"), (3, "Cost")):
        series = page.locator(".plot").nth(place).locator(".u-series").nth(1)
        expect(series).to_contain_text(re.compile(rf"{text}\s*\$?\d"))
    page.mouse.click(box["x"] + 2, box["y"] + 20)
    page.wait_for_url("**start=*")
    expect(page.locator(".figures dd").first).to_have_text("1")


@pytest.mark.parametrize("width", [1440, 390])
def test_the_overview_is_split(browser: Browser, desk_site: str, width: int) -> None:
    """The user chooses a column, and each chart shows its values; on a phone the filters open by a tap."""
    with looking(browser, width, "light") as page:
        page.goto(desk_site)
        expect(page.locator("select[name=split]")).to_be_visible(visible=width > 900)
        if width < 900:
            page.click("text=Filters")
        page.select_option("select[name=split]", "type")
        page.click(".filters > button")
        page.wait_for_url("**split=type**")
        expect(page.locator(".plot canvas").first).to_be_visible()
        expect(page.locator(".plot figcaption span").first).to_have_text("Spans")
        expect(page.locator(".plot").first.locator(".u-series")).to_contain_text(["LLM"])
        check_look(page, "split", width)


def test_charts_without_scripts(browser: Browser, desk_site: str) -> None:
    """Without JavaScript the table of intervals is in place of the charts."""
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(desk_site)
        expect(page.locator(".plot").first).to_be_hidden()
        expect(page.locator(".intervals tbody tr").first).to_be_visible()


@pytest.mark.parametrize(
    ("path", "rows"), [("/sessions", ".groups tbody tr"), ("/traces", ".traces tbody tr")]
)
def test_live_shows_new_traces(page: Page, path: str, rows: str) -> None:
    """With Live on, a new trace appears; while the pointer is over the list, nothing moves."""
    lake = desk()
    with serving(lake) as site:
        page.clock.install()
        page.goto(f"{site}{path}")
        page.check(".live input")
        page.wait_for_load_state("networkidle")
        lake.add([span_row(900, 1, session_id="fresh", user_id="ada")])
        page.hover(f"{rows} >> nth=2")
        page.clock.run_for(11_000)
        expect(page.locator("text=fresh")).to_have_count(0)
        page.mouse.move(0, 0)
        page.clock.run_for(11_000)
        expect(page.locator("text=fresh")).to_be_visible()
        page.goto("about:blank")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_what_it_looks_like(
    browser: Browser, desk_site: str, tmp_path: Path, width: int, scheme: str
) -> None:
    """Axe finds nothing on any list or page of sessions and users, and nothing is beyond the right edge."""
    folder = images(tmp_path)
    with looking(browser, width, scheme) as page:
        for name, path in PATHS.items():
            page.goto(f"{desk_site}{path}")
            check_look(page, name, width)
            page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
        if width < 900:
            for label, path in (("Sessions", "/sessions"), ("Overview", "/"), ("Traces", "/traces")):
                page.click(f'nav[aria-label="Main"] >> text={label}')
                page.wait_for_url(f"{desk_site}{path}")
