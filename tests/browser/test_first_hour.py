"""The first hour of a new user on traces of real agents: from a failure to its example, score, cost and export.

Only the address of the start page is typed. Everything else is a click, a key or a form.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import tracelake
from tests.browser.conftest import serving
from tests.pipeline.spans import AGENTS
from tracelake.tasks.runners import InProcess

DAY_NS = 86_400_000_000_000
SINCE = "2025-10-09T09:00"
USER = "noah_muller_9847"
RIGHT = "I found one direct flight for 3 passengers, HAT136. Shall I book it?"


def day_before(line: bytes) -> bytes:
    """Return an OTLP line with all spans a day earlier, in traces with other ids."""
    traces = json.loads(line)
    for group in traces["resourceSpans"]:
        for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
            span["traceId"] = "ee" + span["traceId"][2:]
            for name in ("startTimeUnixNano", "endTimeUnixNano"):
                span[name] = str(int(span[name]) - DAY_NS)
    return json.dumps(traces).encode() + b"\n"


@pytest.fixture(scope="module")
def agents_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server over a day of real agent traces, and the same traces a day before."""
    folder = tmp_path_factory.mktemp("hour")
    earlier = folder / "yesterday.otlp.jsonl"
    with gzip.open(AGENTS) as lines, earlier.open("wb") as file:
        file.writelines(map(day_before, lines))
    with tracelake.init(folder / "lake") as lake:
        lake.ingest(AGENTS, runner=InProcess())
        lake.ingest(earlier, runner=InProcess())
        lake.hot.set_up()
        with serving(lake) as address:
            yield address


def choose_range(page: Page, start: str, end: str = "") -> None:
    """Set the time range of a list by its form."""
    page.click(".range summary")
    page.fill(".range input[name=start]", start)
    page.fill(".range input[name=end]", end)
    page.click(".range button")


def test_the_first_hour(page: Page, agents_site: str) -> None:
    """A user finds what broke since 9:00 and why, adds and scores an example, compares it with the day before, reads
    the cost by model, and exports the dataset."""
    page.goto(agents_site)

    # What broke since 9:00?
    choose_range(page, SINCE)
    expect(page.locator(".range summary")).to_contain_text("2025-10-09 09:00 – now UTC")  # noqa: RUF001 an en dash
    page.click(".figures a.error")
    expect(page.locator("tr[data-trace] .error")).to_have_count(50)
    page.keyboard.press("/")
    page.keyboard.type(f"user:{USER}")
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-trace]").first).to_contain_text(USER)

    # Which conversation, and why? The error comes first.
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()
    expect(page.locator(".first-error")).to_contain_text("the run did not reach the expected result")
    expect(page.locator(".details .failure")).to_contain_text("the run did not reach the expected result")
    page.click("text=Read as conversation")
    turn = page.locator(".turn.failed:target")
    expect(turn).to_be_in_viewport()
    expect(turn.locator(".role-user").first).to_contain_text("flight from sf to ny")
    turn.locator("h2 a").click()

    # Add it to a dataset, with the output that is expected.
    page.click("text=Add to dataset")
    page.fill("input[name=new_name]", "bookings")
    page.fill("textarea[name=expected]", RIGHT)
    page.click("text=Add example")
    expect(page.locator("h1")).to_have_text("bookings")
    expect(page.locator("table.examples")).to_contain_text(RIGHT)

    # Score it.
    page.click("table.examples td.id a >> nth=1")
    page.click(".details summary:has-text('Label, score or comment')")
    page.fill(".details .fields input[name=name]", "helpfulness")
    page.fill(".details .fields input[name=value]", "0.2")
    page.fill(".details .fields textarea[name=comment]", "books before it asks")
    page.click(".details .fields button")
    expect(page.locator(".details .assessments")).to_contain_text("helpfulness 0.2")
    expect(page.locator(".details .assessments")).to_contain_text("books before it asks")

    # Compare it with the trace of the day before.
    page.click("text=Compare with…")
    choose_range(page, "2025-10-08T00:00", "2025-10-08T23:59")
    page.fill(".filters input[name=query]", f"user:{USER} status:error")
    page.press(".filters input[name=query]", "Enter")
    page.locator("input[name=trace][type=checkbox]").first.check()
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_have_text("Comparison")
    expect(page.locator(".compared .card").nth(1)).to_contain_text("2025-10-08")
    expect(page.locator(".figures-table").first).to_contain_text("Duration")

    # What does each model cost?
    page.click("nav >> text=Overview")
    choose_range(page, SINCE)
    models = page.locator("section", has=page.locator("h2", has_text="Models")).locator("tbody tr")
    expect(models.first).to_contain_text("gpt-4o")
    expect(models.first).to_contain_text("$")

    # Export the dataset.
    page.click("nav >> text=Datasets")
    page.click("tbody a:has-text('bookings')")
    with page.expect_download() as download:
        page.click("text=Export JSON lines")
    (example,) = map(json.loads, Path(download.value.path()).read_text().splitlines())
    assert (download.value.suggested_filename, example["expected_output"]) == ("bookings.jsonl", RIGHT)
    assert "flight from sf to ny" in example["input"]
