"""`/sign-in/provider` and `/sign-in/callback`: a browser goes to the provider, and comes back with a code.

What it holds meanwhile is a signed cookie of ten minutes, `SameSite=Lax`, since the provider's page leads back here.
Who is let in gets a session: a key, in the cookie that keys have. That is `SameSite=Strict`, so the answer is a page
that leads on by itself: a redirect would still be asked for by the provider's page, and come without the cookie. It
waits until every server of the lake knows the session, or looks for it.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Final

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates

from tracelake import limits
from tracelake._errors import BackPressureError, TracelakeError
from tracelake.access.audit import audit_record
from tracelake.access.begun import SignInBegun, begun_of, signed
from tracelake.access.openid import (
    OpenId,
    SignInSecret,
    admission_of,
    authorization_url,
    check_back,
    name_of,
    person_of,
)
from tracelake.access.protocol import SECRET_BYTES
from tracelake.access.sessions import Sessions
from tracelake.server.auditing import Auditing, address_of, record_of
from tracelake.server.cookies import BEGUN_COOKIE, our_cookies, with_begun, with_key, without_begun
from tracelake.server.errors import status_of
from tracelake.server.key_ring import KeyRing
from tracelake.server.noting import audit
from tracelake.server.provider import Provider
from tracelake.server.routes import BY_PROVIDER, SIGNED_IN
from tracelake.server.sign_in import here, sign_in_page

logger = logging.getLogger("tracelake.server")

BEGIN: Final = "sign in by the provider"
"""What the audit calls it."""


def provider_pages(
    openid: OpenId,
    provider: Provider,
    ring: KeyRing,
    auditing: Auditing,
    templates: Jinja2Templates,
    sessions: Sessions,
) -> APIRouter:
    """Return the routes of signing in by a provider."""
    router = APIRouter(include_in_schema=False)

    @router.get(BY_PROVIDER)
    async def begin(request: Request, next: str = "/") -> Response:
        after = here(next)
        try:
            endpoints = await provider.endpoints()
            by = await run_sync(sessions.signing.secret)
        except TracelakeError as error:
            return _problem(request, after, error)
        begun, back = SignInSecret(secrets.token_urlsafe(SECRET_BYTES)), _redirect_uri(request)
        url = authorization_url(endpoints.authorization, openid, begun, back)
        held = signed(SignInBegun(begun.secret, after), by, _place(back), time.time())
        return _unkept(with_begun(RedirectResponse(url, status_code=303), request, held))

    @router.get(SIGNED_IN)
    async def come_back(
        request: Request, code: str = "", state: str = "", error: str = "", iss: str = openid.issuer
    ) -> Response:
        after, back = "/", _redirect_uri(request)
        try:
            held = our_cookies(request.scope).get(BEGUN_COOKIE, "")
            by = await run_sync(sessions.signing.secret)
            known = begun_of(held, by, _place(back), time.time()) or SignInBegun("", "/")
            after, begun = here(known.after), SignInSecret(known.secret)
            check_back(openid, begun, code, state, error, iss)
            claims = await provider.claims(code, begun, back)
            admission = admission_of(openid, claims)
            person = person_of(openid.issuer, claims)
            name = name_of(claims)
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
                    "counted", None, BEGIN, address_of(request.scope), outcome=str(status_of(type(problem)))
                )
            )
            return _problem(request, after, problem)
        auditing.end(record, "200", f"role {admission.role}, session {session.key.id}")
        ring.forget()
        key = session.key
        audit.info(
            "session %s %r began, with role %s, of workspace %r", key.id, key.name, key.role, key.workspace
        )
        context = {
            "after": after,
            "name": key.name,
            "wait_s": int(limits.KEYS_MISS_LOOK_S),
            "json_url": None,
            "lake_url": "",
        }
        response = templates.TemplateResponse(request, "signed_in.html", context)
        return _unkept(without_begun(with_key(response, request, session.token), request))

    def _place(back: str) -> str:
        """Return for what a browser begins: what it began elsewhere, or with another provider, is of no use here."""
        return f"{openid.issuer}\0{openid.client_id}\0{back}"

    def _problem(request: Request, after: str, error: TracelakeError) -> Response:
        logger.warning("refused: to sign in by the provider: %s", error)
        page = sign_in_page(templates, request, after, str(error), status_of(type(error)), by_provider=True)
        # Where many sign in at once what was begun still counts, once the page is asked for again.
        return _unkept(page if isinstance(error, BackPressureError) else without_begun(page, request))

    return router


def _redirect_uri(request: Request) -> str:
    """Return where the provider leads back to: this server, by the name that the browser calls it."""
    return f"{request.url.scheme}://{request.url.netloc}{SIGNED_IN}"


def _unkept(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response
