"""Sign-in by key at `/sign-in`, and by an OpenID Connect provider at `/sign-in/provider` and `/sign-in/callback`.

The key is stored in a cookie that scripts cannot read and other sites cannot send. The cookie is the key itself, so
it ends with the key on every server of the lake. A sign-in by the provider creates a session, which is a key too;
signing out ends it.

At the provider, the browser holds a signed state cookie for ten minutes. It is `SameSite=Lax`, because the provider's
page leads back here. The key cookie is `SameSite=Strict`. Therefore the callback returns a page that navigates on:
the browser would treat a redirect as the provider's request and omit the cookie. That page waits until every server
of the lake has reloaded its keys. All responses of the provider are bounded in size and time.

The admin API is at `/api/v1/keys`, `/api/v1/sessions` and `/api/v1/audit`.

The module also serves the admin API, which does the same as `tracelake key` and `tracelake session`, over HTTP with an
admin key. An admin of one workspace sees only the audit records of that workspace's keys.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from ssl import SSLContext
from typing import Annotated, Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import parse_qs, quote, quote_plus

import anyio
import httpx
import msgspec
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from tracelake import limits
from tracelake._errors import AccessError, BackPressureError, NoKeyError, ProviderError, TracelakeError
from tracelake.access import oidc
from tracelake.access.audit import audit_record, since_ns
from tracelake.access.keys import ALL_WORKSPACES, SECRET_BYTES, Role, expiry_ns, parse_key_id
from tracelake.access.oidc import Sessions
from tracelake.server import guard, http_policy, routes
from tracelake.server.audit import AuditWriter, address_of, audit, record_of, tell_object
from tracelake.server.key_ring import KEYS_MISS_LOOK_S, KeyRing, key_holder

PROVIDER_KEPT_S: Final = 3_600.0
"""Cache time of a provider's metadata and keys."""
PROVIDER_KEYS_AGAIN_S: Final = 10.0
"""Minimum age of cached provider keys before an unknown key reloads them."""

logger = logging.getLogger("tracelake.server")

BY_KEY: Final = "sign in by a key"
"""Audit name of a sign-in by key. It changes nothing, so it is only counted."""

Auditing: TypeAlias = Annotated[AuditWriter, routes.app_part("auditing")]
Ring: TypeAlias = Annotated[KeyRing, routes.app_part("ring")]
LakeSessions: TypeAlias = Annotated[Sessions, routes.app_part("sessions")]
"""The sessions alone, because users who sign in are not authenticated yet."""
pages = APIRouter(include_in_schema=False)
"""Pages for signing in by key and for signing out."""
provider_pages = APIRouter(include_in_schema=False)
"""Pages for signing in by the provider."""
api = APIRouter(route_class=routes.JsonRoute)
"""JSON API for keys, sessions and the audit."""


@pages.get(http_policy.SIGN_IN)
def ask(request: Request, next: str = "/") -> Response:
    """Show the sign-in page."""
    return sign_in_page(request, safe_redirect(next))


@pages.post(http_policy.SIGN_IN)
async def sign_in(ring: Ring, auditing: Auditing, request: Request, next: str = "/") -> Response:
    """Sign in by key."""
    body = await routes.small_body(request, limits.SIGN_IN_MAX_BYTES)
    token = parse_qs(body.decode("latin-1")).get("key", [""])[0].strip()

    def count(outcome: int) -> None:
        who, address = ring.holder(token), address_of(request.scope)
        auditing.count(record_of("counted", who, BY_KEY, address, outcome=str(outcome)))

    try:
        await ring.actor(token, "read")
    except AccessError as error:
        count(401)
        logger.warning("refused: sign-in with a key: %s", error)
        return sign_in_page(request, safe_redirect(next), str(error), 401)
    count(303)
    response = RedirectResponse(safe_redirect(next), status_code=303)
    # Otherwise this server demands no keys, and the token is not one.
    return response if parse_key_id(token) is None else guard.set_key_cookie(response, request, token)


