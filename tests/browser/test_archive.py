"""The archive page in Chromium on desktop and phone: tiers, a pass and a restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update

from tests.archive.place import HotLake
from tests.archive.test_archive import tag
from tests.browser.conftest import serving
from tests.browser.lake_to_look_at import HOSTILE
from tests.tracking.requests import trace_id
from tracelake.archive.retention import MALFORMED, RETENTION_TAG
from tracelake.tracking.schema import trace_info


@pytest.fixture
def hot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HotLake]:
    """Return a lake with three hot traces of 1970, one of them marked, and hostile names."""
    lake = HotLake(tmp_path_factory.mktemp("archive") / "lake", layout="trace", retention="7d")
    with closing(lake.tracking), closing(lake.lake):
        lake.write((1, 1), (2, 1), (3, 1))
        with lake.tracking.database.writing() as connection:
            is_first = trace_info.c.trace_id == trace_id(1)
            connection.execute(update(trace_info).values(experiment_id=HOSTILE, name=HOSTILE))
            connection.execute(update(trace_info).where(is_first).values(archival_failure=MALFORMED))
        tag(lake, RETENTION_TAG, '{"type":"duration","value":"1d"}', experiment=HOSTILE)
        yield lake


@pytest.fixture
def site(hot: HotLake) -> Iterator[str]:
    """Return its server's address. Request it before the page, so that late requests of the page are answered."""
    with serving(hot.lake) as address:
        yield address


def test_a_pass_and_a_restore(site: str, page: Page) -> None:
    """The page lists what the next pass takes and cannot take; one button runs it, another restores a trace."""
    page.goto(site)
    page.click("nav.rooms summary")
    page.click("nav.rooms >> text=Archive")
    row = page.locator("#experiments tbody tr")
    expect(row).to_contain_text(HOSTILE)
    cells = row.locator("td").all_inner_texts()
    assert cells[1:8] == ["default", "3", "0", "1", "1d", "experiment", "2"]
    expect(page.locator("#failed tbody tr")).to_contain_text("MALFORMED_TRACE")
    page.click("text=Archive now")
    expect(page.locator("#archived tbody tr")).to_have_count(2)
    expect(page.locator("#said")).to_have_text("2 archived")
    expect(page.locator("#operations tbody tr")).to_contain_text("2 archived")
    expect(page.locator(".summary dd").nth(1)).to_contain_text("2 traces")
    page.locator("#archived tbody tr").first.locator("button").click()
    expect(page.locator("#archived tbody tr")).to_have_count(1)
    expect(page.locator("#said")).to_contain_text("is hot again")
    page.fill('input[name="trace_ids"]', trace_id(9))
    page.click("text=Restore >> nth=0")
    expect(page.locator("#operations tbody tr")).to_have_count(3)
    expect(page.locator("#said")).to_contain_text("no trace")
    assert page.locator("main img").count() == 0
    page.click(".twin")
    assert page.url == f"{site}/api/v1/archive"


def test_it_fits_a_phone(site: str, page: Page, hot: HotLake) -> None:
    """Wide tables scroll, and the page does not."""
    hot.archive.run()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site}/archive")
    expect(page.locator("#archived")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
