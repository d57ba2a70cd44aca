"""`/sign-in`: a browser gives a key once, and keeps it in a cookie that no script can read and no other site can send.

The cookie is the key itself: so it ends when the key does, on every server of the lake. A session, which a sign-in by a
provider makes, is a key too; signing out ends it.
"""

from __future__ import annotations

import logging
from typing import Final
from urllib.parse import parse_qs, quote

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates

from tracelake import limits
from tracelake._errors import AccessError
from tracelake.access.protocol import id_of
from tracelake.access.sessions import Sessions
from tracelake.server.auditing import Auditing, address_of, record_of
from tracelake.server.body import Budget, read_body
from tracelake.server.cookies import COOKIE, our_cookies, with_key, without_key
from tracelake.server.key_ring import KeyRing, holder_of
from tracelake.server.noting import audit
from tracelake.server.routes import BY_PROVIDER, SIGN_IN, SIGN_OUT

logger = logging.getLogger("tracelake.server")

BY_KEY: Final = "sign in by a key"
"""What the audit calls it. It changes nothing, so it is counted."""


def sign_in_pages(
    ring: KeyRing, auditing: Auditing, templates: Jinja2Templates, sessions: Sessions, by_provider: bool
) -> APIRouter:
    """Return the routes of signing in by a key, and of signing out."""
    router = APIRouter(include_in_schema=False)

    @router.get(SIGN_IN)
    def ask(request: Request, next: str = "/") -> Response:
        return sign_in_page(templates, request, here(next), None, 200, by_provider=by_provider)

    @router.post(SIGN_IN)
    async def sign_in(request: Request, next: str = "/") -> Response:
        with Budget(limits.SIGN_IN_MAX_BYTES).share() as share:
            declared = request.headers.get("content-length", "").encode()
            body = await read_body(declared, request.receive, share, limits.SIGN_IN_MAX_BYTES)
        token = parse_qs(body.decode("latin-1")).get("key", [""])[0].strip()

        def count(outcome: int) -> None:
            who, address = ring.holder(token), address_of(request.scope)
            auditing.count(record_of("counted", who, BY_KEY, address, outcome=str(outcome)))

        try:
            await ring.actor(token, "read")
        except AccessError as error:
            count(401)
            logger.warning("refused: to sign in by a key: %s", error)
            return sign_in_page(templates, request, here(next), str(error), 401, by_provider=by_provider)
        count(303)
        response = RedirectResponse(here(next), status_code=303)
        # Else nobody needs a key here, and it is none.
        return response if id_of(token) is None else with_key(response, request, token)

    @router.post(SIGN_OUT)
    async def sign_out(request: Request) -> Response:
        token = our_cookies(request.scope).get(COOKIE, "")
        if session := await run_sync(sessions.of, token):
            address = address_of(request.scope)
            record = await auditing.begin(record_of("sign-in", holder_of(session), "sign out", address))
            if ended := await run_sync(sessions.end, token):
                ring.forget(ended.id)
                audit.info("session %s %r ended: signed out", ended.id, ended.name)
            auditing.end(record, "303")
        return without_key(RedirectResponse(SIGN_IN, status_code=303), request)

    return router


def sign_in_page(
    templates: Jinja2Templates,
    request: Request,
    after: str,
    problem: str | None,
    status: int,
    *,
    by_provider: bool,
) -> Response:
    """Return the page that asks for a key, or leads to the provider; `after` is where it goes on to."""
    query = f"?next={quote(after, safe='/')}"
    context = {
        "action": SIGN_IN + query,
        "provider": BY_PROVIDER + query if by_provider else None,
        "problem": problem,
        "signed_in": COOKIE in our_cookies(request.scope),
        "json_url": None,
        "lake_url": "",
    }
    return templates.TemplateResponse(request, "sign_in.html", context, status_code=status)


def here(path: str) -> str:
    """Return a path of this server: whatever could lead elsewhere becomes the first page."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_ours and "\\" not in path else "/"