@pages.post(http_policy.SIGN_OUT)
async def sign_out(ring: Ring, auditing: Auditing, sessions: LakeSessions, request: Request) -> Response:
    """Sign out, and end the session."""
    token = guard.our_cookies(request.scope).get(guard.COOKIE, "")
    if session := await run_sync(sessions.of, token):
        address = address_of(request.scope)
        record = await auditing.begin(record_of("sign-in", key_holder(session), "sign out", address))
        if ended := await run_sync(sessions.end, token):
            ring.forget(ended.id)
            audit.info("session %s %r ended: signed out", ended.id, ended.name)
        auditing.end(record, "303")
    return guard.clear_key_cookie(RedirectResponse(http_policy.SIGN_IN, status_code=303), request)


def sign_in_page(request: Request, after: str, problem: str | None = None, status: int = 200) -> Response:
    """Return the sign-in page, which asks for a key or links to the provider. `after` is the page to open next."""
    query = f"?next={quote(after, safe='/')}"
    context = {
        "action": http_policy.SIGN_IN + query,
        "provider": http_policy.BY_PROVIDER + query if request.app.state.provider is not None else None,
        "problem": problem,
        "signed_in": guard.COOKIE in guard.our_cookies(request.scope),
    }
    return routes.TEMPLATES.TemplateResponse(request, "sign_in.html", context, status_code=status)


