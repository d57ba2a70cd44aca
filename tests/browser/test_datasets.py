"""Datasets in Chromium: from a failing conversation to an example, an evaluation, and the comparison of two runs.

With TRACELAKE_SCREENSHOTS=1 the screenshots go to docs/images.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

import tracelake
from tests.browser.conftest import serving
from tests.browser.test_trace_page import check_look, images, looking
from tests.datasets.conversations import ids, ingest, talk
from tracelake import Lake

QUESTIONS = (
    (
        "Can I cancel flight NW-2291 and get my money back?",
        "Your fare is not refundable. I cancelled nothing.",
    ),
    ("Move my flight to Berlin to Friday, please.", "I moved you to NW-118 on Friday at 09:40."),
    ("May I take a guitar into the cabin?", "Yes, as your hand luggage, if it is shorter than 115 cm."),
    (
        "Which documents does my dog need for Norway?",
        "A pet passport with a rabies vaccination and a worm treatment.",
    ),
)
RIGHT = "Yes. You cancelled within 24 hours of booking, so the whole fare of 214 EUR goes back to your card."


class Site(NamedTuple):
    """A lake and the address of a server over it."""

    lake: Lake
    address: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server over a lake with four conversations, the first of which failed."""
    folder = tmp_path_factory.mktemp("datasets")
    with tracelake.init(folder / "lake", buckets=2) as lake:
        spans = []
        for number, (question, answer) in enumerate(QUESTIONS):
            chat = [{"role": "user", "content": question}]
            said = [{"role": "assistant", "content": answer}]
            start, failed = 10 * number, {"status": {"code": 2, "message": "fare rules did not answer"}}
            spans += [
                talk(number, 0, question, None, name="airline desk", start=start, end=start + 8),
                talk(number, 1, json.dumps({"messages": chat}), json.dumps(said), name="chat gpt-4o",
                     parentSpanId=f"{1:016x}", start=start + 1, end=start + 6, **(failed if number == 0 else {})),
            ]  # fmt: skip
            spans[-1]["attributes"] += [
                {"key": "openinference.span.kind", "value": {"stringValue": "LLM"}},
                {"key": "llm.model_name", "value": {"stringValue": "gpt-4o"}},
            ]
        ingest(lake, folder, *spans)
        dataset = lake.datasets.create(
            "airline", "Questions about bookings, with the right answers", message="made"
        )
        for number in (1, 2, 3):
            dataset.put(dataset.propose(f"{number + 1:032x}"), message=f"question {number}", committer="ada")
        with serving(lake) as address:
            yield Site(lake, address)


def exact(output: str, expected: str) -> bool:
    """Score whether the output is the expected one."""
    return output == expected


def test_from_a_failing_conversation_to_compared_runs(page: Page, site: Site) -> None:
    """The user adds the failing conversation with the right answer, evaluates two versions of the agent, and sees the
    regressions first."""
    page.goto(f"{site.address}/traces?errors=true")
    page.click("text=airline desk")
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()
    page.locator(".row", has_text="airline desk").locator("a").click()
    expect(page.locator("#span-title")).to_contain_text("airline desk")
    page.click("text=Add to dataset")
    expect(page.locator('textarea[name="input"]')).to_have_value(QUESTIONS[0][0])
    expect(page.locator('textarea[name="expected"]')).to_have_value(QUESTIONS[0][1])
    page.fill('textarea[name="expected"]', "")
    page.click("text=Add example")
    expect(page.locator("[role=alert]")).to_contain_text("no expected output")
    page.fill('textarea[name="expected"]', RIGHT)
    page.click("text=Check again")
    expect(page.locator("h1")).to_have_text("airline")
    expect(page.locator(f"[id='example-{ids(0, 0)}']")).to_contain_text(RIGHT)

    page.locator(f"[id='example-{ids(1, 0)}'] >> text=Edit").click()
    page.fill('textarea[name="expected"]', "You are on NW-118, Friday, 09:40.")
    page.click("text=Save as a new version")
    page.select_option('select[name="from"]', index=0)
    page.click("button >> text=Compare")
    expect(page.locator(".change.changed ins").first).to_have_text("You are on NW-118, Friday,")

    answers = dict(QUESTIONS)
    dataset = site.lake.datasets["airline"]
    dataset.evaluate(answers.get, [exact], name="prompt 1", committer="ada")

    def better(question: str) -> str:
        if "dog" in question:
            raise TimeoutError("no answer from the model in 30 s")
        return RIGHT if "NW-2291" in question else answers[question]

    dataset.evaluate(better, [exact], name="prompt 2", committer="ada")
    page.goto(f"{site.address}/datasets/airline")
    page.click("text=All evaluation runs")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.click("button >> text=Compare")
    expect(page.locator("h1")).to_have_text("prompt 1 → prompt 2")
    expect(page.locator(".badge.regression").first).to_have_text("1 regression")
    expect(page.locator("article").first).to_contain_text("no answer from the model in 30 s")
    expect(page.locator("article.improvement")).to_contain_text(RIGHT)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_what_it_looks_like(browser: Browser, site: Site, tmp_path: Path, width: int, scheme: str) -> None:
    """Axe finds nothing on the pages of datasets, runs and versions, and nothing is beyond the right edge."""
    dataset = site.lake.datasets["airline"]
    if len(dataset.runs()) < 2:
        for name in ("prompt 1", "prompt 2"):
            dataset.evaluate(dict(QUESTIONS).get, [exact], name=name)
    if "labels" not in [branch.name for branch in site.lake.branches()]:
        site.lake.create_branch("labels")
        site.lake.datasets.get("airline", "labels").update(ids(2, 0), expected="No.", message="stricter")
        dataset.update(ids(2, 0), expected="Yes, if it is short.", message="shorter")
    of = "/datasets/airline"
    paths = {
        "datasets": "/datasets",
        "add-to-dataset": f"/add-to-dataset?trace={1:032x}&span={1:016x}",
        "dataset": of,
        "example": f"{of}/examples/{ids(1, 0)}",
        "dataset-diff": f"{of}/diff?from=main~2",
        "runs": f"{of}/runs",
        "run": f"{of}/runs/prompt%201",
        "run-comparison": f"{of}/comparison?base=prompt%201&run=prompt%202",
        "branches": "/versions",
        "merge": "/versions/merge?source=labels&into=main",
    }
    folder = images(tmp_path)
    with looking(browser, width, scheme) as page:
        for name, path in paths.items():
            page.goto(f"{site.address}{path}")
            check_look(page, name, width)
            page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
