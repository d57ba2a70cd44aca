"""What a browser keeps of ours: the key that it signed in with, and what it began at the provider.

Over TLS, here or at a proxy on this machine, a name begins with `__Host-`, and that name alone is read: browsers let
nobody set such a cookie but this host itself, over TLS. A page of a sibling domain, or who sits on the way and answers
without TLS, can plant one of the bare name, which is none here.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tracelake import limits
from tracelake.access.begun import BEGUN_PATTERN
from tracelake.access.protocol import id_of
from tracelake.server.routes import SIGNED_IN

COOKIE: Final = "tracelake_key"
BEGUN_COOKIE: Final = "tracelake_sign_in"
"""What a browser holds while it is at the provider."""
_BEGUN: Final = re.compile(BEGUN_PATTERN, re.ASCII)


def cookie_name(name: str, scheme: str) -> str:
    """Return what a cookie is called where requests come so: with http or https."""
    return f"__Host-{name}" if scheme == "https" else name


def our_cookies(scope: Scope) -> dict[str, str]:
    """Return what our cookies have, by their bare names, and not what cannot be ours, whatever is beside them."""
    ours: dict[str, str] = {}
    bare = {cookie_name(name, scope["scheme"]): name for name in (COOKIE, BEGUN_COOKIE)}
    for cookie in Headers(scope=scope).get("cookie", "").split(";"):
        called, _, value = cookie.strip().partition("=")
        name = bare.get(called)
        if (name == COOKIE and id_of(value)) or (name == BEGUN_COOKIE and _BEGUN.fullmatch(value)):
            ours.setdefault(name, value)
    return ours


def leave_out_cookies(scope: Scope) -> None:
    """Let a request have our cookies alone: who reads all of them as Python does takes seconds for some."""
    ours = "; ".join(
        f"{cookie_name(name, scope['scheme'])}={value}" for name, value in our_cookies(scope).items()
    )
    others = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
    scope["headers"] = [*others, (b"cookie", ours.encode())] if ours else others


def with_key(response: Response, request: Request, token: str) -> Response:
    """Let a browser keep a key, or the key of a session."""
    return _set(response, request, COOKIE, token, limits.SIGN_IN_MAX_S)


def without_key(response: Response, request: Request) -> Response:
    """Let a browser forget it."""
    return _set(response, request, COOKIE, "", 0)


def with_begun(response: Response, request: Request, held: str) -> Response:
    """Let a browser hold what it began, while it is at the provider."""
    return _set(response, request, BEGUN_COOKIE, held, limits.SIGN_IN_BEGUN_MAX_S)


def without_begun(response: Response, request: Request) -> Response:
    """Let a browser forget it."""
    return _set(response, request, BEGUN_COOKIE, "", 0)


def _set(response: Response, request: Request, name: str, value: str, max_age_s: int) -> Response:
    is_begun, secure = name == BEGUN_COOKIE, request.url.scheme == "https"
    # The provider's page leads back here with what was begun, so that cannot be strict.
    same_site: Literal["lax", "strict"] = "lax" if is_begun else "strict"
    response.set_cookie(
        cookie_name(name, request.url.scheme),
        value,
        max_age=max_age_s,
        # Browsers refuse `__Host-` with any other path, and without Secure, also where it is forgotten.
        path=SIGNED_IN if is_begun and not secure else "/",
        httponly=True,
        samesite=same_site,
        secure=secure,
    )
    return response