def safe_redirect(path: str) -> str:
    """Return `path` if it is a path on this server. For anything that could lead to another site, return the path of
    the first page."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_ours and "\\" not in path else "/"


T = TypeVar("T")
_DISCOVERY: Final = "/.well-known/openid-configuration"


class Provider:
    """Client of an OpenID Connect provider, with cached metadata. One event loop at a time uses it."""

    def __init__(self, openid: oidc.OpenId, clock: Callable[[], float] = time.monotonic) -> None:
        self.openid = openid
        self._clock = clock
        self._documents: dict[str, tuple[float, Any]] = {}
        self._places = anyio.CapacityLimiter(limits.PROVIDER_REQUESTS_MAX)
        self._tls = httpx.create_ssl_context()

    async def endpoints(self) -> oidc.Endpoints:
        """Return the provider's endpoints. Raises ProviderError if the provider is unreachable or its document
        invalid."""
        issuer = self.openid.issuer
        return await self._cached(
            issuer.rstrip("/") + _DISCOVERY,
            lambda document: oidc.discover_endpoints(document, issuer),
            PROVIDER_KEPT_S,
        )

    async def claims(self, code: str, sign_in_secret: oidc.SignInSecret, redirect_uri: str) -> oidc.Claims:
        """Redeem a code for the user's verified claims. Raises NoKeyError if the code or the ID token is invalid, and
        ProviderError if the provider fails."""
        endpoints = await self.endpoints()
        tokens = await self._redeemed(endpoints, code, sign_in_secret, redirect_uri)
        token = tokens.get("id_token")
        if not isinstance(token, str):
            raise ProviderError(
                "the provider's response has no id token: is this client registered for OpenID Connect?"
            )
        claims = await self._checked(endpoints, token, sign_in_secret, PROVIDER_KEPT_S)
        if claims is None:
            claims = await self._checked(endpoints, token, sign_in_secret, PROVIDER_KEYS_AGAIN_S)
        if claims is None:
            raise NoKeyError("the provider's id token is not signed with one of its keys; sign in again")
        if endpoints.userinfo is not None and oidc.lacks_claims(self.openid, claims):
            userinfo = await self._userinfo(endpoints.userinfo, tokens.get("access_token"))
            if userinfo.get("sub") != claims["sub"]:
                raise NoKeyError("userinfo is for a different subject than the ID token; sign in again")
            claims = oidc.joined(claims, userinfo)
        return claims

    async def _checked(
        self, endpoints: oidc.Endpoints, token: str, sign_in_secret: oidc.SignInSecret, max_age_s: float
    ) -> oidc.Claims | None:
        keys = await self._cached(endpoints.keys, _keys_of, max_age_s)
        openid = self.openid
        return oidc.verified_claims(
            token, keys, openid.issuer, openid.client_id, sign_in_secret.nonce, time.time()
        )

    async def _redeemed(
        self, endpoints: oidc.Endpoints, code: str, sign_in_secret: oidc.SignInSecret, redirect_uri: str
    ) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": sign_in_secret.verifier,
            "client_id": self.openid.client_id,
        }
        secret = self.openid.client_secret
        auth = None
        if secret is not None and endpoints.secret_in_body:
            form["client_secret"] = secret
        elif secret is not None:
            auth = httpx.BasicAuth(quote_plus(self.openid.client_id), quote_plus(secret))  # RFC 6749, 2.3.1
        return await self._answer("POST", endpoints.token, data=form, auth=auth)

    async def _userinfo(self, url: str, access_token: object) -> dict[str, Any]:
        if not isinstance(access_token, str) or not (access_token.isascii() and access_token.isprintable()):
            raise ProviderError("the provider's response has no valid access token; " + _LATER)
        return await self._answer("GET", url, headers={"Authorization": f"Bearer {access_token}"})

    async def _cached(self, url: str, checked: Callable[[dict[str, Any]], T], max_age_s: float) -> T:
        """Return the checked document at a URL, from the cache if it is recent."""
        kept_s, value = self._documents.get(url, (float("-inf"), None))
        if self._clock() - kept_s > max_age_s:
            value = checked(await self._answer("GET", url))
            self._documents[url] = (self._clock(), value)
        return cast("T", value)

    async def _answer(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        """Send a request and return the JSON object of the response. Raises ProviderError if the provider fails or
        refuses, and BackPressureError if too many requests are in flight."""
        place = object()
        try:
            self._places.acquire_on_behalf_of_nowait(place)
        except anyio.WouldBlock:
            with anyio.move_on_after(limits.PROVIDER_WAIT_S) as waiting:
                await self._places.acquire_on_behalf_of(place)
            if waiting.cancelled_caught:
                raise BackPressureError("too many sign-ins at once; try again in a moment") from None
        try:
            with anyio.fail_after(limits.PROVIDER_WAIT_S):
                status, body = await _fetched(method, url, options, self._tls)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:  # includes TimeoutError
            raise ProviderError(
                f"{_place(url)} does not answer ({type(error).__name__}); {_LATER}"
            ) from error
        finally:
            self._places.release_on_behalf_of(place)
        try:
            document = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            document = None
        if status != 200 or not isinstance(document, dict):
            fields = document if isinstance(document, dict) else {}
            _raise_refused(url, status, fields)
        return dict(document)


_LATER: Final = "try again later, or sign in with a key"


def _keys_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the provider's published keys. Raises ProviderError if the document is invalid."""
    keys = document.get("keys")
    if not isinstance(keys, list) or len(keys) > limits.PROVIDER_KEYS_MAX:
        raise ProviderError(f"the provider has no list of keys, or more than {limits.PROVIDER_KEYS_MAX}")
    return [key for key in keys if isinstance(key, dict)]


async def _fetched(method: str, url: str, options: Mapping[str, Any], tls: SSLContext) -> tuple[int, bytes]:
    body = bytearray()
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"} | dict(options.get("headers", {}))
    async with (
        # Bypass proxies for a provider on this machine. It may use plain http, which a proxy could read.
        httpx.AsyncClient(
            verify=tls, timeout=limits.PROVIDER_WAIT_S, trust_env=url.startswith("https:")
        ) as client,
        client.stream(method, url, **{**options, "headers": headers}) as answer,
    ):
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > limits.PROVIDER_ANSWER_MAX_BYTES:
                raise ProviderError(
                    f"{_place(url)} answers more than {limits.PROVIDER_ANSWER_MAX_BYTES} bytes; {_LATER}"
                )
        return answer.status_code, bytes(body)


