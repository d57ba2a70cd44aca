"""A real browser, and a server in a thread."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Thread

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.lake_to_look_at import lake_to_look_at
from tests.patience import HANG_S
from tracelake.access.oidc import OpenId
from tracelake.lake.lake import Lake
from tracelake.server.app import create_app
from tracelake.storage.local import MemoryObjectStore
from tracelake.tracking.ingest_queue import Inbox

ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """Return the address of a server over a lake with traces to display."""
    with serving(lake_to_look_at()) as address:
        yield address


@contextmanager
def serving(lake: Lake, openid: OpenId | None = None) -> Iterator[str]:
    """Serve a lake in a thread; yield the address."""
    with closing(Inbox(MemoryObjectStore())) as inbox, socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(create_app(lake, inbox, openid=openid), log_config=None, access_log=False)
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return Chromium. Fail if it is not installed, because a skipped test proves nothing.

    It lives for one module: Playwright runs an event loop in this thread, which allows no other one.
    """
    path = shutil.which("chromium")
    assert path, "no chromium on this machine: run scripts/setup-browser as root"
    expect.set_options(timeout=HANG_S * 1_000)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=ARGUMENTS.split())
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a page that fails the test for any script error, dialog, or request to another host."""
    problems: list[str] = []
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        opened = context.new_page()
        opened.set_default_timeout(HANG_S * 1_000)
        opened.on("pageerror", lambda error: problems.append(f"script error: {error}"))
        opened.on(
            "console", lambda message: problems.append(message.text) if message.type == "error" else None
        )
        # If it has a listener, a dialog stays open until it is dismissed, so the page hangs and the test
        # fails.
        opened.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
        opened.on(
            "request",
            lambda request: (
                None if "//127.0.0.1:" in request.url else problems.append(f"request: {request.url}")
            ),
        )
        yield opened
    assert problems == []
