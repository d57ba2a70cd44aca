"""Sign-in by a provider in a real browser, which the provider's site redirects back here."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import serving
from tests.patience import HANG_S
from tests.server import openid
from tests.server.fake_lake import FakeLake, span_row
from tracelake.server.guard import BEGUN_COOKIE, COOKIE


@pytest.fixture(scope="module")
def signed() -> Iterator[str]:
    """Return the address of a server with sign-in by a provider, which has another site than 127.0.0.1."""
    with openid.provider() as issuer, serving(FakeLake([span_row()]), openid.openid(issuer)) as address:
        assert issuer.startswith("http://localhost:")
        yield address


def test_signing_in_and_out(browser: Browser, signed: str) -> None:
    """A page redirects to the provider for sign-in, and then appears; after sign-out it redirects again."""
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(HANG_S * 1_000)
        context.route(re.compile("googleapis"), lambda route: route.abort())
        page.goto(f"{signed}/search?q=step")
        page.get_by_role("link", name="Sign in with your organization").click()
        page.fill("input[name=login]", "ada")
        page.fill("input[name=password]", "any")
        page.click("button[type=submit]")
        page.get_by_role("button", name="Continue").click()
        expect(page).to_have_url(f"{signed}/search?q=step")
        expect(page.get_by_role("navigation", name="Main")).to_contain_text("Versions")
        kept = {cookie["name"]: cookie for cookie in context.cookies(signed)}
        assert (kept[COOKIE]["httpOnly"], kept[COOKIE]["sameSite"]) == (True, "Strict")
        assert BEGUN_COOKIE not in kept
        page.click(".account summary")
        expect(page.locator(".account dl")).to_contain_text("Role")
        page.get_by_role("button", name="Sign out").click()
        page.goto(f"{signed}/")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
