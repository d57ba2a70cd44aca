"""The list, search, the waterfall and its details, as a user sees them in Chromium."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.lake_to_look_at import BAD, HOSTILE, HUGE, HUGE_TEXT, LONG, ORDINARY, SHARED


def selected(page: Page) -> str:
    """Return the name of the selected span."""
    return page.locator('.row[aria-selected="true"] a').inner_text()


def open_trace(page: Page, site: str, trace_id: str, rest: str = "") -> None:
    """Open the page of a trace, and wait until its script runs."""
    page.goto(f"{site}/traces/{trace_id}{rest}")
    expect(page.locator(".waterfall[data-ready] .row").first).to_be_visible()


def test_from_the_list_to_a_span(page: Page, site: str) -> None:
    """A user filters the list, opens a trace and clicks a span: its details appear, and the address names it."""
    page.goto(f"{site}/traces")
    page.select_option('select[name="service"]', "agent")
    page.click("text=Show")
    expect(page.locator(".traces tbody tr")).to_have_count(1)
    expect(page.locator(".traces tbody .error")).to_have_text("✕ 1 error")
    page.click(".traces tbody a >> nth=0")
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()
    page.click('.row:has-text("look")')
    details = page.locator(".details")
    expect(details.locator("h2")).to_contain_text("look")
    for text in ("gpt-4o", "cache miss", "2.00 ms after the start", "key", "service.name"):
        expect(details).to_contain_text(text)
    assert page.url.endswith(f"/traces/{ORDINARY}#span={3:016x}")


def test_a_shared_address_selects_its_span(page: Page, site: str) -> None:
    """An address with a span opens with that span selected, and JSON in it is laid out."""
    open_trace(page, site, ORDINARY, f"#span={1:016x}")
    expect(page.locator(".details h2")).to_contain_text("answer")
    assert selected(page) == "answer"
    expect(page.locator(".details pre").first).to_have_text('{\n  "question": [\n    1,\n    2\n  ]\n}')


def test_w11_the_details_are_of_the_workspace(page: Page, site: str) -> None:
    """Spans of several workspaces with one id have separate details and addresses (W11)."""
    heading, span = page.locator(".details h2"), f"{1:016x}"
    open_trace(page, site, SHARED)
    for name, named in (("ü&c", "%C3%BC%26c"), ("a/b", "a%2Fb")):
        page.click(f'.row:has-text("of {name}")')
        expect(heading).to_contain_text(f"of {name}")
        address = f"#span={span}&workspace={named}"
        assert page.url.endswith(address)
        assert str(page.locator(".span-actions .menu a").get_attribute("href")).endswith(
            f"?workspace={named}"
        )
        page.goto(site)
        open_trace(page, site, SHARED, address)
        expect(heading).to_contain_text(f"of {name}")
        assert selected(page) == f"of {name}"
    page.goto(site)
    open_trace(page, site, SHARED, f"#span={span}")
    expect(heading).to_contain_text("of default")
    open_trace(page, site, SHARED, f"#span={span}&workspace=nobody")
    expect(page.locator(".details")).to_have_text(f"This trace has no span {span} of nobody.")


def test_a_click_before_the_script_is_there(page: Page, site: str) -> None:
    """A click on a row before the script has loaded opens the page with these details."""
    held: list[Route] = []
    page.route("**/waterfall.js", lambda route: held.insert(0, route))
    page.goto(f"{site}/traces/{ORDINARY}", wait_until="commit")
    page.click('.row:has-text("look")')
    page.wait_for_url(f"**#span={3:016x}", wait_until="commit")
    expect(page.locator(".details h2")).to_contain_text("look")
    expect(page.locator(".row[aria-selected=true]")).to_contain_text("look")
    held.pop(0).continue_()
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()
    expect(page.locator(".details h2")).to_contain_text("look")


def test_keyboard(page: Page, site: str) -> None:
    """Arrow keys move over visible rows, fold and unfold."""
    open_trace(page, site, ORDINARY)
    page.focus(".waterfall")
    assert selected(page) == "leap"  # the span that failed
    names = []
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
        names.append(selected(page))
    assert names == ["answer", "plan", "look", "leap", "look"]
    page.keyboard.press("ArrowLeft")
    assert selected(page) == "plan"
    page.keyboard.press("ArrowLeft")
    expect(page.locator('.row:has-text("look")')).to_be_hidden()
    page.keyboard.press("ArrowDown")
    assert selected(page) == "leap"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(page.locator('.row:has-text("look")')).to_be_visible()


def test_folding_with_the_mouse(page: Page, site: str) -> None:
    """Folding a parent hides all below; unfolding it leaves a folded child folded."""
    open_trace(page, site, ORDINARY)
    root, child = page.locator(".row .fold").nth(0), page.locator(".row .fold").nth(1)
    child.click()
    root.click()
    expect(page.locator(".row:visible")).to_have_count(1)
    root.click()
    expect(page.locator(".row:visible")).to_have_count(3)


def test_bars_stand_in_proportion(page: Page, site: str) -> None:
    """The bar of a tenth of the trace is about a tenth as wide as the root's, and begins at its time."""
    open_trace(page, site, ORDINARY)
    boxes = [bar.bounding_box() for bar in page.locator(".row rect").all()]
    root, plan = boxes[0], boxes[1]
    assert root is not None
    assert plan is not None
    assert plan["width"] / root["width"] == pytest.approx(1 / 9, abs=0.03)
    assert (plan["x"] - root["x"]) / root["width"] == pytest.approx(1 / 9, abs=0.03)