def _raise_refused(url: str, status: int, document: Mapping[str, Any]) -> None:
    """Raise the error for a provider's refusal: NoKeyError for an invalid code, otherwise ProviderError."""
    problem = str(document.get("error", ""))[: limits.NAME_QUOTED_MAX_CHARS]
    if problem == "invalid_grant":
        raise NoKeyError("the provider no longer knows this sign-in; sign in again")
    if problem in {"invalid_client", "unauthorized_client"}:
        raise ProviderError(
            f"the provider does not accept this server ({problem}): check oidc_client_id and the client "
            "secret"
        )
    raise ProviderError(f"{_place(url)} answers {status} {problem!r}; check oidc_issuer, or {_LATER}")


def _place(url: str) -> str:
    return f"the provider at {url[: limits.QUOTED_MAX_CHARS]}"


SignInProvider: TypeAlias = Annotated[Provider, routes.app_part("provider")]
BEGIN: Final = "sign in by the provider"
"""Audit name of a sign-in by the provider."""


@provider_pages.get(http_policy.BY_PROVIDER)
async def begin(
    provider: SignInProvider, sessions: LakeSessions, request: Request, next: str = "/"
) -> Response:
    """Redirect the browser to the provider."""
    after = safe_redirect(next)
    try:
        endpoints = await provider.endpoints()
        by = await run_sync(sessions.signing.secret)
    except TracelakeError as error:
        return _problem(request, after, error)
    sign_in_secret, back = oidc.SignInSecret(secrets.token_urlsafe(SECRET_BYTES)), _redirect_uri(request)
    url = oidc.authorization_url(endpoints.authorization, provider.openid, sign_in_secret, back)
    cookie = oidc.sign_state(
        oidc.OidcState(sign_in_secret.secret, after), by, _purpose(provider.openid, back), time.time()
    )
    return _unkept(guard.set_state_cookie(RedirectResponse(url, status_code=303), request, cookie))


@provider_pages.get(http_policy.SIGNED_IN)
async def come_back(
    provider: SignInProvider,
    ring: Ring,
    auditing: Auditing,
    sessions: LakeSessions,
    request: Request,
    code: str = "",
    state: str = "",
    error: str = "",
    iss: str | None = None,
) -> Response:
    """Begin the session of a user whom the provider sends back."""
    openid, after, back = provider.openid, "/", _redirect_uri(request)
    try:
        cookie = guard.our_cookies(request.scope).get(guard.BEGUN_COOKIE, "")
        by = await run_sync(sessions.signing.secret)
        oidc_state = oidc.verify_state(
            cookie, by, _purpose(provider.openid, back), time.time()
        ) or oidc.OidcState("", "/")
        after, sign_in_secret = safe_redirect(oidc_state.after), oidc.SignInSecret(oidc_state.secret)
        oidc.check_back(openid, sign_in_secret, code, state, error, openid.issuer if iss is None else iss)
        claims = await provider.claims(code, sign_in_secret, back)
        admission = oidc.decide_admission(openid, claims)
        person = oidc.person_of(openid.issuer, claims)
        name = oidc.name_of(claims)
        record = await auditing.begin(
            audit_record(
                "sign-in",
                "",
                BEGIN,
                name=name,
                workspace=admission.workspace,
                person=person,
                address=address_of(request.scope),
                object=f"role {admission.role}",
            )
        )
        session = await run_sync(sessions.begin, name, admission.role, admission.workspace, person)
    except TracelakeError as problem:
        auditing.count(
            record_of(
                "counted",
                None,
                BEGIN,
                address_of(request.scope),
                outcome=str(http_policy.status_of(type(problem))),
            )
        )
        return _problem(request, after, problem)
    auditing.end(record, "200", f"role {admission.role}, session {session.key.id}")
    ring.forget()
    key = session.key
    audit.info(
        "session %s %r began, with role %s, of workspace %r", key.id, key.name, key.role, key.workspace
    )
    context = {"after": after, "name": key.name, "wait_s": int(KEYS_MISS_LOOK_S)}
    response = routes.TEMPLATES.TemplateResponse(request, "signed_in.html", context)
    return _unkept(guard.clear_state_cookie(guard.set_key_cookie(response, request, session.token), request))


