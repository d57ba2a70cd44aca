"""Guard of all routes: it checks the Host, the Origin and the key of each request, and writes the audit trail.

The Host check stops DNS rebinding. The Origin check refuses pages of other sites, except that allowed sites may send
traces. The key comes from the Authorization header, or from the sign-in cookie, which works only for requests from
this server's own pages.

Over TLS, here or at a proxy on this machine, cookie names start with `__Host-`, and only these names are read. Browsers
accept such a cookie only from this exact host over TLS. Neither a sibling domain nor an attacker who answers without
TLS can therefore set such a cookie.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracelake import limits
from tracelake._errors import ForbiddenError, NoKeyError, TracelakeError, UsageError
from tracelake.access.audit import shown
from tracelake.access.keys import AuditKind, AuditRecord, Need, check_all_workspaces, parse_key_id
from tracelake.access.oidc import BEGUN_PATTERN
from tracelake.server import http_policy
from tracelake.server.audit import AuditWriter, address_of, count_response, record_of, response_outcome
from tracelake.server.connections import mark_admitted
from tracelake.server.key_ring import ACTOR, KeyHolder, KeyRing
from tracelake.server.otlp_http import METER, failure
from tracelake.server.routes import error_page, json_response

_CORS_MAX_AGE_S: Final = 600
"""Time that a browser caches a site's permission to send (CORS)."""

COOKIE: Final = "tracelake_key"
BEGUN_COOKIE: Final = "tracelake_sign_in"
"""Cookie with the sign-in state while the browser is at the provider."""
_BEGUN: Final = re.compile(BEGUN_PATTERN, re.ASCII)


def cookie_name(name: str, scheme: str) -> str:
    """Return a cookie's name for the scheme of a request, http or https."""
    return f"__Host-{name}" if scheme == "https" else name


def our_cookies(scope: Scope) -> dict[str, str]:
    """Return the values of this server's cookies by name without prefix. Values that this server cannot have set are
    ignored."""
    ours: dict[str, str] = {}
    bare = {cookie_name(name, scope["scheme"]): name for name in (COOKIE, BEGUN_COOKIE)}
    for cookie in Headers(scope=scope).get("cookie", "").split(";"):
        called, _, value = cookie.strip().partition("=")
        name = bare.get(called)
        if (name == COOKIE and parse_key_id(value)) or (name == BEGUN_COOKIE and _BEGUN.fullmatch(value)):
            ours.setdefault(name, value)
    return ours


def drop_cookies(scope: Scope) -> None:
    """Remove foreign cookies from a request, because Python's cookie parser takes seconds for some of them."""
    ours = "; ".join(
        f"{cookie_name(name, scope['scheme'])}={value}" for name, value in our_cookies(scope).items()
    )
    others = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
    scope["headers"] = [*others, (b"cookie", ours.encode())] if ours else others


def set_key_cookie(response: Response, request: Request, token: str) -> Response:
    """Set the cookie with an API key or a session's key."""
    return _set(response, request, COOKIE, token, limits.SIGN_IN_MAX_S)


def clear_key_cookie(response: Response, request: Request) -> Response:
    """Clear the key cookie."""
    return _set(response, request, COOKIE, "", 0)


def set_state_cookie(response: Response, request: Request, state: str) -> Response:
    """Set the cookie with the sign-in state."""
    return _set(response, request, BEGUN_COOKIE, state, limits.SIGN_IN_BEGUN_MAX_S)


def clear_state_cookie(response: Response, request: Request) -> Response:
    """Clear the sign-in state cookie."""
    return _set(response, request, BEGUN_COOKIE, "", 0)


