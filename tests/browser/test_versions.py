"""History and datasets in Chromium: from the log to a commit's changes, from an example to its trace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import serving
from tests.browser.lake_to_look_at import HOSTILE
from tests.browser.test_trace_page import AXE, findings, looking
from tests.datasets.conversations import a_lake, ids, ingest, talk
from tests.server.test_pages import PAGES


@pytest.fixture(scope="module")
def versions_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server over a lake with a branch, a tag, a dataset, staged and hostile examples."""
    folder = tmp_path_factory.mktemp("versions")
    with a_lake(folder) as lake:
        dataset = lake.datasets.create("refunds", "Questions about refunds")
        dataset.add(search="refund", message="three questions", committer="ada")
        lake.tag("v1")
        lake.create_branch("labels")
        lake.datasets.get("refunds", at="labels").remove([ids(2, 0)], message="no hats", committer="grace")
        ingest(lake, folder, talk(8, 0, HOSTILE, HOSTILE))
        dataset.add(traces=[f"{9:032x}"], metadata={"kind": HOSTILE})
        with serving(lake) as address:
            yield address


def test_from_the_log_to_what_changed(page: Page, versions_site: str) -> None:
    """The log of a branch names branches and tags; a commit leads to the entries that it changed."""
    page.goto(versions_site)
    page.click("nav.rooms summary")
    page.click("nav.rooms >> text=Versions")
    expect(page.locator("tbody tr")).to_have_count(3)
    row = page.locator("tbody tr", has_text="three questions")
    expect(row).to_contain_text("ada")
    expect(row.locator(".tag")).to_have_text(["v1"])
    page.click("nav.refs >> text=labels")
    expect(page.locator("tbody tr").first).to_contain_text("no hats")
    page.click("tbody tr:first-child td.id a")
    expect(page.locator("h1")).to_have_text("no hats")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr.removed")).to_contain_text(f"datasets/refunds/{ids(2, 0)}")
    page.goto(f"{versions_site}/diff?to=main")
    expect(page.locator("tbody tr", has_text="tables/spans")).to_contain_text("transaction 1")
    page.click(".twin")
    assert page.url == f"{versions_site}/api/v1/diff?to=main"


def test_from_an_example_to_its_trace(page: Page, versions_site: str) -> None:
    """A dataset shows its examples with their state, an older version its earlier ones; each leads to its span."""
    page.goto(versions_site)
    page.click("nav.rooms >> text=Datasets")
    expect(page.locator("tbody tr")).to_contain_text("Questions about refunds")
    page.fill('input[name="ref"]', "labels")
    page.click("text=Show")
    page.click("tbody a")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.goto(f"{versions_site}/datasets/refunds")
    expect(page.locator("tbody tr.committed")).to_have_count(3)
    expect(page.locator("tbody tr.added")).to_contain_text(HOSTILE)
    assert page.locator("main img").count() == 0
    page.locator("tbody tr", has_text="refund for a coat").locator("a[href^='/traces/']").click()
    expect(page.locator(".details h2")).to_contain_text("work")
    expect(page.locator(".details")).to_contain_text("within 30 days")


def test_every_page_is_read_without_scripts(browser: Browser, versions_site: str) -> None:
    """Without JavaScript each page has its words, but for charts and controls that need it."""

    def words(page: Page, path: str) -> set[str]:
        page.goto(f"{versions_site}{path}")
        return set(page.locator("main").inner_text().split())

    missing = {}
    with browser.new_context(java_script_enabled=False) as plain, browser.new_context() as context:
        with_scripts, without = context.new_page(), plain.new_page()
        with_scripts.add_init_script("addEventListener('load', () => document.querySelectorAll('.live, .plot')"
                                     ".forEach(each => each.style.display = 'none'))")  # fmt: skip
        for path in PAGES.values():
            missing[path] = words(with_scripts, path) - words(without, path)
    assert {path: each for path, each in missing.items() if each} == {}


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_axe_finds_nothing_on_any_page(browser: Browser, versions_site: str, width: int, scheme: str) -> None:
    """No page has a finding of axe or anything beyond the right edge, also if it shows an error or hostile texts."""
    found = {}
    with looking(browser, width, scheme) as page:
        for path in PAGES.values():
            page.goto(f"{versions_site}{path}")
            page.add_script_tag(path=AXE)
            fits = page.evaluate("document.documentElement.scrollWidth") <= width
            found[path] = findings(page) + ([] if fits else ["beyond the right edge"])
    assert {path: each for path, each in found.items() if each} == {}
