"""`/api/v1/sessions`: what `tracelake session` does, for keys of admins."""

from __future__ import annotations

from fastapi import APIRouter, Response

from tracelake.lake.lake import Lake
from tracelake.server.api import json_response
from tracelake.server.key_ring import KeyRing
from tracelake.server.routes import SESSIONS


def sessions_api(lake: Lake, ring: KeyRing) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix=SESSIONS)

    @router.get("", summary="List sessions of people who signed in by a provider, the oldest first")
    def sessions() -> Response:
        return json_response({"sessions": lake.sessions.all()})

    @router.delete("/{session_id}", summary="End a session, for good")
    def end(session_id: str) -> Response:
        session = lake.sessions.revoke(session_id)
        ring.forget(session.id)
        return json_response({"session": session})

    return router