def _set(response: Response, request: Request, name: str, value: str, max_age_s: int) -> Response:
    is_sign_in, secure = name == BEGUN_COOKIE, request.url.scheme == "https"
    # Strict would drop the cookie, because the provider's page leads back here.
    same_site: Literal["lax", "strict"] = "lax" if is_sign_in else "strict"
    response.set_cookie(
        cookie_name(name, request.url.scheme),
        value,
        max_age=max_age_s,
        # Browsers refuse `__Host-` cookies with another path or without Secure, even if the cookie is
        # cleared.
        path=http_policy.SIGNED_IN if is_sign_in and not secure else "/",
        httponly=True,
        samesite=same_site,
        secure=secure,
    )
    return response


logger = logging.getLogger("tracelake.server")

LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
_SAFE: Final = ("GET", "HEAD")


@dataclass(frozen=True)
class Allowed:
    """Host names of the server, sites whose pages may send traces, and locations that requests may name."""

    hosts: Collection[str] = LOCAL_HOSTS
    origins: Collection[str] = field(default_factory=tuple)
    locations: Sequence[str] = ()


class Guard:
    """ASGI middleware in front of an application."""

    def __init__(
        self,
        app: ASGIApp,
        ring: KeyRing,
        auditing: AuditWriter,
        allowed: Allowed,
        has_route: Callable[[Scope], bool] = lambda _: True,
    ) -> None:
        """Set up the guard. `has_route` returns whether a route matches a request."""
        self._app = app
        self._ring = ring
        self._auditing = auditing
        self._has_route = has_route
        self._hosts = {http_policy.allowed_host(host) for host in allowed.hosts}
        self._origins = {http_policy.allowed_origin(origin) for origin in allowed.origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or forward it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        drop_cookies(scope)
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        try:
            self._check_host(headers)
            origin = self._foreign_origin(headers, path, scope["scheme"])
            if origin is not None:
                send = _with_origin(send, origin)
                if method == "OPTIONS" and "access-control-request-method" in headers:
                    await _preflight()(scope, receive, send)
                    return
            need = http_policy.needed(method, path)
            actor = record = None
            if need != "public":
                scope[ACTOR] = actor = await self._ring.actor(_token(scope, headers, origin), need)
                mark_admitted(scope)
                if not http_policy.is_divided(method, path):
                    check_all_workspaces(actor.key_id, actor.workspace)
                if need == "ingest":
                    scope[METER] = self._ring.meter(actor)
                elif method not in _SAFE and need != "read":
                    if self._has_route(scope):
                        record = await self._auditing.begin(self._record(scope, actor, need))
                    else:
                        send = count_response(self._auditing, actor, scope, send)
        except TracelakeError as error:
            if isinstance(error, (NoKeyError, ForbiddenError)):
                logger.warning("refused: %s %s: %s", method, shown(path), error)
                self._count_refused(scope, headers, error)
            await refusal_of(scope, error)(scope, receive, send)
            return
        if actor is None:
            await self._app(scope, receive, send)
            return
        with (
            http_policy.request_workspace(actor.workspace),
            response_outcome(self._auditing, record, send) as recording_send,
        ):
            await self._app(scope, receive, recording_send)

    def _record(self, scope: Scope, actor: KeyHolder, need: Need) -> AuditRecord:
        kind: AuditKind = "annotation" if need == "annotate" else "change"
        return record_of(kind, actor, f"{scope['method']} {scope['path']}", address_of(scope))

    def _count_refused(self, scope: Scope, headers: Headers, error: TracelakeError) -> None:
        """Count a refused request in the audit, under its key if the lake has that key, even an invalid one."""
        try:
            token = bearer(headers.get("authorization")) or our_cookies(scope).get(COOKIE)
        except NoKeyError:
            token = None
        need, method = http_policy.needed(scope["method"], scope["path"]), scope["method"]
        action, status = f"refused: {need}", str(http_policy.status_of(type(error)))
        record = record_of(
            "counted",
            self._ring.holder(token),
            action,
            address_of(scope),
            f"{method} {scope['path']}",
            status,
        )
        self._auditing.count(record)

    def _check_host(self, headers: Headers) -> None:
        names = headers.getlist("host")
        name = names[0] if len(names) == 1 else ""
        if http_policy.ANY not in self._hosts and http_policy.name_of(name) not in self._hosts:
            raise UsageError(
                f"this server does not accept the host name {name[: limits.NAME_QUOTED_MAX_CHARS]!r}; add it "
                "with --allowed-host when starting the server"
            )

    def _foreign_origin(self, headers: Headers, path: str, served: str) -> str | None:
        """Return the origin of an allowed foreign page; None for this server's own pages.

        `served` is the scheme of this request, http or https.
        """
        origins = headers.getlist("origin")
        if not origins:
            return None
        origin = origins[0].lower()
        if len(origins) == 1:
            host = headers.get("host", "").lower()
            scheme, _, of = origin.partition("://")
            # A page without TLS may come from an attacker on the network. An https page is ours too: a proxy
            # may have ended TLS.
            if host and of == host and scheme in (served, "https"):
                return None
            if path.startswith(http_policy.OTLP) and (
                http_policy.ANY in self._origins or origin in self._origins
            ):
                return origin
        raise ForbiddenError(
            f"pages of {origin[: limits.QUOTED_MAX_CHARS]!r} may not send this request; --allowed-origin, "
            "when starting the server, admits sites whose pages may send traces"
        )


def bearer(header: str | None) -> str | None:
    """Return the token of an Authorization header. Raises NoKeyError for another kind of header."""
    if header is None:
        return None
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token:
        raise NoKeyError("the header Authorization must be Bearer and a key")
    return token.strip()


def _token(scope: Scope, headers: Headers, foreign_origin: str | None) -> str | None:
    token = bearer(headers.get("authorization"))
    if token is not None or foreign_origin is not None:
        return token
    cookie = our_cookies(scope).get(COOKIE)
    if cookie is None:
        return None
    # Browsers send the cookie automatically. They also send Origin with every unsafe request, so a request
    # without Origin does not come from our pages.
    if scope["method"] not in _SAFE and "origin" not in headers:
        raise ForbiddenError(
            "a signed-in browser must send Origin with this request; without a browser, send Authorization"
        )
    return cookie


def _with_origin(send: Send, origin: str) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = "Retry-After"
            headers.add_vary_header("Origin")
        await send(message)

    return answer


def _preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "POST",
            "Access-Control-Allow-Headers": "Authorization, Content-Encoding, Content-Type, X-MLflow-Experiment-Id",
            "Access-Control-Max-Age": str(_CORS_MAX_AGE_S),
        },
    )


