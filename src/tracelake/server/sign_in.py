"""`/sign-in`: a browser gives a key once, and keeps it in a cookie that no script can read and no other site can send.

The cookie is the key itself: so it ends when the key does, on every server of the lake, and there are no sessions to
remember.
"""

from __future__ import annotations

from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.templating import Jinja2Templates

from tracelake import limits
from tracelake._errors import AccessError
from tracelake.access.protocol import id_of
from tracelake.server.body import Budget, read_body
from tracelake.server.guard import COOKIE
from tracelake.server.key_ring import KeyRing
from tracelake.server.routes import SIGN_IN, SIGN_OUT


def sign_in_pages(ring: KeyRing, templates: Jinja2Templates) -> APIRouter:
    """Return the routes of signing in and out."""
    router = APIRouter(include_in_schema=False)

    def page(request: Request, after: str, problem: str | None, status: int) -> Response:
        context = {
            "action": f"{SIGN_IN}?next={quote(after, safe='/')}",
            "problem": problem,
            "signed_in": COOKIE in request.cookies,
            "json_url": None,
            "lake_url": "",
        }
        return templates.TemplateResponse(request, "sign_in.html", context, status_code=status)

    @router.get(SIGN_IN)
    def ask(request: Request, next: str = "/") -> Response:
        return page(request, here(next), None, 200)

    @router.post(SIGN_IN)
    async def sign_in(request: Request, next: str = "/") -> Response:
        with Budget(limits.SIGN_IN_MAX_BYTES).share() as share:
            declared = request.headers.get("content-length", "").encode()
            body = await read_body(declared, request.receive, share, limits.SIGN_IN_MAX_BYTES)
        token = parse_qs(body.decode("latin-1")).get("key", [""])[0].strip()
        try:
            await ring.actor(token, "read")
        except AccessError as error:
            return page(request, here(next), str(error), 401)
        response = RedirectResponse(here(next), status_code=303)
        if id_of(token) is not None:  # else nobody needs a key here, and it is none
            secure = request.url.scheme == "https"
            response.set_cookie(
                COOKIE, token, max_age=limits.SIGN_IN_MAX_S, httponly=True, samesite="strict", secure=secure
            )
        return response

    @router.post(SIGN_OUT)
    async def sign_out() -> Response:
        response = RedirectResponse(SIGN_IN, status_code=303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    return router


def here(path: str) -> str:
    """Return a path of this server: whatever could lead elsewhere becomes the first page."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_ours and "\\" not in path else "/"
