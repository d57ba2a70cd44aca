"""The search page in Chromium over a real index: completion, clicks, sorting, paging, errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import serving
from tests.browser.lake_to_look_at import HOSTILE
from tests.browser.test_trace_page import check_look, looking
from tests.datasets.conversations import a_lake, ingest, talk
from tests.server.fake_lake import FakeLake


@pytest.fixture(scope="module")
def search_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server with questions about refunds: some failed, one is hostile."""
    folder = tmp_path_factory.mktemp("search")
    failed = {"code": 2}
    with a_lake(folder) as lake:
        ingest(
            lake,
            folder,
            *(
                talk(10 + n, 0, f"refund {n}", "no", start=n, status=failed if n % 3 else {})
                for n in range(30)
            ),
            talk(50, 0, "refund", "tool", name=HOSTILE),
        )
        with serving(lake) as address:
            yield address


def test_a_search_is_completed_narrowed_sorted_paged_and_corrected(page: Page, search_site: str) -> None:
    """A user gets from some letters to the span by keys and clicks, with the exact number at each step."""
    page.goto(search_site)
    field, offered = page.locator(".find input[name=q]"), page.locator(".completions li")
    for width in (400, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        box = field.bounding_box()
        assert box is not None
        assert box["width"] > 300, "a field to type in, on a telephone, too"
    field.press_sequentially("refund stat")
    expect(offered).to_have_text(["status:"])
    field.press("ArrowDown")
    expect(offered.first).to_have_attribute("aria-selected", "true")
    field.press("Enter")
    expect(field).to_have_value("refund status:")
    offered.filter(has_text="error").click()
    expect(field).to_have_value("refund status:error")
    expect(page.locator(".completions")).to_be_hidden()
    field.press("Enter")
    expect(page.locator(".sums h1")).to_have_text("20 spans")

    status = page.locator(".facets section", has=page.locator("h2", has_text="status"))
    expect(status.locator(".count")).to_have_text("20")
    page.goto(f"{search_site}/search?q=refund")
    expect(page.locator(".sums h1")).to_have_text("34 spans")
    status.locator("a", has_text="ERROR").click()
    expect(field).to_have_value("refund status:ERROR")
    expect(page.locator(".sums h1")).to_have_text("20 spans")
    status.locator("a.chosen").click()
    expect(field).to_have_value("refund")

    page.click(".sums .orders >> text=oldest")
    expect(page.locator(".sums .orders [aria-current]")).to_have_text("oldest")
    expect(page.locator(".hits li")).to_have_count(20)
    page.click("text=Next")
    expect(page.locator(".pages")).to_contain_text("21–34 of 34")  # noqa: RUF001 an en dash
    page.click("text=Previous")
    expect(page.locator(".pages")).to_contain_text("1–20 of 34")  # noqa: RUF001 an en dash
    assert page.locator("main img").count() == 0


def test_a_search_has_a_time_range(page: Page, search_site: str) -> None:
    """The form of the lists narrows a search, which its facets, orders and search field keep."""
    page.goto(f"{search_site}/search?q=refund")
    total = page.locator(".sums h1")
    expect(total).to_have_text("34 spans")
    page.click(".range summary")
    page.fill(".range input[name=end]", "1970-01-01T00:00")
    page.click(".range button")
    expect(page.locator(".range summary")).to_contain_text("1970-01-01 00:00 UTC")
    narrowed = total.inner_text()
    page.locator(".facets a", has_text="ERROR").click()
    expect(page.locator(".range summary")).to_contain_text("1970-01-01 00:00 UTC")
    page.click(".sums .orders >> text=oldest")
    page.fill(".find input[name=q]", "refund")
    page.press(".find input[name=q]", "Enter")
    expect(page.locator(".range summary")).to_contain_text("1970-01-01 00:00 UTC")
    expect(total).to_have_text(narrowed)
    page.click("text=15 min")
    expect(page.locator(".empty")).to_contain_text("No span matches this search in this time.")


def test_an_error_points_at_the_character(page: Page, search_site: str) -> None:
    """For a search that does not parse, the page marks the character and says what to write."""
    page.route(
        "**/search?*", lambda route: route.fulfill(response=route.fetch(), status=200)
    )  # no console error
    page.goto(f"{search_site}/search?q=refund+sevrice%3Ashop")
    expect(page.locator(".problem pre")).to_have_text("refund sevrice:shop")
    expect(page.locator(".problem mark")).to_have_text("s")
    expect(page.locator(".problem")).to_contain_text(
        "at character 8: there is no field 'sevrice'; did you mean service?"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_on_search_and_empty_pages(
    browser: Browser, search_site: str, width: int, scheme: str
) -> None:
    """That is so for hits, no hits, a broken query, an unknown address, and each list of a lake without traces."""
    with serving(FakeLake([])) as empty_site, looking(browser, width, scheme) as page:
        for path in ("/search", "/search?q=refund", "/search?q=absent", "/search?q=refund+AND", "/unknown"):
            page.goto(f"{search_site}{path}")
            check_look(page, path, width)
        for path in ("/", "/traces", "/sessions", "/users", "/search", "/datasets"):
            page.goto(f"{empty_site}{path}")
            check_look(page, f"empty {path}", width)