def _purpose(openid: oidc.OpenId, back: str) -> str:
    """Return the purpose that a state cookie is signed for. It is invalid for another server or provider."""
    return f"{openid.issuer}\0{openid.client_id}\0{back}"


def _problem(request: Request, after: str, error: TracelakeError) -> Response:
    logger.warning("refused: sign-in through the provider: %s", error)
    page = sign_in_page(request, after, str(error), http_policy.status_of(type(error)))
    # During overload the state stays valid, so that the browser can reload the callback.
    return _unkept(page if isinstance(error, BackPressureError) else guard.clear_state_cookie(page, request))


def _redirect_uri(request: Request) -> str:
    """Return the callback URL of this server, by the name that the browser uses."""
    return f"{request.url.scheme}://{request.url.netloc}{http_policy.SIGNED_IN}"


def _unkept(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


class WantedKey(routes.RequestModel):
    """Request body that creates a key."""

    name: str
    role: Role
    workspace: str = ALL_WORKSPACES
    expires_in: str | None = None
    """Duration such as `30d`."""
    spans_per_s: int | None = None
    bytes_per_day: int | None = None


class NewExpiry(routes.RequestModel):
    """Request body that sets a key's expiry; null means never."""

    expires_in: str | None


@api.get(http_policy.KEYS)
def keys(lake: http_policy.RequestLake) -> Response:
    """List keys, oldest first, without their tokens."""
    return routes.json_response({"keys": lake.keys.all()})


@api.post(http_policy.KEYS)
def create(lake: http_policy.RequestLake, ring: Ring, body: routes.JsonBody[WantedKey]) -> Response:
    """Create a key; the response contains its token."""
    new_key = lake.keys.create(
        body.name,
        body.role,
        body.workspace,
        expiry_ns(body.expires_in, time.time_ns()),
        body.spans_per_s,
        body.bytes_per_day,
    )
    ring.forget()
    key = new_key.key
    tell_object(f"key {key.id}")
    audit.info("key %s %r was made, with role %s, of workspace %r", key.id, key.name, key.role, key.workspace)
    response = routes.json_response({"key": new_key.key, "token": new_key.token}, 201)
    response.headers["Cache-Control"] = "no-store"
    return response


@api.delete(f"{http_policy.KEYS}/{{key_id}}")
def revoke(lake: http_policy.RequestLake, ring: Ring, key_id: str) -> Response:
    """Revoke a key, for good."""
    key = lake.keys.revoke(key_id)
    ring.forget(key.id)
    return routes.json_response({"key": key})


@api.post(f"{http_policy.KEYS}/{{key_id}}/expiry")
def expire(
    lake: http_policy.RequestLake, ring: Ring, key_id: str, body: routes.JsonBody[NewExpiry]
) -> Response:
    """Set when a key expires."""
    key = lake.keys.expire(key_id, expiry_ns(body.expires_in, time.time_ns()))
    ring.forget(None if key.standing == "active" else key.id)
    return routes.json_response({"key": key})


@api.get(http_policy.SESSIONS)
def sessions(lake: http_policy.RequestLake) -> Response:
    """List sessions of users who signed in through a provider, oldest first."""
    return routes.json_response({"sessions": lake.sessions.all()})


@api.delete(f"{http_policy.SESSIONS}/{{session_id}}")
def end(lake: http_policy.RequestLake, ring: Ring, session_id: str) -> Response:
    """End a session, for good."""
    session = lake.sessions.revoke(session_id)
    ring.forget(session.id)
    return routes.json_response({"session": session})


Records = Annotated[int, Query(ge=1, le=limits.AUDIT_SHOWN_MAX)]


@api.get(http_policy.AUDIT, name="audit")
def audit_records(
    lake: http_policy.RequestLake,
    auditing: Auditing,
    since: routes.Text = None,
    key: routes.Text = None,
    limit: Records = limits.AUDIT_SHOWN_DEFAULT,
) -> Response:
    """List audit records, newest first; `since` is a duration such as 7d."""
    auditing.settle()
    return routes.json_response({"records": lake.audit.newest(limit, since_ns(since, time.time_ns()), key)})
