"""Access control: every route with every kind of key, forged Host and Origin, signing in, quotas, revocation."""

from __future__ import annotations

import gzip
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import anyio
import httpx
import pytest
from fastapi import FastAPI
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from starlette.datastructures import Headers

from tests.patience import HANG_S
from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tests.server.faults import FaultyStore, inbox_payloads
from tests.server.otlp_requests import export_request
from tracelake import limits
from tracelake._errors import DamageError, ForbiddenError, StorageError
from tracelake.access.keys import Role
from tracelake.server import guard, http_policy, key_ring
from tracelake.server.app import create_app
from tracelake.server.audit import AuditWriter
from tracelake.server.guard import Allowed
from tracelake.server.key_ring import KeyRing
from tracelake.tracking.ingest_queue import Inbox

ROLES: tuple[Role, ...] = get_args(Role)
PUBLIC = {
    ("GET", "/healthz"),
    ("GET", "/version"),
    ("GET", "/favicon.ico"),
    ("GET", "/static/icon.svg"),
    ("GET", "/sign-in"),
    ("POST", "/sign-in"),
    ("POST", "/sign-out"),
}
BODY = export_request(1, 2).SerializeToString()
PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass
class Guarded:
    """An application that requires keys, with one of each role, and two that are no longer valid."""

    app: FastAPI
    lake: FakeLake
    store: FaultyStore
    tokens: dict[str, str]

    def client(self, token: str | None = None, **headers: str) -> Client:
        """Return a client with a key."""
        return _Client(self.app, ({} if token is None else {"Authorization": f"Bearer {token}"}) | headers)


class _Client(Client):
    def __init__(self, app: FastAPI, headers: dict[str, str]) -> None:
        super().__init__(app)
        self._headers = headers

    def _request(self, method: str, url: str, options: dict[str, Any]) -> httpx.Response:
        return super()._request(
            method, url, options | {"headers": self._headers | options.get("headers", {})}
        )


@pytest.fixture
def guarded(store: FaultyStore) -> Iterator[Guarded]:
    """Return an application with keys."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        yield make(store, inbox)


def make(store: FaultyStore, inbox: Inbox, **options: Any) -> Guarded:
    """Make an application with keys."""
    lake = FakeLake([span_row(output="a refund")])
    tokens: dict[str, str] = {role: lake.keys.create(role, role).token for role in ROLES}
    for name in ("revoked", "expired"):
        made = lake.keys.create(name, "admin", expires_ns=time.time_ns() + 10**15)
        tokens[name] = made.token
        lake.keys.revoke(made.key.id) if name == "revoked" else lake.keys.expire(made.key.id, 0)
    tokens["unknown"] = tokens["admin"][:-4] + "AAAA"
    tokens["no token"] = "x" * 3_000
    return Guarded(create_app(lake, inbox, **options), lake, store, tokens)


def every_route(app: FastAPI) -> list[tuple[str, str]]:
    """Return method and path of each route of an application, with values for path parameters."""
    found = []

    def walk(routes: list[Any], prefix: str) -> None:
        for route in routes:
            if (inner := getattr(route, "original_router", None)) is not None:
                walk(inner.routes, prefix + route.include_context.prefix)
            elif not hasattr(route, "methods"):
                found.append(("GET", f"{prefix}{route.path}/icon.svg"))
            else:
                path = (prefix + route.path).replace("{name:path}", "x").replace("{", "").replace("}", "")
                found.extend((method, path) for method in sorted(route.methods - {"HEAD"}))

    walk(app.routes, "")
    return found


def may(role: str, method: str, path: str) -> bool:
    """Return the roles' rights according to the docs."""
    sends = path.startswith("/v1/") or (method, path) == ("POST", "/api/3.0/mlflow/traces")
    if role == "ingest" or sends:
        return role in {"ingest", "admin"} and sends
    if role == "admin":
        return True
    if path.startswith("/add-to-dataset"):
        return role == "annotate"
    if method == "GET" or path.endswith(("mlflow/traces/search", "mlflow/experiments/search")):
        return not path.startswith(("/api/v1/keys", "/api/v1/erasures"))
    return (
        role == "annotate"
        and ("/mlflow/" in path or "/assessments" in path or "/datasets" in path)
        and "experiment-tag" not in path
        and "delete-traces" not in path
    )


