"""Signing in with a provider that gives invalid responses, changes its keys, is down, or slow."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import anyio
import httpx
import pytest

from tests.access.test_id_token import public, signing_key
from tests.patience import HANG_S
from tests.server import openid
from tests.server.client import Client
from tests.server.openid import Person
from tests.server.signing_in import OURS, Site, alone, begin, served
from tracelake import limits
from tracelake.access.oidc import SignInSecret
from tracelake.server import access, guard


@dataclass
class Answers:
    """A provider with test-defined responses, by path, status and body, served at `url`."""

    url: str = ""
    keys: list[Any] = field(default_factory=list)
    changed: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    signs_with: Any = None
    access_token: Any = "a"
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str, nonce: str) -> tuple[int, bytes]:
        """Send the configured response."""
        self.asked.append(path)
        if path in self.changed:
            return self.changed[path]
        match path:
            case "/token":
                from tests.access.test_id_token import signed  # noqa: PLC0415

                now_s = int(time.time())
                claims: dict[str, Any] = {
                    "iss": self.url,
                    "nonce": nonce,
                    "iat": now_s,
                    "exp": now_s + 60,
                } | self.claims
                return 200, json.dumps(
                    {"id_token": signed(self.signs_with, None, **claims), "access_token": self.access_token}
                ).encode()
            case "/keys":
                return 200, json.dumps({"keys": self.keys}).encode()
            case "/userinfo":
                return 200, json.dumps({"sub": "ada", "groups": ["keepers"]}).encode()
        ways = {f"{name}_endpoint": f"{self.url}/{name}" for name in ("authorization", "token", "userinfo")}
        return 200, json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"} | ways).encode()


@pytest.fixture(scope="module")
def serving_answers() -> Iterator[Answers]:
    """Return a provider that gives the configured responses."""
    told = Answers(keys=public(signing_key()))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()).get(
                "code", [""]
            )
            status, body = told.answer(self.path, code[0])
            self.send_response(status)
            self.send_header("Location", f"{told.url}/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *_arguments: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        told.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield told
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def at_answers(serving_answers: Answers) -> Iterator[Site]:
    """Return a lake whose users sign in with this provider; the second server's provider is down."""
    settings = openid.openid(serving_answers.url)
    with served(settings, openid.openid("http://127.0.0.1:1")) as site:
        yield site


@pytest.fixture
def answers(serving_answers: Answers) -> Answers:
    """Return the provider in its initial state."""
    fresh = Answers(serving_answers.url, public(signing_key()))
    vars(serving_answers).update(vars(fresh))
    return serving_answers


