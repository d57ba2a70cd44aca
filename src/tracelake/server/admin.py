"""Admin API: `/api/v1/keys`, `/api/v1/sessions` and `/api/v1/audit`.

Like `tracelake key` and `tracelake session`, but over HTTP with an admin key. An admin of one workspace sees only the
audit records of that workspace's keys.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from tracelake import limits
from tracelake.access.audit import since_ns
from tracelake.access.keys import ALL_WORKSPACES, Role, expiry_ns
from tracelake.server.audit import AuditWriter, audit, tell_object
from tracelake.server.http_policy import AUDIT, KEYS, SESSIONS, RequestLake
from tracelake.server.key_ring import KeyRing
from tracelake.server.request_body import body_in_openapi, json_body
from tracelake.server.traces import Text, json_response


class WantedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request body that creates a key."""

    name: str
    role: Role
    workspace: str = ALL_WORKSPACES
    expires_in: str | None = None
    """Duration such as `30d`."""
    spans_per_s: int | None = None
    bytes_per_day: int | None = None


class NewExpiry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request body that sets a key's expiry; null means never."""

    expires_in: str | None


def keys_api(ring: KeyRing) -> APIRouter:
    """Return the routes for keys."""
    router = APIRouter(prefix=KEYS)

    @router.get("", summary="List keys, the oldest first; no token is ever shown again")
    def keys(lake: RequestLake) -> Response:
        return json_response({"keys": lake.keys.all()})

    @router.post("", summary="Make a key; the answer has its token", openapi_extra=body_in_openapi(WantedKey))
    def create(lake: RequestLake, body: Annotated[WantedKey, Depends(json_body(WantedKey))]) -> Response:
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
        audit.info(
            "key %s %r was made, with role %s, of workspace %r", key.id, key.name, key.role, key.workspace
        )
        response = json_response({"key": new_key.key, "token": new_key.token}, 201)
        response.headers["Cache-Control"] = "no-store"
        return response

    @router.delete("/{key_id}", summary="Revoke a key, for good")
    def revoke(lake: RequestLake, key_id: str) -> Response:
        key = lake.keys.revoke(key_id)
        ring.forget(key.id)
        return json_response({"key": key})

    @router.post(
        "/{key_id}/expiry", summary="Let a key end after a while", openapi_extra=body_in_openapi(NewExpiry)
    )
    def expire(
        lake: RequestLake, key_id: str, body: Annotated[NewExpiry, Depends(json_body(NewExpiry))]
    ) -> Response:
        key = lake.keys.expire(key_id, expiry_ns(body.expires_in, time.time_ns()))
        ring.forget(None if key.standing == "active" else key.id)
        return json_response({"key": key})

    return router


def sessions_api(ring: KeyRing) -> APIRouter:
    """Return the routes for sessions."""
    router = APIRouter(prefix=SESSIONS)

    @router.get("", summary="List sessions of people who signed in by a provider, the oldest first")
    def sessions(lake: RequestLake) -> Response:
        return json_response({"sessions": lake.sessions.all()})

    @router.delete("/{session_id}", summary="End a session, for good")
    def end(lake: RequestLake, session_id: str) -> Response:
        session = lake.sessions.revoke(session_id)
        ring.forget(session.id)
        return json_response({"session": session})

    return router


Records = Annotated[int, Query(ge=1, le=limits.AUDIT_SHOWN_MAX)]


def audit_api(auditing: AuditWriter) -> APIRouter:
    """Return the audit route."""
    router = APIRouter()

    @router.get(AUDIT, summary="Who did what, the newest first; `since` is a duration such as 7d")
    def audit(
        lake: RequestLake, since: Text = None, key: Text = None, limit: Records = limits.AUDIT_SHOWN_DEFAULT
    ) -> Response:
        auditing.settle()
        return json_response({"records": lake.audit.newest(limit, since_ns(since, time.time_ns()), key)})

    return router