def _wants_page(scope: Scope, headers: Headers) -> bool:
    is_page = scope["method"] == "GET" and not scope["path"].startswith("/api/")
    return is_page and "text/html" in headers.get("accept", "")


def refusal_of(scope: Scope, error: TracelakeError) -> Response:
    """Return the response for a refused request: in OTLP's format, as a page, or as JSON."""
    headers, path, status = Headers(scope=scope), scope["path"], http_policy.status_of(type(error))
    need: Need = http_policy.needed(scope["method"], path)
    if path.startswith(http_policy.OTLP):
        is_json = headers.get("content-type", "").lower().startswith("application/json")
        response = failure("json" if is_json else "protobuf", error)
    elif status == 401 and need == "read" and _wants_page(scope, headers):
        query = scope["query_string"].decode("latin-1")
        response = RedirectResponse(
            f"{http_policy.SIGN_IN}?next={quote(path + ('?' + query if query else ''), safe='/')}",
            status_code=303,
        )
    elif _wants_page(scope, headers):
        response = error_page(Request(scope), status, str(error))
    else:
        response = json_response({"error": str(error)}, status)
    if not path.startswith(http_policy.OTLP) and (wait_s := http_policy.retry_after_s(error)) is not None:
        response.headers["Retry-After"] = str(wait_s)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response