def test_hostile_text_is_inert(page: Page, site: str) -> None:
    """Script and HTML in every field of a span are shown as text, on every page; nothing runs or loads."""
    for path in ("/", "/traces", f"/traces/{BAD}#span={1:016x}", "/search?q=needle"):
        page.goto(site + path)
        expect(page.locator("main")).to_contain_text(HOSTILE[:25])
    open_trace(page, site, BAD, f"#span={1:016x}")
    expect(page.locator(".details h2")).to_contain_text(HOSTILE)
    assert page.locator(".details td", has_text=HOSTILE).count() > 10
    assert page.locator("main img, .details script").count() == 0


def test_search_leads_to_the_span(page: Page, site: str) -> None:
    """The search box finds text, marks it, and its link opens the trace with the span selected."""
    page.goto(site)
    page.fill(".find input", "then leap")
    page.press(".find input", "Enter")
    expect(page.locator("mark")).to_have_text("then leap")
    page.click(".hits a")
    expect(page.locator(".details h2")).to_contain_text("plan")


def test_ten_thousand_spans(page: Page, site: str) -> None:
    """A trace of 10,000 spans opens as pages of 2,000, shows its range, and finds a span on another page."""
    open_trace(page, site, LONG)
    assert page.locator(".row").count() <= 2_000
    expect(page.locator(".note")).to_contain_text("10,000 spans; the page shows 1–2,000")  # noqa: RUF001 an en dash
    page.click("text=Next")
    expect(page.locator(".note")).to_contain_text("2,001–4,000")  # noqa: RUF001 an en dash
    open_trace(page, site, LONG, f"#span={2:016x}")
    expect(page.locator(".details h2")).to_contain_text("step 2")
    assert selected(page) == "step 2"


def test_megabytes_of_text(page: Page, site: str) -> None:
    """Megabytes of text are cut in the details, and shown whole on request."""
    open_trace(page, site, HUGE, f"#span={1:016x}")
    excerpt, text = page.locator(".pretty .excerpt"), page.locator(".pretty details .prose")
    expect(excerpt).to_be_visible()
    assert len(excerpt.inner_text()) < 1_100
    page.click("text=Show the first 20,000 of 3,000,000 characters")
    expect(text).to_be_visible()
    expect(excerpt).to_be_hidden()
    assert 19_000 < len(text.inner_text()) < 30_000
    page.click("text=Show all 3,000,000 characters")
    block = page.locator(".pretty pre")
    assert block.evaluate("block => block.textContent.length") == len(HUGE_TEXT)


def test_json_beside_the_page(page: Page, site: str) -> None:
    """The JSON link opens the same data."""
    open_trace(page, site, ORDINARY)
    page.click(".twin")
    assert page.url == f"{site}/api/v1/traces/{ORDINARY}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(browser: Browser, site: str, scheme: str) -> None:
    """The page follows the user's colour scheme: dark text on light ground, or the reverse."""
    with browser.new_context(color_scheme="dark" if scheme == "dark" else "light") as context:
        page = context.new_page()
        page.goto(site)
        ground = page.evaluate(
            "getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)"
        )
    assert (sum(ground) < 3 * 128) == (scheme == "dark")


def test_without_scripts(browser: Browser, site: str) -> None:
    """Without JavaScript a user reads the tree, the details of each span, and long messages."""
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{site}/traces/{ORDINARY}")
        assert page.locator(".row rect").count() == 4
        expect(page.locator(".details")).to_contain_text("fell")
        page.click('.row:has-text("look")')
        expect(page.locator(".details h2")).to_contain_text("look")
        page.goto(f"{site}/traces/{HUGE}?span={1:016x}")
        page.click(".unfold")
        expect(page.locator(".details details .prose")).to_be_visible()
        page.click("text=Show less")
        expect(page.locator(".pretty .excerpt")).to_be_visible()
