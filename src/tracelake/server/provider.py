"""Asks an OpenID Connect provider: what it says of itself, its keys, what a code is worth. Each answer is bounded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from ssl import SSLContext
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote_plus

import anyio
import httpx
import msgspec

from tracelake import limits
from tracelake._errors import BackPressureError, NoKeyError, ProviderError
from tracelake.access.id_token import Claims, claims_of
from tracelake.access.openid import (
    Endpoints,
    OpenId,
    SignInSecret,
    endpoints_of,
    joined,
    lacks_claims,
)

T = TypeVar("T")
_DISCOVERY: Final = "/.well-known/openid-configuration"


class Provider:
    """What a server knows of a provider. One event loop at a time uses it."""

    def __init__(self, openid: OpenId, clock: Callable[[], float] = time.monotonic) -> None:
        self._openid = openid
        self._clock = clock
        self._kept: dict[str, tuple[float, Any]] = {}
        self._places = anyio.CapacityLimiter(limits.PROVIDER_REQUESTS_MAX)
        self._tls = httpx.create_ssl_context()

    async def endpoints(self) -> Endpoints:
        """Return where it is asked. Raises ProviderError."""
        issuer = self._openid.issuer
        return await self._known(
            issuer.rstrip("/") + _DISCOVERY, lambda told: endpoints_of(told, issuer), limits.PROVIDER_KEPT_S
        )

    async def claims(self, code: str, begun: SignInSecret, redirect_uri: str) -> Claims:
        """Return what it says of who has this code. Raises NoKeyError, ProviderError."""
        endpoints = await self.endpoints()
        tokens = await self._redeemed(endpoints, code, begun, redirect_uri)
        token = tokens.get("id_token")
        if not isinstance(token, str):
            raise ProviderError(
                "the provider answers without an id token: does it know this client for OpenID Connect?"
            )
        claims = await self._checked(endpoints, token, begun, limits.PROVIDER_KEPT_S)
        if claims is None:
            claims = await self._checked(endpoints, token, begun, limits.PROVIDER_KEYS_AGAIN_S)
        if claims is None:
            raise NoKeyError("what the provider says of you is signed by none of its keys; sign in again")
        if endpoints.userinfo is not None and lacks_claims(self._openid, claims):
            told = await self._told(endpoints.userinfo, tokens.get("access_token"))
            if told.get("sub") != claims["sub"]:
                raise NoKeyError("the provider tells of somebody else than who signed in; sign in again")
            claims = joined(claims, told)
        return claims

    async def _checked(
        self, endpoints: Endpoints, token: str, begun: SignInSecret, max_age_s: float
    ) -> Claims | None:
        keys = await self._known(endpoints.keys, _keys_of, max_age_s)
        openid = self._openid
        return claims_of(token, keys, openid.issuer, openid.client_id, begun.nonce, time.time())

    async def _redeemed(
        self, endpoints: Endpoints, code: str, begun: SignInSecret, redirect_uri: str
    ) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": begun.verifier,
            "client_id": self._openid.client_id,
        }
        secret = self._openid.client_secret
        auth = None
        if secret is not None and endpoints.secret_in_body:
            form["client_secret"] = secret
        elif secret is not None:
            auth = httpx.BasicAuth(quote_plus(self._openid.client_id), quote_plus(secret))  # RFC 6749, 2.3.1
        return await self._answer("POST", endpoints.token, data=form, auth=auth)

    async def _told(self, url: str, access_token: object) -> dict[str, Any]:
        if not isinstance(access_token, str) or not (access_token.isascii() and access_token.isprintable()):
            raise ProviderError("the provider answers without an access token that can be sent; " + _LATER)
        return await self._answer("GET", url, headers={"Authorization": f"Bearer {access_token}"})

    async def _known(self, url: str, checked: Callable[[dict[str, Any]], T], max_age_s: float) -> T:
        """Return what is at an address, which is kept once it was checked."""
        kept_s, known = self._kept.get(url, (float("-inf"), None))
        if self._clock() - kept_s > max_age_s:
            known = checked(await self._answer("GET", url))
            self._kept[url] = (self._clock(), known)
        return cast("T", known)

    async def _answer(self, method: str, url: str, **options: Any) -> dict[str, Any]:
        """Ask, and return the JSON object that is answered. Raises ProviderError; BackPressureError where many ask."""
        place = object()
        try:
            self._places.acquire_on_behalf_of_nowait(place)
        except anyio.WouldBlock:
            with anyio.move_on_after(limits.PROVIDER_WAIT_S) as waiting:
                await self._places.acquire_on_behalf_of(place)
            if waiting.cancelled_caught:
                raise BackPressureError("many sign in at once; try again in a moment") from None
        try:
            with anyio.fail_after(limits.PROVIDER_WAIT_S):
                status, body = await _fetched(method, url, options, self._tls)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:  # TimeoutError is one
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
            told = document if isinstance(document, dict) else {}
            _raise_refused(url, status, told)
        return dict(document)


_LATER: Final = "try again later, or sign in by a key"


def _keys_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the keys of a provider, as it publishes them. Raises ProviderError."""
    keys = document.get("keys")
    if not isinstance(keys, list) or len(keys) > limits.PROVIDER_KEYS_MAX:
        raise ProviderError(f"the provider has no list of keys, or more than {limits.PROVIDER_KEYS_MAX}")
    return [key for key in keys if isinstance(key, dict)]


async def _fetched(method: str, url: str, options: Mapping[str, Any], tls: SSLContext) -> tuple[int, bytes]:
    body = bytearray()
    asked = {"Accept": "application/json", "Accept-Encoding": "identity"} | dict(options.get("headers", {}))
    async with (
        # A provider on this machine is asked through no proxy: what goes there by http is read by nobody.
        httpx.AsyncClient(
            verify=tls, timeout=limits.PROVIDER_WAIT_S, trust_env=url.startswith("https:")
        ) as client,
        client.stream(method, url, **{**options, "headers": asked}) as answer,
    ):
        async for piece in answer.aiter_raw():
            body += piece
            if len(body) > limits.PROVIDER_ANSWER_MAX_BYTES:
                raise ProviderError(
                    f"{_place(url)} answers more than {limits.PROVIDER_ANSWER_MAX_BYTES} bytes; {_LATER}"
                )
        return answer.status_code, bytes(body)


def _raise_refused(url: str, status: int, told: Mapping[str, Any]) -> None:
    """Raise what a refusal of a provider means: it wants nothing of us, or nothing of this code."""
    problem = str(told.get("error", ""))[: limits.NAME_QUOTED_MAX_CHARS]
    if problem == "invalid_grant":
        raise NoKeyError("the provider does not know this sign-in any more; sign in again")
    if problem in {"invalid_client", "unauthorized_client"}:
        raise ProviderError(
            f"the provider does not know this server ({problem}): check oidc_client_id and the client secret"
        )
    raise ProviderError(f"{_place(url)} answers {status} {problem!r}; check oidc_issuer, or {_LATER}")


def _place(url: str) -> str:
    return f"the provider at {url[: limits.QUOTED_MAX_CHARS]}"
