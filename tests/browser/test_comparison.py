"""From the list to a trace, its neighbours, and a comparison; keys on lists, and times in the zone of the browser.

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

from tests.browser.agent_trace import AGENT, QUESTION, agent_trace
from tests.browser.conftest import serving
from tests.browser.test_trace_page import check_look, images, looking
from tests.server.fake_lake import FakeLake, span_row
from tracelake.results import Row

EARLIER = f"{8:032x}"
COMPARISON = f"/traces/{EARLIER}/compare/{AGENT}"
DAY_NS = 86_400_000_000_000


def earlier_run() -> list[Row]:
    """Return the run of the agent one day before, in which the hotel search worked."""
    rows = []
    for span in agent_trace():
        times = {name: span[name] - DAY_NS for name in ("start_ns", "end_ns")}
        row: dict[str, Any] = span | times | {"trace_id": EARLIER, "cost": 0.002 if span["model"] else None}
        if span["status"] == "ERROR":
            row |= {"status": None, "status_message": None, "events": [], "duration_ns": 900_000_000}
            row["end_ns"] = row["start_ns"] + row["duration_ns"]
            row["output"] = json.dumps({"hotel": "Hotel de la Gare", "price_eur": 128})
        if span["span_id"] == f"{8:016x}":
            text = "I found a train and a hotel. You can book **TGV 6611** and the **Hotel de la Gare** for 128 EUR."
            row["output"] = json.dumps(
                {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
            )
        if span["parent_span_id"] is None:
            row["input"] = QUESTION.replace("Thursday at 14:00", "Wednesday at 9:00")
        rows.append(row)
    check = span_row(8, 20, 1, name="check policy", type="tool", output="within the policy")
    start_ns = rows[0]["start_ns"] + 6_000_000_000
    return [*rows, check | {"start_ns": start_ns, "end_ns": start_ns + 80_000_000, "duration_ns": 80_000_000}]


@pytest.fixture(scope="module")
def runs_site() -> Iterator[str]:
    """Return the address of a server over two runs of an agent and 60 other traces."""
    others = [span_row(number, 1, name=f"step {number:02d}") for number in range(100, 160)]
    with serving(FakeLake([*agent_trace(), *earlier_run(), *others])) as address:
        yield address


def test_two_boxes_lead_to_a_comparison(page: Page, runs_site: str) -> None:
    """Two checked boxes of the list open the comparison, which shows the first span that differs."""
    page.goto(f"{runs_site}/?name=plan")
    expect(page.locator(".compare")).to_be_hidden()
    page.locator("input[name=trace]").nth(1).check()
    expect(page.locator(".compare output")).to_have_text("Choose one more trace")
    page.locator("input[name=trace]").nth(0).check()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_have_text("Comparison")
    expect(page.locator(".pair h2")).to_contain_text("GET /v2/hotels")
    page.click('.pairs >> text="chat gpt-4o" >> nth=2')
    expect(page.locator(".pair h2")).to_contain_text("chat gpt-4o")
    expect(page.locator(".pair ins").first).to_be_visible()
    assert "base=" in page.url
    chosen = page.locator(".pairs tr.chosen")
    expect(chosen).to_have_count(1)
    page.reload()
    expect(page.locator(".pair h2")).to_contain_text("chat gpt-4o")


def test_compare_with_from_a_trace(page: Page, runs_site: str) -> None:
    """A trace leads to the list of traces with its name, where one box chooses the other side."""
    page.goto(f"{runs_site}/traces/{AGENT}")
    page.click("text=Compare with…")
    expect(page.locator("tr[data-trace]")).to_have_count(2)
    expect(page.locator("input[name=trace][type=checkbox]")).to_have_count(1)
    page.check("input[name=trace][type=checkbox]")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url(f"**/traces/{AGENT}/compare/{EARLIER}")
    page.click("text=Swap A and B")
    page.wait_for_url(f"**{COMPARISON}")


def test_neighbours_of_the_list(page: Page, runs_site: str) -> None:
    """Next and previous walk through the list that the user came from, over the end of its page."""
    page.goto(f"{runs_site}/traces?order=oldest&name=step&limit=2")
    page.click("text=step 100")
    expect(page.locator(".neighbours a")).to_have_text("1 of 2")
    page.get_by_role("button", name="Next trace").click()
    expect(page.locator("h1")).to_have_text("step 101")
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()
    page.keyboard.press("]")
    expect(page.locator("h1")).to_have_text("step 102")
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()
    page.keyboard.press("[")
    expect(page.locator("h1")).to_have_text("step 101")
    page.click(".neighbours a")
    expect(page.locator("tr[data-trace]").first).to_contain_text("step 100")
    page.goto(f"{runs_site}/traces/{EARLIER}")
    expect(page.locator(".neighbours")).to_be_hidden()


def test_the_minimap_zooms(page: Page, runs_site: str) -> None:
    """Dragging on the minimap shows a range of time in the waterfall; a button shows all of it again."""
    page.goto(f"{runs_site}/traces/{AGENT}")
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()
    area = page.locator(".minimap svg").bounding_box()
    assert area is not None
    y = area["y"] + 20
    page.mouse.move(area["x"] + area["width"] / 4, y)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] / 2, y, steps=4)
    page.mouse.up()
    expect(page.locator(".minimap output")).to_have_text(re.compile(r"3\.1\d s . 6\.2\d s"))
    track = page.locator(".track svg").first
    assert float(str(track.get_attribute("viewBox")).split()[0]) == pytest.approx(250, abs=5)
    page.click("text=Show all")
    expect(track).to_have_attribute("viewBox", "0 0 1000 10")
    expect(page.locator(".ticks span").last).to_have_text("12.4 s")


def test_keys_on_the_list(page: Page, runs_site: str) -> None:
    """Keys move through the rows, choose one, focus the filter, show help, and open a trace."""
    page.goto(f"{runs_site}/traces?order=oldest")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("input[name=trace]").nth(1)).to_be_checked()
    page.keyboard.press("x")
    page.keyboard.press("G")
    page.keyboard.press("k")
    page.keyboard.press("g")
    page.keyboard.press("/")
    expect(page.locator(".filters input[name=query]")).to_be_focused()
    page.keyboard.type("j?")
    expect(page.locator(".filters input[name=query]")).to_have_value("j?")
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("dialog.keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog.keys")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("plan trip")


def test_times_in_the_zone_of_the_browser(browser: Browser, runs_site: str) -> None:
    """Times are in UTC until the user chooses local time, which the browser remembers."""
    with browser.new_context(timezone_id="Asia/Kolkata") as context:
        page = context.new_page()
        page.goto(f"{runs_site}/traces/{AGENT}")
        started = page.locator(".summary time")
        expect(started).to_have_text(re.compile("2025-10-09 08:59:20(.000000)? UTC"))
        page.click(".account summary")
        page.click("text=local time")
        expect(started).to_have_text(re.compile("2025-10-09 14:29:20(.000000)? Asia/(Kolkata|Calcutta)"))
        page.reload()
        expect(started).to_have_text(re.compile("2025-10-09 14:29:20"))
        page.click(".account summary")
        page.locator(".time-zone input").first.check()
        expect(started).to_have_text(re.compile("2025-10-09 08:59:20(.000000)? UTC"))


def test_reading_without_scripts(browser: Browser, runs_site: str) -> None:
    """Without scripts, boxes still lead to the comparison, and a link selects a pair."""
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{runs_site}/?name=plan")
        for box in page.locator("input[name=trace]").all():
            box.check()
        page.get_by_role("button", name="Compare").click()
        page.click('.pairs >> text="check policy"')
        expect(page.locator(".pair dd", has_text="absent")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_look_of_a_comparison(
    browser: Browser, runs_site: str, tmp_path: Path, width: int, scheme: str
) -> None:
    """Axe finds nothing on the comparison, the menu and the sign-in page, and nothing is beyond the right edge."""
    folder = images(tmp_path)
    with looking(browser, width, scheme) as page:
        last = f"base={8:016x}&other={8:016x}"
        for name, path in (("comparison", f"{COMPARISON}?{last}"), ("sign-in", "/sign-in"), ("menu", "/")):
            page.goto(f"{runs_site}{path}")
            if name == "menu":
                page.click(".account summary")
            check_look(page, name, width)
            if name != "menu":
                page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
