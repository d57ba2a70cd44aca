"""Signing in with a real provider: the rights of a session, its end, and failed sign-ins."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.server import openid
from tests.server.openid import Person
from tests.server.signing_in import OURS, Site, alone, begin, served
from tracelake.access.oidc import SignInSecret
from tracelake.server import guard


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """Return the address of a provider."""
    with openid.provider() as address:
        yield address


@pytest.fixture(scope="module")
def both(issuer: str) -> Iterator[Site]:
    """Return a lake whose users sign in at one server; the other server has a wrong secret for the provider."""
    with served(openid.openid(issuer), openid.openid(issuer, client_secret="another")) as site:
        yield site


@pytest.fixture
def site(both: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a site without a signed-in user."""
    return alone(both, monkeypatch)


def test_people_sign_in(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """An admitted user gets a session with a role, in a cookie that scripts and other sites cannot read, and is
    redirected."""
    caplog.set_level(logging.INFO, "tracelake.audit")
    ada = site.person("ada")
    assert ada.get("/traces/1").status_code == 401
    assert "/sign-in/provider?next=/traces/1" in ada.get("/sign-in?next=/traces/1").text
    begun = ada.get("/sign-in/provider?next=/traces/1%3Fa%3Db")
    kept = begun.headers["set-cookie"]
    assert all(word in kept for word in ("HttpOnly", "SameSite=lax", "Path=/sign-in/callback", "Max-Age=600"))
    answer = ada.get(ada.at_provider(begun.headers["location"]))
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert '<meta http-equiv="refresh" content="1;url=/traces/1?a=b">' in answer.text
    gone, cookie = sorted(answer.headers.get_list("set-cookie"), key=lambda line: guard.COOKIE in line)
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/;", "Max-Age=43200"))
    assert "Secure" not in cookie
    assert "Max-Age=0" in gone
    (session,) = site.lake.sessions.all()
    assert (session.name, session.role, session.workspace) == ("ada@example.com, ada", "admin", "*")
    assert ada.get("/api/v1/sessions").json()["sessions"][0]["id"] == session.id
    assert ada.get("/api/v1/branches", "POST", **OURS).status_code == 415
    lines = [each.getMessage() for each in caplog.records if each.name == "tracelake.audit"]
    name = f"session {session.id} 'ada@example.com, ada'"
    assert lines == [
        f"{name} began, with role admin, of workspace '*'",
        f"{name}: POST /api/v1/branches: 415",
    ]
    assert openid.SECRET not in caplog.text
    records = ada.get("/api/v1/audit").json()["records"]
    begun_here = next(each for each in records if each["kind"] == "sign-in")
    assert (begun_here["action"], begun_here["outcome"]) == ("sign in by the provider", "200")
    assert begun_here["object"] == f"role admin, session {session.id}"
    assert begun_here["name"] == session.name


def test_a_session_is_a_key(site: Site) -> None:
    """A session has the rights of a key with its role and workspace; changes by cookie need Tracelake's own Origin."""
    ben = site.person("ben")
    assert ben.sign_in().status_code == 200
    (session,) = site.lake.sessions.all()
    assert (session.role, session.workspace) == ("annotate", "team-a")
    key = site.lake.keys.create("ben", "annotate", "team-a").token
    site.later()
    statuses = set()
    for method, path in (
        ("GET", "/api/v1/traces"),
        ("GET", "/api/v1/branches"),
        ("GET", "/api/v1/sessions"),
        ("GET", "/metrics"),
        ("POST", "/v1/traces"),
        ("POST", "/api/v1/keys"),
        ("DELETE", f"/api/v1/sessions/{session.id}"),
        ("POST", "/api/2.0/mlflow/experiments/create"),
    ):
        by_key = ben.client.request(method, path, headers={"Authorization": f"Bearer {key}"}).status_code
        statuses.add(by_key)
        assert ben.get(path, method, **OURS).status_code == by_key, (method, path)
        if method != "GET":
            assert ben.get(path, method).status_code == 403, (method, path)
            assert ben.get(path, method, Origin="https://evil.example").status_code == 403, (method, path)
    assert statuses == {200, 403, 415}


def check_the_end(site: Site) -> None:
    """Check that a session counts on every server of the lake, until sign-out or until it is ended."""
    ben = site.person("ben")
    assert ben.sign_in().status_code == 200
    site.later()
    other = Person(site.servers[1], "ben")
    other.cookies = kept = dict(ben.cookies)
    assert other.get("/api/v1/traces").status_code == ben.get("/api/v1/traces").status_code == 200
    assert ben.get("/sign-out", "POST", Origin="https://evil.example").status_code == 403
    assert other.get("/api/v1/traces").status_code == 200
    assert ben.get("/sign-out", "POST", **OURS).status_code == 303
    assert guard.COOKIE not in ben.cookies
    ben.cookies = kept
    assert ben.get("/api/v1/traces").status_code == 401
    site.later()
    assert other.get("/api/v1/traces").status_code == ben.get("/api/v1/traces").status_code == 401


def test_a_session_ends(site: Site) -> None:
    """A session ends when its user signs out or an authorized user ends it."""
    check_the_end(site)
    begun = site.lake.sessions.begin("ben, ben", "read", "*")
    ben = site.person("ben")
    ben.cookies = {guard.COOKIE: begun.token}
    site.later()
    assert ben.get("/api/v1/traces").status_code == 200
    admin = {"Authorization": f"Bearer {site.lake.keys.create('ada', 'admin').token}"}
    site.later()
    assert ben.client.delete(f"/api/v1/sessions/{begun.key.id}", headers=admin).status_code == 200
    assert ben.get("/api/v1/traces").status_code == 401
    assert ben.client.delete("/api/v1/sessions/nobody", headers=admin).status_code == 404


def test_nobody_is_let_in_by_default(site: Site) -> None:
    """A user whom no rule admits gets no session, for any claims of the provider; the page explains what to do."""
    eve = site.person("eve")
    answer = eve.sign_in()
    assert (answer.status_code, eve.cookies, site.lake.sessions.all()) == (403, {}, [])
    assert "no rule admits them here; ask the lake" in answer.text


def check_states(site: Site) -> None:
    """Check that a response of the provider counts once, and only in the browser that began."""
    ada, ben = site.person("ada"), site.person("ben")
    begun_elsewhere = site.person("ada")
    begun_elsewhere.client = site.servers[1]
    back = begun_elsewhere.go()
    begun_elsewhere.client = site.servers[0]
    assert begun_elsewhere.get(back).status_code == 200  # another server of the lake signed it
    back = ada.go()
    held = dict(ada.cookies)
    ben.begin("/")
    for browser in (site.person("eve"), ben):  # one that began nothing, and one that began another sign-in
        answer = browser.get(back)
        assert (answer.status_code, browser.cookies) == (400, {})
        assert "started in another browser" in answer.text
    assert ada.get(back).status_code == 200
    assert ada.get(back).status_code == 400
    thief = site.person("ada")
    thief.cookies = held
    assert thief.get(back).status_code == 401
    # Ada's code in a sign-in of Ben's.
    ada.cookies, code = {}, parse_qs(urlsplit(ada.go()).query)["code"][0]
    begun = SignInSecret(begin(ben))
    answer = ben.get(f"/sign-in/callback?code={code}&state={begun.state}")
    assert (answer.status_code, ben.cookies) == (401, {})


def test_states(site: Site) -> None:
    """A state that is missing, replayed, from another browser or with another's code signs no user in."""
    check_states(site)


@pytest.mark.parametrize(
    "after",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/a\r\nb",
        "/" * 2_000,
        "/" + "\u8ffd" * 600,
    ],
)
def test_the_way_leads_nowhere_else(site: Site, after: str) -> None:
    """Signing in redirects only to a page of this server."""
    begun = site.servers[0].get("/sign-in/provider", params={"next": after})
    held = begun.headers["set-cookie"].partition(";")[0]
    answer = site.servers[0].get("/sign-in/callback", headers={"Cookie": held})
    assert "/sign-in/provider?next=/&#34;" in answer.text or 'href="/sign-in/provider?next=/"' in answer.text


def test_cookies_that_nobody_set(site: Site) -> None:
    """Any cookie of a pending sign-in gets a response."""
    own, signature = "a" * 43, "b" * 43
    for held in (
        "x",
        "." * 60,
        f"{own}.",
        f"{own}.1..",
        f"{own}.1.a.{signature}",
        f"{own}.{'9' * 12}.{'_' * 2_048}.{signature}",
        f"{own}.{'9' * 9_000}..{signature}",
        f"{own}.1.{'a' * 9_000}.{signature}",
    ):
        answer = site.servers[0].get(
            "/sign-in/callback?code=1&state=2", headers={"Cookie": f"{guard.BEGUN_COOKIE}={held}"}
        )
        assert answer.status_code == 400, held


def test_a_secret_that_is_wrong(site: Site) -> None:
    """The page names the setting to check, and shows nothing of the secret."""
    ada = Person(site.servers[1], "ada")
    answer = ada.sign_in()
    assert (answer.status_code, ada.cookies) == (502, {})
    assert "check oidc_client_id and the client secret" in answer.text
    assert "another" not in answer.text.replace("for another", "")