def check_every_route(guarded: Guarded) -> None:
    """Request every route without a key, and with each."""

    async def ask() -> None:
        transport = httpx.ASGITransport(guarded.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for method, path in every_route(guarded.app):
                for who, token in {"nobody": None, **guarded.tokens}.items():
                    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                    status = (await client.request(method, path, headers=headers)).status_code
                    told = (method, path, who, status)
                    if (method, path) in PUBLIC:
                        assert status not in {401, 403} or path == "/sign-in", told
                    elif who not in ROLES:
                        assert status == 401, told
                    elif not may(who, method, path):
                        assert status == 403, told
                    elif who == "admin" or http_policy.needed(method, path) != "admin":
                        assert status not in {401, 403, 500}, told

    anyio.run(ask)


def test_every_route_with_every_key(guarded: Guarded) -> None:
    """Without a valid key all routes but a few answer 401. With a key whose role is too weak they answer 403."""
    assert len(every_route(guarded.app)) > 70
    check_every_route(guarded)
    assert (
        http_policy.needed("GET", "/what/comes/later") == http_policy.needed("PUT", "/v1/traces") == "admin"
    )
    assert guarded.client(guarded.tokens["read"]).get("/api/v1/search?q=refund").json()["total"] == 1
    assert guarded.client(guarded.tokens["read"]).get("/").status_code == 200


def test_traces_are_taken_with_a_key(guarded: Guarded) -> None:
    """A key for ingest stores traces. Other keys, or no key, store nothing and get an error in OTLP's form."""
    for who in ("read", "revoked", "unknown"):
        answer = guarded.client(guarded.tokens[who]).post("/v1/traces", content=BODY, headers=PROTOBUF)
        assert answer.status_code == (403 if who == "read" else 401)
        assert Status.FromString(answer.content).message
    answer = guarded.client().post("/v1/traces", json={})
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert not list(guarded.store.list("inbox/"))
    answer = guarded.client(guarded.tokens["ingest"]).post("/v1/traces", content=BODY, headers=PROTOBUF)
    assert answer.status_code == 200
    assert [item.data for item in inbox_payloads(guarded.store)] == [BODY]


def test_a_lake_without_keys_is_open_on_this_machine(store: FaultyStore) -> None:
    """No client needs a key until the lake has one. From then on every client needs one, even while keys cannot be
    read."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        lake = FakeLake([])
        client = Client(create_app(lake, inbox))
        assert client.get("/api/v1/traces").status_code == 200
        made = client.post("/api/v1/keys", json={"name": "ada", "role": "admin"})
        assert made.status_code == 201
        assert client.get("/api/v1/traces").status_code == 401
        key = {"Authorization": f"Bearer {made.json()['token']}"}
        assert client.get("/api/v1/keys", headers=key).json()["keys"][0]["name"] == "ada"
        assert client.delete(f"/api/v1/keys/{made.json()['key']['id']}", headers=key).status_code == 200
        assert client.get("/api/v1/keys", headers=key).status_code == 401


@pytest.mark.parametrize("kind", [StorageError, DamageError])
def test_keys_that_cannot_be_read_let_nobody_in(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """A server uses the keys it has read for a while. Without having read keys, or long after, it answers 503."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        clock = [0.0]
        monkeypatch.setattr(
            key_ring.KeyRing.__init__, "__kwdefaults__", {"demanded": False, "clock": lambda: clock[0]}
        )
        guarded = make(store, inbox)

        def fails() -> Any:
            raise kind("the database is gone")

        client = guarded.client(guarded.tokens["read"])
        with monkeypatch.context() as broken:
            broken.setattr(guarded.lake.keys, "whole_records", fails)
            assert client.get("/api/v1/traces").status_code == 503
            clock[0] += key_ring.KEYS_LOOK_S
        assert client.get("/api/v1/traces").status_code == 200
        with monkeypatch.context() as broken:
            broken.setattr(guarded.lake.keys, "whole_records", fails)
            clock[0] += limits.KEYS_STALE_MAX_S / 2
            assert client.get("/api/v1/traces").status_code == 200
            clock[0] += limits.KEYS_STALE_MAX_S
            answer = client.get("/api/v1/traces")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


def test_a_key_that_another_process_changes(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new key counts within a second; a revoked key counts until the next read of keys."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        clock = [0.0]
        monkeypatch.setattr(
            key_ring.KeyRing.__init__, "__kwdefaults__", {"demanded": False, "clock": lambda: clock[0]}
        )
        guarded = make(store, inbox)
        assert guarded.client(guarded.tokens["read"]).get("/api/v1/traces").status_code == 200
        made = guarded.lake.keys.create("new", "read")
        clock[0] += key_ring.KEYS_MISS_LOOK_S
        assert guarded.client(made.token).get("/api/v1/traces").status_code == 200
        guarded.lake.keys.revoke(made.key.id)
        clock[0] += key_ring.KEYS_LOOK_S
        assert guarded.client(made.token).get("/api/v1/traces").status_code == 401


def test_keys_are_read_whatever_requests_wait_for(store: FaultyStore) -> None:
    """A client that sends traces is authenticated even while all request threads are busy."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        guarded = make(store, inbox)

        async def ask() -> str:
            threads = anyio.to_thread.current_default_thread_limiter()
            threads.total_tokens = 1
            await threads.acquire_on_behalf_of("a commit that waits")
            with anyio.fail_after(HANG_S):
                ring = key_ring.KeyRing(guarded.lake.keys, guarded.lake.sessions)
                return (await ring.actor(guarded.tokens["ingest"], "ingest")).role

        assert anyio.run(ask) == "ingest"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::2]", "[::1]evil"])
def test_forged_hosts_are_refused(guarded: Guarded, host: str) -> None:
    """A foreign Host is refused on every kind of route, with a key or without."""
    for path in ("/", "/healthz", "/api/v1/traces", "/v1/traces", "/static/icon.svg"):
        answer = guarded.client(guarded.tokens["admin"], Host=host).get(path)
        assert answer.status_code == 400, path
    assert guarded.client(guarded.tokens["admin"], Host="LocalHost.:4318").get("/").status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil", "app://127.0.0.1"],
)
def test_forged_origins_are_refused(guarded: Guarded, origin: str) -> None:
    """A page of another site gets no access with any key; Tracelake's own pages do."""
    for method, path in (
        ("GET", "/api/v1/traces"),
        ("POST", "/v1/traces"),
        ("POST", "/sign-in"),
        ("OPTIONS", "/v1/traces"),
    ):
        answer = guarded.client(guarded.tokens["admin"], Origin=origin).request(method, path)
        assert answer.status_code == 403, (method, path)
        assert "access-control-allow-origin" not in answer.headers
    own = guarded.client(guarded.tokens["admin"], Origin="http://127.0.0.1")
    assert own.get("/api/v1/traces").status_code == 200


def test_a_page_that_came_without_tls_is_another_site(guarded: Guarded) -> None:
    """A page that came without TLS counts as another site. Behind a proxy that ends TLS, Tracelake's page has
    https."""
    let_in = guard.Guard(
        guarded.app,
        KeyRing(guarded.lake.keys, guarded.lake.sessions),
        AuditWriter(guarded.lake.audit),
        Allowed(["h"]),
    )
    for origin, served, is_ours in (
        ("http://h", "http", True),
        ("https://h", "https", True),
        ("https://h", "http", True),
        ("http://h", "https", False),
    ):
        headers = Headers({"host": "h", "origin": origin})
        if is_ours:
            assert let_in._foreign_origin(headers, "/", served) is None
        else:
            with pytest.raises(ForbiddenError, match="may not send this request"):
                let_in._foreign_origin(headers, "/", served)


def test_allowed_names_and_sites(store: FaultyStore) -> None:
    """For allowed names and sites, a browser may send traces from there, and request nothing else."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        guarded = make(store, inbox, allowed=Allowed(["traces.example"], ["https://shop.example"]))
        headers = {"Host": "traces.example", "Origin": "https://shop.example"}
        asked = headers | {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        answer = guarded.client(**asked).request("OPTIONS", "/v1/traces")
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        assert "Authorization" in answer.headers["access-control-allow-headers"]
        answer = guarded.client(guarded.tokens["ingest"], **headers).post(
            "/v1/traces", content=BODY, headers=PROTOBUF
        )
        assert answer.status_code == 200
        said = ("access-control-allow-origin", "vary", "access-control-expose-headers")
        assert [answer.headers[each] for each in said] == ["https://shop.example", "Origin", "Retry-After"]
        assert guarded.client(guarded.tokens["read"], **headers).get("/api/v1/traces").status_code == 403
        cookie = {"Cookie": f"{guard.COOKIE}={guarded.tokens['admin']}"}
        assert guarded.client(**headers, **cookie).post("/v1/traces", content=BODY).status_code == 401
        assert guarded.client(Host="127.0.0.1").get("/healthz").status_code == 400


def test_signing_in(guarded: Guarded) -> None:
    """A browser is redirected to the sign-in page, sends its key once, keeps it in a cookie that no script reads,
    and signs out."""
    page = guarded.client(Accept="text/html").get("/traces/1?first=2")
    assert (page.status_code, page.headers["location"]) == (303, "/sign-in?next=/traces/1%3Ffirst%3D2")
    assert guarded.client().get("/sign-in").status_code == 200
    wrong = guarded.client().post("/sign-in", data={"key": guarded.tokens["revoked"]})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    assert "is revoked" in wrong.text
    answer = guarded.client().post(
        "/sign-in?next=/traces/1%3Ffirst%3D2", data={"key": guarded.tokens["read"]}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/traces/1?first=2")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"))
    signed_in = guarded.client(Cookie=cookie.partition(";")[0])
    assert signed_in.get("/api/v1/traces").status_code == 200
    out = guarded.client().post("/sign-out")
    assert f'{guard.COOKIE}=""' in out.headers["set-cookie"]


def test_forms_that_sign_nobody_in(guarded: Guarded, store: FaultyStore) -> None:
    """Any form is answered, also if the lake needs no key; an invalid key never becomes a cookie."""
    for body in ("a=1&b=2&key=3", "key=%F0%9F%92%A5", "", "&" * 1_000):
        assert guarded.client().post("/sign-in", content=body).status_code == 401, body
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        answer = Client(create_app(FakeLake([]), inbox)).post("/sign-in", content="key=%F0%9F%92%A5")
        assert (answer.status_code, "set-cookie" in answer.headers) == (303, False)


@pytest.mark.parametrize(
    "after", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/a\r\nb: c"]
)
def test_signing_in_leads_nowhere_else(guarded: Guarded, after: str) -> None:
    """Signing in redirects only to a page of this server, for any link."""
    answer = guarded.client().post("/sign-in", params={"next": after}, data={"key": guarded.tokens["read"]})
    assert answer.headers["location"] == "/"


def test_a_cookie_is_of_no_use_to_other_sites(guarded: Guarded) -> None:
    """A change authenticated by cookie needs the Origin that browsers send from Tracelake's own pages."""
    cookie = {"Cookie": f"{guard.COOKIE}={guarded.tokens['admin']}"}
    new = {"name": "b"}
    assert guarded.client(**cookie).post("/api/v1/branches", json=new).status_code == 403
    assert (
        guarded.client(**cookie, Origin="https://evil.example").post("/api/v1/branches", json=new).status_code
        == 403
    )
    own = guarded.client(**cookie, Origin="http://127.0.0.1").post("/api/v1/branches", json=new)
    assert own.status_code not in {401, 403}
    assert guarded.client(Cookie="a=b; \x01=").get("/api/v1/traces").status_code == 401


def test_cookies_of_others_neither_hide_ours_nor_cost_time(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Foreign cookies are not unquoted: Python needs seconds for one full of backslashes, from any sender."""

    def unquote(value: str) -> str:
        assert "\\" not in value
        return value

    monkeypatch.setattr("http.cookies._unquote", unquote)
    others = 'a="' + "\\" * 100 + '"; [no cookie]; {"b": 1}'
    ours = f"{guard.COOKIE}={guarded.tokens['admin']}"
    quoted = guard.COOKIE + '="' + "\\" * 100 + '"'
    for cookie in (f"{others}; {ours}", f"{ours}; {others}"):
        assert guarded.client(Cookie=cookie).get("/api/v1/traces").status_code == 200
        assert "Sign out" in guarded.client(Cookie=cookie).get("/sign-in").text
    for cookie in (others, quoted):
        assert guarded.client(Cookie=cookie).get("/api/v1/traces").status_code == 401
        assert "Sign out" not in guarded.client(Cookie=cookie).get("/sign-in").text


def test_a_page_without_a_name_is_not_ours(store: FaultyStore) -> None:
    """A request without a host name gets no page, even if every name is allowed."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        guarded = make(store, inbox, allowed=Allowed(["*"]))
        cookie = f"{guard.COOKIE}={guarded.tokens['admin']}"
        for host, origin in product(({}, {"Host": ""}), ("null", "http://")):
            headers = {"Origin": origin, "Cookie": cookie} | host
            assert _raw_status(guarded.app, "/api/v1/branches", headers) == 403


def _raw_status(app: FastAPI, path: str, headers: dict[str, str]) -> int:
    """Return the response's status for these headers without Host, as HTTP/1.0 allows."""
    statuses: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    scope = {
        "type": "http",
        "http_version": "1.0",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }

    async def ask() -> None:
        await app(scope, receive, send)

    anyio.run(ask)
    return statuses[0]


def check_quota(guarded: Guarded) -> None:
    """A key that has used its quota of spans or bytes gets the time to retry; other keys are not affected."""
    slow = guarded.lake.keys.create("slow", "ingest", spans_per_s=1).token
    small = guarded.lake.keys.create("small", "ingest", bytes_per_day=1).token
    many = export_request(*range(1, 1_001)).SerializeToString()  # after a quarter of an hour
    for token in (slow, small):
        client = guarded.client(token)
        assert client.post("/v1/traces", content=many, headers=PROTOBUF).status_code == 200
        answer = client.post("/v1/traces", content=many, headers=PROTOBUF)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 10
    metrics = guarded.client(guarded.tokens["admin"]).get("/metrics").text
    assert 'tracelake_http_requests_total{endpoint="/v1/traces",status="429"} 2.0' in metrics
    other = guarded.client(guarded.tokens["ingest"]).post("/v1/traces", content=many, headers=PROTOBUF)
    assert other.status_code == 200


def test_a_quota_is_kept(guarded: Guarded) -> None:
    """See `check_quota`."""
    check_quota(guarded)


def check_refused_requests_count(guarded: Guarded) -> None:
    """A refused request counts with its decompressed bytes."""
    bomb = gzip.compress(b'{"resourceSpans":[' + b",".join([b"{}"] * 200_000) + b"]}")
    cut = gzip.compress(bytes(1_000_000))[:-9]
    tokens = [guarded.lake.keys.create(name, "ingest", bytes_per_day=500_000).token for name in ("a", "b")]
    for token, body, status in zip(tokens, (bomb, cut), (413, 400), strict=True):
        client = guarded.client(token)
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        assert client.post("/v1/traces", content=body, headers=headers).status_code == status
        assert client.post("/v1/traces", content=body, headers=headers).status_code == 429


def test_refused_requests_count(guarded: Guarded) -> None:
    """A quota of bytes counts small bodies by their decompressed size."""
    check_refused_requests_count(guarded)


def test_who_did_what_is_told(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """Each change is logged with its key, and a log entry stays one line for any path."""
    caplog.set_level(logging.INFO, "tracelake.audit")
    guarded.client(guarded.tokens["admin"]).post("/api/3.0/mlflow/traces/search", json={})  # changes nothing
    guarded.client(guarded.tokens["admin"]).delete("/api/v1/branches/a%0D%1B%5B2Jb")
    lines = [record.getMessage() for record in caplog.records if record.name == "tracelake.audit"]
    key_id = guarded.tokens["admin"].split("_")[1]
    assert lines == [f"key {key_id} 'admin': DELETE /api/v1/branches/a\\r\\x1b[2Jb: 404"]


def test_every_answer_has_the_headers(guarded: Guarded) -> None:
    """Pages, refusals and errors forbid foreign scripts, frames and type sniffing."""
    for client, path in (
        (guarded.client(guarded.tokens["admin"]), "/"),
        (guarded.client(), "/api/v1/traces"),
        (guarded.client(Host="evil"), "/"),
        (guarded.client(guarded.tokens["admin"]), "/nothing"),
    ):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
