"""On a phone, wide tables scroll and the page does not, however long the names are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import serving
from tests.datasets.conversations import a_lake, ingest
from tests.pipeline.spans import a_span

LONG = "a-long-name-" * 50
TRACE, DEEP = 60, 61
PAGES = (
    *("/", "/traces", "/search?q=refund", f"/traces/{TRACE + 1:032x}", "/versions", "/diff?to=main"),
    *("/datasets", "/datasets/refunds", "/pipeline"),
)


@pytest.fixture(scope="module")
def phone_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server over a lake with long names."""
    folder = tmp_path_factory.mktemp("phone")
    with a_lake(folder) as lake:
        keys = ("session.id", "user.id", "input.value", "output.value")
        attributes = [{"key": key, "value": {"stringValue": f"refund-{LONG}"}} for key in keys]
        ingest(lake, folder, a_span(TRACE, 0, name=LONG, attributes=attributes))
        ingest(
            lake,
            folder,
            *(a_span(DEEP, n, parentSpanId=f"{n:016x}" if n else "", name=f"step {n}") for n in range(60)),
        )
        dataset = lake.datasets.create("refunds", LONG)
        dataset.add(search="refund", metadata={"kind": LONG}, message=LONG, committer="ada")
        with serving(lake) as address:
            yield address


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits(page: Page, phone_site: str, path: str) -> None:
    """No element is beyond the right edge of the page."""
    page.set_viewport_size({"width": 375, "height": 812})
    page.goto(f"{phone_site}{path}")
    expect(page.locator("main")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.parametrize("width", [375, 1280])
def test_a_deep_span_has_its_name(page: Page, phone_site: str, width: int) -> None:
    """However deep a span is, its name is left of the bar with some letters readable."""
    page.set_viewport_size({"width": width, "height": 812})
    page.goto(f"{phone_site}/traces/{DEEP + 1:032x}")
    label = page.locator(".row").last.locator(".label").bounding_box()
    name = page.locator(".row").last.locator(".label a").bounding_box()
    assert label is not None
    assert name is not None
    assert name["width"] > 40
    assert name["x"] + name["width"] <= label["x"] + label["width"] + 1
