"""The page of a trace: messages as chat, the first error, the tree, and hostile content.

With TRACELAKE_SCREENSHOTS=1 the screenshots go to docs/images.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.agent_trace import AGENT, ATTACK, agent_lake, agent_trace
from tests.browser.conftest import serving
from tests.browser.lake_to_look_at import HOSTILE

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".tools" / "node_modules" / "axe-core" / "axe.min.js"
LAST_CALL = f"?span={8:016x}"


@pytest.fixture(scope="module")
def agent_site() -> Iterator[str]:
    """Return the address of a server over the traces of agents."""
    with serving(agent_lake()) as address:
        yield address


def open_trace(page: Page, site: str, trace_id: str = AGENT, rest: str = "") -> None:
    """Open a trace, and wait until the script runs."""
    page.goto(f"{site}/traces/{trace_id}{rest}")
    expect(page.locator(".waterfall[data-ready]")).to_be_visible()


def heading(page: Page) -> str:
    """Return the name of the span in the details."""
    return page.locator(".span h2 > span:last-child").inner_text()


def test_the_first_error_is_open(page: Page, agent_site: str) -> None:
    """The page opens with the span that caused the error, links to it at the top, and folds its stack trace."""
    open_trace(page, agent_site)
    expect(page.locator(".first-error")).to_contain_text("GET /v2/hotels")
    expect(page.locator(".first-error")).to_contain_text("no answer from hotels.internal within 5 s")
    assert heading(page) == "GET /v2/hotels"
    stack = page.locator(".failure pre")
    expect(stack).to_be_hidden()
    page.click("text=Stack trace")
    expect(stack).to_contain_text('File "/app/tools/hotels.py", line 42')
    page.click('.row:has-text("train_search")')
    expect(page.locator(".span h2")).to_contain_text("train_search")
    page.click(".first-error a")
    expect(page.locator(".span h2")).to_contain_text("GET /v2/hotels")


def test_messages_are_a_conversation(page: Page, agent_site: str) -> None:
    """Messages have roles and Markdown; reasoning is folded, and a tool call has its arguments."""
    open_trace(page, agent_site, rest=f"?span={3:016x}")
    assert page.locator(".message h4").all_inner_texts() == ["System", "User", "Assistant"]
    expect(page.locator(".prose strong").first).to_have_text("Northwind")
    expect(page.locator(".prose li")).to_have_count(3)
    expect(page.locator(".reasoning .prose")).to_be_hidden()
    page.click(".reasoning summary")
    expect(page.locator(".reasoning .prose")).to_contain_text("two hours")
    expect(page.locator(".output .call")).to_contain_text('"arrive_before": "13:30"')
    page.click("text=Raw")
    expect(page.locator(".raw pre").first).to_contain_text('"messages"')
    expect(page.locator(".pretty")).to_be_hidden()


def test_a_growing_history_is_folded(page: Page, agent_site: str) -> None:
    """Messages that the model call before had are folded; within them the tool call has its result."""
    open_trace(page, agent_site)
    page.click('.row:has-text("chat gpt-4o") >> nth=2')
    earlier = page.locator(".earlier")
    expect(earlier.locator("summary").first).to_contain_text("4 earlier messages")
    expect(page.locator(".input > .message")).to_have_count(1)
    expect(page.locator(".input > .message")).to_contain_text("Error: no answer within 5 s")
    expect(page.locator(".input > .message code").first).to_have_text("hotel_search")
    earlier.locator("summary").first.click()
    expect(earlier.locator(".result")).to_contain_text("TGV 6611")
    page.reload()
    expect(page.locator(".earlier summary").first).to_contain_text("4 earlier messages")


def test_figures_along_the_tree(page: Page, agent_site: str) -> None:
    """A row has its type as a word, tokens with those below it; the details have self time and the subtree."""
    open_trace(page, agent_site)
    root = page.locator(".row").first
    expect(root.locator(".type-word")).to_have_text("Agent")
    expect(root.locator(".token-count")).to_have_text("1,903 / 333")
    root.click(position={"x": 200, "y": 10})
    expect(page.locator('[data-fact="tree"] dd')).to_have_text("1,903 / 333")
    expect(page.locator('[data-fact="self"] dd')).to_have_text("210 ms")
    critical = page.locator(".row.critical .label > a").all_inner_texts()
    assert "GET /v2/hotels" in critical
    assert "moderate input" not in critical  # it runs during the policy search


def test_keyboard_and_filters(page: Page, agent_site: str) -> None:
    """Keys move, find and close; a type hides other rows; levels collapse the tree."""
    open_trace(page, agent_site)
    page.keyboard.press("g")
    expect(page.locator(".span h2")).to_contain_text("plan trip")
    page.keyboard.press("j")
    expect(page.locator(".span h2")).to_contain_text("travel policy")
    page.keyboard.press("k")
    page.keyboard.press("e")
    expect(page.locator(".span h2")).to_contain_text("hotel_search")
    page.keyboard.press("/")
    page.keyboard.type("chat")
    expect(page.locator(".found-count")).to_have_text("3 found")
    page.keyboard.press("Enter")
    expect(page.locator(".span h2")).to_contain_text("chat gpt-4o")
    page.keyboard.press("Escape")
    expect(page.locator(".find-span")).to_have_value("")
    page.keyboard.press("?")
    expect(page.locator("dialog.keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.select_option(".type-filter", "tool")
    expect(page.locator(".row:visible")).to_have_count(2)
    page.select_option(".type-filter", "")
    page.select_option(".depth", "1")
    expect(page.locator(".row:visible")).to_have_count(1)
    page.select_option(".depth", "")
    expect(page.locator(".row:visible")).to_have_count(10)


def test_copying(browser: Browser, agent_site: str) -> None:
    """A user copies a link to the span, its JSON, a message, a curl command and the trace; a download is complete."""
    with browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context:
        page = context.new_page()
        open_trace(page, agent_site, rest=LAST_CALL)

        def copied(selector: str) -> str:
            page.click(selector)
            expect(page.locator(selector)).to_have_text("Copied")
            return str(page.evaluate("navigator.clipboard.readText()"))

        page.click(".span-actions summary")
        assert copied(".span-actions .copy >> nth=0") == f"{agent_site}/traces/{AGENT}{LAST_CALL}"
        assert json.loads(copied(".span-actions .copy >> nth=1"))["span_id"] == f"{8:016x}"
        assert copied(".output .message .copy").startswith("I found a train")
        page.click(".actions summary")
        curl = copied(".actions .copy >> nth=1")
        assert curl == f"curl -fsS '{agent_site}/api/v1/traces/{AGENT}?format=otlp'"
        (resource, *_) = json.loads(copied(".actions .copy >> nth=2"))["resourceSpans"]
        assert resource["scopeSpans"][0]["spans"][0]["name"] == "plan trip"
        with page.expect_download() as saved:
            page.click(".actions >> text=Download")
        assert saved.value.suggested_filename == f"trace-{AGENT}.json"
        assert json.loads(saved.value.path().read_text("utf-8"))["resourceSpans"][0] == resource


@pytest.mark.parametrize(
    "button",
    [
        ".actions .copy >> nth=2",
        ".actions >> text=Download",
        ".span-actions .copy >> nth=1",
        ".output .message .copy",
    ],
    ids=["otlp", "download", "span", "message"],
)
def test_a_refusal_is_shown_and_not_copied(browser: Browser, button: str) -> None:
    """If the server refuses, the page shows its reason, the clipboard stays as it was, and nothing is saved."""
    lake = agent_lake()
    with (
        serving(lake) as site,
        browser.new_context(permissions=["clipboard-read", "clipboard-write"]) as context,
    ):
        page = context.new_page()
        page.on("download", lambda download: pytest.fail(f"saved {download.suggested_filename}"))
        open_trace(page, site, rest=LAST_CALL)
        lake.clear()
        page.evaluate("navigator.clipboard.writeText('before')")
        if "actions" in button:
            page.click(f"{button.split(maxsplit=1)[0]} summary")
        page.locator(button).first.click()
        expect(page.locator("#action-problem")).to_contain_text(f"no trace {AGENT}")
        assert page.evaluate("navigator.clipboard.readText()") == "before"
        if "Download" in button:
            return
        lake.add(agent_trace())
        page.locator(button).first.click()
        expect(page.locator(button).first).to_have_text("Copied")
        expect(page.locator("#action-problem")).to_have_count(0)


def test_hostile_messages_are_inert(page: Page, agent_site: str) -> None:
    """Scripts, unsafe links and remote images in messages do nothing; the page stays small."""
    open_trace(page, agent_site, ATTACK)
    expect(page.locator(".pretty")).to_contain_text(HOSTILE[:25])
    assert page.locator(".details img, .details script, .details [onerror]").count() == 0
    links = page.locator(".prose a, .attachment a")
    addresses = [str(link.get_attribute("href")) for link in links.all()]
    assert addresses
    assert all(address.startswith(("https://", f"/traces/{ATTACK}/image?")) for address in addresses)
    assert all("noopener" in str(link.get_attribute("rel")) for link in page.locator(".prose a").all())
    assert len(page.content()) < 400_000
    expect(page.locator(".message")).to_have_count(201)
    page.click("text=Show image")
    image = page.locator(".attachment img")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    page.click("text=Show all 500,000 characters")
    assert page.locator(".input pre").last.evaluate("block => block.textContent.length") == 500_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_what_it_looks_like(
    browser: Browser, agent_site: str, tmp_path: Path, width: int, scheme: str
) -> None:
    """Axe finds nothing, nothing is beyond the right edge, and on a phone the details come as a sheet."""
    folder = images(tmp_path)
    with looking(browser, width, scheme) as page:
        open_trace(page, agent_site)
        page.add_script_tag(path=AXE)
        assert findings(page) == []
        page.click('.row:has-text("chat gpt-4o") >> nth=2')
        expect(page.locator(".span h2")).to_contain_text("chat gpt-4o")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert findings(page) == []
        page.mouse.move(0, 0)
        page.screenshot(path=folder / f"trace-{width}-{scheme}.png")
        if width < 900:
            page.click(".close")
            expect(page.locator(".details")).not_to_have_class("sheet")
            page.screenshot(path=folder / f"trace-tree-{width}-{scheme}.png")
        page.click("text=Call graph")
        expect(page.locator(".graph svg").first).to_be_visible()
        check_look(page, "call-graph", width)
        page.screenshot(path=folder / f"call-graph-{width}-{scheme}.png")


@contextmanager
def looking(browser: Browser, width: int, scheme: str) -> Iterator[Page]:
    """Open a page of a desktop or phone in a colour scheme, into which axe may be loaded."""
    assert AXE.is_file(), "no axe-core: run scripts/setup-browser"
    with browser.new_context(
        viewport={"width": width, "height": 900 if width > 900 else 844},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=True,
    ) as context:
        yield context.new_page()


def images(tmp_path: Path) -> Path:
    """Return the directory for screenshots: the documentation's if they are wanted there."""
    return ROOT / "docs" / "images" if os.environ.get("TRACELAKE_SCREENSHOTS") else tmp_path


def check_look(page: Page, name: str, width: int) -> None:
    """Check that axe finds nothing on a page, and that nothing is beyond the right edge."""
    page.add_script_tag(path=AXE)
    assert (name, findings(page)) == (name, [])
    assert page.evaluate("document.documentElement.scrollWidth") <= width, name


def findings(page: Page) -> list[str]:
    """Return the findings of axe with the elements."""
    found = page.evaluate("axe.run().then(result => result.violations)")
    return [f"{each['id']}: {[node['html'][:200] for node in each['nodes'][:3]]}" for each in found]