@pytest.fixture
def told(at_answers: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return the lake, without a signed-in user."""
    return alone(at_answers, monkeypatch)


def come_back(site: Site) -> Any:
    """Sign in at a provider that asks no user for anything; its code is the nonce, which it returns."""
    person = site.person("ada")
    begun = SignInSecret(begin(person))
    return person.get(f"/sign-in/callback?code={begun.nonce}&state={begun.state}")


def check_made_up(told: Site, answers: Answers) -> None:
    """Check that a state without a signature of the lake's servers, or for another address, causes no call to the
    provider."""
    held, eve = SignInSecret("e" * 43), told.person("eve")
    eve.begin("/")
    _, *rest = eve.cookies[guard.BEGUN_COOKIE].split(".")
    eve.cookies[guard.BEGUN_COOKIE] = ".".join((held.secret, *rest))
    answers.asked = []
    back = f"/sign-in/callback?code={held.nonce}&state={held.state}"
    assert (eve.get(back).status_code, answers.asked) == (400, [])
    ada = told.person("ada")
    begun = SignInSecret(begin(ada))
    back = f"/sign-in/callback?code={begun.nonce}&state={begun.state}"
    elsewhere = Person(Client(ada.client._app, "http://localhost"), "ada")
    elsewhere.cookies = dict(ada.cookies)
    assert elsewhere.get(back).status_code == 400
    assert ada.get(back).status_code == 200


def test_what_is_made_up(told: Site, answers: Answers) -> None:
    """A forged state is useless."""
    check_made_up(told, answers)


def check_over_tls(told: Site, _answers: Answers) -> None:
    """Check that over TLS cookies have names that no other site can set, and that cookies with the bare names are
    ignored."""
    tls = Client(told.servers[0]._app, "https://127.0.0.1")
    ada, victim = Person(tls, "ada"), Person(tls, "ben")
    begun = ada.get("/sign-in/provider")
    secret = SignInSecret(ada.cookies[f"__Host-{guard.BEGUN_COOKIE}"].partition(".")[0])
    back = f"/sign-in/callback?code={secret.nonce}&state={secret.state}"
    victim.cookies = {guard.BEGUN_COOKIE: ada.cookies[f"__Host-{guard.BEGUN_COOKIE}"]}
    assert victim.get(back).status_code == 400
    answer = ada.get(back)
    assert answer.status_code == 200
    host = f"__Host-{guard.COOKIE}"
    assert list(ada.cookies) == [host]
    victim.cookies = {guard.COOKIE: ada.cookies[host]}
    assert victim.get("/api/v1/traces").status_code == 401
    assert "Sign out" not in victim.get("/sign-in").text
    assert ada.get("/api/v1/traces").status_code == 200
    assert "Sign out" in ada.get("/sign-in").text
    out = ada.get("/sign-out", "POST", Origin="https://127.0.0.1")
    assert (ada.cookies, [each.standing for each in told.lake.sessions.all()]) == ({}, ["revoked"])
    lines = [line for each in (begun, answer, out) for line in each.headers.get_list("set-cookie")]
    assert len(lines) == 4
    for line in lines:  # otherwise a browser refuses all of them
        assert line.startswith("__Host-"), line
        assert all(f"; {word}" in line for word in ("Secure", "Path=/;", "HttpOnly")), line
        assert "domain" not in line.lower(), line


def test_over_tls(told: Site, answers: Answers) -> None:
    """Cookies keep these names from the beginning to signing out."""
    check_over_tls(told, answers)


def test_keys_that_the_provider_changes(
    told: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider's metadata is cached; if a key is unknown, the keys are read again, once."""
    assert come_back(told).status_code == 200
    monkeypatch.setattr(access, "PROVIDER_KEPT_S", 3_600.0)
    monkeypatch.setattr(access, "PROVIDER_KEYS_AGAIN_S", -1.0)
    answers.asked = []
    assert come_back(told).status_code == 200
    assert answers.asked == ["/token", "/userinfo"]
    answers.signs_with = signing_key("other")
    answers.keys = public(answers.signs_with)
    assert come_back(told).status_code == 200
    answers.keys, answers.asked, answers.signs_with = [], [], signing_key("third")
    answer = come_back(told)
    assert (answer.status_code, answers.asked) == (401, ["/token", "/keys"])
    assert "not signed with one of its keys" in answer.text
    answers.keys, answers.asked = [{**public(signing_key())[0], "kid": "third"}], []
    monkeypatch.setattr(access, "PROVIDER_KEYS_AGAIN_S", 3_600.0)
    assert (come_back(told).status_code, answers.asked) == (401, ["/token"])
    monkeypatch.setattr(access, "PROVIDER_KEYS_AGAIN_S", -1.0)
    assert come_back(told).status_code == 401
    answers.keys, answers.asked = public(answers.signs_with), []
    assert (come_back(told).status_code, answers.asked) == (200, ["/token", "/keys", "/userinfo"])


def check_what_is_kept(told: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that only usable metadata of a provider is cached: a brief outage does not last an hour."""
    monkeypatch.setattr(access, "PROVIDER_KEYS_AGAIN_S", -1.0)
    for path in ("/.well-known/openid-configuration", "/keys"):
        monkeypatch.setattr(access, "PROVIDER_KEPT_S", -1.0)
        answers.changed = {path: (200, b'{"status": "maintenance"}')}
        assert (
            told.servers[0].get("/sign-in/provider") if "known" in path else come_back(told)
        ).status_code == 502
        monkeypatch.setattr(access, "PROVIDER_KEPT_S", 3_600.0)
        answers.changed = {}
        assert come_back(told).status_code == 200


def test_what_is_kept(told: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unusable response is not cached."""
    check_what_is_kept(told, answers, monkeypatch)


def check_bad_answers(told: Site, answers: Answers) -> None:
    """Check that a bad response of a provider signs no user in. Keys still work, and a page shows the error."""
    huge = b'{"keys": [' + b" " * limits.PROVIDER_ANSWER_MAX_BYTES + b"]}"
    many = json.dumps({"keys": answers.keys * (limits.PROVIDER_KEYS_MAX + 1)}).encode()
    deep = b"[" * 100_000
    cases: list[tuple[str, int, bytes, int, str]] = [
        ("/keys", 200, huge, 502, "bytes"),
        ("/keys", 200, many, 502, "list of keys"),
        ("/keys", 200, b'{"keys": 7}', 502, "list of keys"),
        ("/keys", 200, deep, 502, "answers 200"),
        ("/keys", 500, b"{}", 502, "answers 500"),
        ("/keys", 302, b"", 502, "answers 302"),
        ("/token", 200, b"[]", 502, "answers 200"),
        ("/token", 200, b"{}", 502, "has no id token"),
        ("/token", 200, b'{"id_token": "a.b.c"}', 401, "is invalid"),
        ("/token", 400, b'{"error": "invalid_grant"}', 401, "sign in again"),
        ("/token", 200, huge, 502, "bytes"),
        ("/userinfo", 200, b'{"sub": "eve", "groups": ["keepers"]}', 401, "a different subject"),
        ("/userinfo", 200, b"{}", 401, "a different subject"),
        ("/userinfo", 200, b'{"sub": "ada", "groups": ["k\xff"]}', 502, "answers 200"),
    ]
    for path, status, body, expected, word in cases:
        answers.changed = {path: (status, body)}
        answer = come_back(told)
        assert (answer.status_code, word in answer.text) == (expected, True), (
            path,
            body[:60],
            answer.text[-900:],
        )
        assert "API key" in answer.text
    assert "/elsewhere" not in answers.asked
    for access_token in ("\xe9", "a\r\nX: y", None):
        answers.changed, answers.access_token = {}, access_token
        assert "access token" in come_back(told).text
    answers.access_token = "a"
    answers.changed = {}
    for claims in ({"aud": "other"}, {"nonce": "other"}, {"iss": "http://127.0.0.1"}, {"exp": 1}):
        answers.claims = claims
        assert come_back(told).status_code == 401, claims
    assert told.lake.sessions.all() == []


def test_bad_answers(told: Site, answers: Answers) -> None:
    """Responses that are huge, deeply nested, malformed, for another subject or a redirect sign no user in."""
    check_bad_answers(told, answers)


def test_a_provider_that_is_down(told: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the provider is down, slow or overloaded, a page reports that, and keys still work."""
    key = {"Authorization": f"Bearer {told.lake.keys.create('ada', 'read').token}"}
    told.later()
    here, down = told.servers
    answer = down.get("/sign-in/provider")
    assert (answer.status_code, "does not answer" in answer.text) == (502, True)
    assert "sign in with a key" in answer.text
    assert down.get("/api/v1/traces", headers=key).status_code == 200
    answers.changed = {
        "/.well-known/openid-configuration": (200, json.dumps({"issuer": "http://other"}).encode())
    }
    assert "set oidc_issuer to exactly the provider" in here.get("/sign-in/provider").text
    monkeypatch.setattr(limits, "PROVIDER_WAIT_S", 0.0)
    assert "does not answer (TimeoutError)" in here.get("/sign-in/provider").text


def check_waiting(_told: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a sign-in waits if all slots are taken; after a long wait it is still valid when the user retries."""
    held: list[Any] = []
    init = access.Provider.__init__

    def noted(self: Any, *given: Any) -> None:
        init(self, *given)
        held.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(access.Provider, "__init__", noted)
        with served(*[openid.openid(answers.url)] * 2) as site:
            person = site.person("ada")
            begun = SignInSecret(begin(person))
            back = f"/sign-in/callback?code={begun.nonce}&state={begun.state}"
            places = held[0]._places
            for each in range(limits.PROVIDER_REQUESTS_MAX):
                places.acquire_on_behalf_of_nowait(each)
            patch.setattr(limits, "PROVIDER_WAIT_S", 0.01)
            answer = person.get(back)
            assert (answer.status_code, "too many sign-ins at once" in answer.text) == (503, True)
            assert guard.BEGUN_COOKIE in person.cookies
            patch.setattr(limits, "PROVIDER_WAIT_S", HANG_S)

            async def asked() -> list[int]:
                statuses: list[int] = []
                transport = httpx.ASGITransport(person.client._app)
                cookie = f"{guard.BEGUN_COOKIE}={person.cookies[guard.BEGUN_COOKIE]}"
                async with (
                    httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
                    anyio.create_task_group() as group,
                ):
                    group.start_soon(_free_one, places)
                    statuses.append((await client.get(back, headers={"Cookie": cookie})).status_code)
                    group.cancel_scope.cancel()
                return statuses

            assert anyio.run(asked) == [200]


async def _free_one(places: anyio.CapacityLimiter) -> None:
    while not places.statistics().tasks_waiting:
        await anyio.sleep(0.001)
    places.release_on_behalf_of(0)


def test_waiting_for_a_place(told: Site, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Junk requests occupy the slots of a provider only for moments."""
    check_waiting(told, answers, monkeypatch)


@pytest.mark.usefixtures("answers")
def test_no_proxy_on_this_machine(told: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to this machine without TLS bypass the proxy of the environment."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert come_back(told).status_code == 200


def test_who_is_refused_is_told(told: Site, answers: Answers, caplog: pytest.LogCaptureFixture) -> None:
    """A refused user gets an explanation, also with an invalid key or after signing out."""
    caplog.set_level(logging.INFO)
    assert come_back(told).status_code == 200
    (session,) = told.lake.sessions.all()
    answers.claims = {"groups": ["strangers"]}
    assert come_back(told).status_code == 403
    ben = told.person("ben")
    assert ben.client.post("/sign-in", content=b"key=none", headers=OURS).status_code == 401
    ben.cookies = {guard.COOKIE: told.lake.sessions.begin("ben", "read", "*").token}
    ben.get("/sign-out", "POST", **OURS)
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("tracelake")]
    for beginning in (
        f"session {session.id} 'ada' began",
        "refused: sign-in through the provider: the provider knows ada",
        "refused: sign-in with a key",
        "session s",
    ):
        assert any(line.startswith(beginning) for line in lines), lines
    assert any(line.endswith("'ben' ended: signed out") for line in lines), lines
