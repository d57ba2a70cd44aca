"""The page of erasures in Chromium: request one from a trace, confirm it, and follow it until its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import tracelake
from tests.browser.conftest import serving
from tests.browser.test_trace_page import check_look, images, looking
from tests.lake.test_erasure import fill, user_request
from tests.tracking.requests import trace_id
from tracelake.tasks.runners import InProcess

USER = "alice <b>@example.org"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[tracelake.Lake]:
    """Return a lake with three traces, and a fourth of a user."""
    with tracelake.init(tmp_path / "lake") as opened:
        store = opened.hot.set_up()
        with closing(opened.pipeline(runner=InProcess())) as pipeline:
            fill(store, pipeline)
            store.write([user_request(USER, 4)])
            pipeline.run_once()
        yield opened


@pytest.fixture
def site(lake: tracelake.Lake) -> Iterator[str]:
    """Return its server's address."""
    with serving(lake) as address:
        yield address


def test_a_trace_is_deleted_from_its_page(site: str, page: Page, lake: tracelake.Lake) -> None:
    """The page explains the deletion, asks for the id again, and shows the report."""
    page.goto(f"{site}/traces/{trace_id(1)}")
    page.click(".actions summary")
    page.click("text=Delete…")
    expect(page.locator("#confirm")).to_contain_text("1 trace matches now.")
    expect(page.locator("#confirm")).to_contain_text("This cannot be undone")
    page.fill("input[name=confirm]", trace_id(1))
    page.click("text=Erase forever")
    row = page.locator("#erasures tbody tr")
    expect(row).to_contain_text(f"trace {trace_id(1)}")
    expect(row).to_contain_text("open:")
    assert lake.hot.infos([trace_id(1)]) == {}
    lake.erasures.run()
    page.reload()
    expect(row).to_contain_text("finished")
    expect(row).to_contain_text("table rows")
    assert page.locator("main b").count() == 0


@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")]
)
def test_it_looks_right(browser: Browser, site: str, tmp_path: Path, width: int, scheme: str) -> None:
    """The question and the list fit desktop and phone, and axe finds nothing."""
    folder = images(tmp_path)
    with looking(browser, width, scheme) as page:
        page.goto(f"{site}/user?user={USER.replace(' ', '%20')}")
        page.click("text=Delete…")
        expect(page.locator("#confirm")).to_contain_text(USER)
        check_look(page, "erasure-question", width)
        page.screenshot(path=folder / f"erasure-question-{width}-{scheme}.png", full_page=True)
        page.fill("input[name=confirm]", USER)
        page.click("text=Erase forever")
        expect(page.locator("#erasures tbody tr")).to_have_count(1)
        check_look(page, "erasures", width)
        page.screenshot(path=folder / f"erasures-{width}-{scheme}.png", full_page=True)
