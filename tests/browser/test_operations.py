"""Search, history, pipeline, archive, retention and erasures over a lake of a shop: accessibility, width, screenshots.

With TRACELAKE_SCREENSHOTS=1 the screenshots go to docs/images.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from playwright.sync_api import Browser

import tracelake
from tests.browser.conftest import serving
from tests.browser.test_trace_page import check_look, images, looking
from tests.lake.test_erasure import fill
from tracelake.demo.run import write_batch
from tracelake.tasks.runners import InProcess

SPANS = 3_000
PATHS = {
    "search": "/search?q=checkout",
    "versions": "/versions",
    "diff": "/diff?from=before-the-sale&to=main",
    "pipeline": "/pipeline",
    "prices": "/pipeline/prices",
    "transaction": "/pipeline/1",
    "archive": "/archive",
    "retention": "/retention",
    "erasures": "/erasures",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server over a lake with commits, a tag, a branch, own prices, a rule and an erasure."""
    folder = tmp_path_factory.mktemp("shop")
    # The page of a transaction names its pipeline by the machine.
    with mock.patch("socket.gethostname", return_value="shop"), tracelake.init(folder / "lake") as lake:
        store = lake.hot.set_up()
        write_batch(folder / "all.otlp.jsonl.gz", SPANS, time.time_ns())
        with gzip.open(folder / "all.otlp.jsonl.gz", "rb") as lines:
            morning, *sale = lines
        ingest(lake, folder / "morning.otlp.jsonl", morning)
        lake.tag("before-the-sale")
        ingest(lake, folder / "sale.otlp.jsonl", b"".join(sale))
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            fill(store, pipeline)
        dataset = lake.datasets.create("payments", "Payments of the sale")
        dataset.add(search="service:payment", message="the payments of the sale", committer="ada")
        lake.create_branch("labels")
        lake.prices.set("shop-model", input=0.5, output=2)
        lake.retention.set("gateway-month", "30d", service="gateway")
        lake.erase(trace=lake.search("service:pricing", limit=1)[0].trace_id)
        with serving(lake) as address:
            yield address


def ingest(lake: tracelake.Lake, path: Path, content: bytes) -> None:
    """Write a file and ingest it."""
    path.write_bytes(content)
    lake.ingest(path, runner=InProcess())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_how_they_look(browser: Browser, shop: str, tmp_path: Path, width: int, scheme: str) -> None:
    """No page has a finding of axe or anything beyond the right edge."""
    with looking(browser, width, scheme) as page:
        for name, path in PATHS.items():
            response = page.goto(f"{shop}{path}")
            assert response is not None
            assert (name, response.status) == (name, 200)
            check_look(page, name, width)
            page.screenshot(path=images(tmp_path) / f"{name}-{width}-{scheme}.png")
