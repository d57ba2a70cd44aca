"""`/api/v1/keys`: what `tracelake key` does, for keys of admins."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Response

from tracelake.access.duration import expiry_ns
from tracelake.access.model import ALL_WORKSPACES, Role
from tracelake.lake.lake import Lake
from tracelake.server.api import json_response
from tracelake.server.auditing import tell_object
from tracelake.server.json_body import body_in_openapi, json_body
from tracelake.server.key_ring import KeyRing
from tracelake.server.noting import audit
from tracelake.server.routes import KEYS


class WantedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that asks for a key."""

    name: str
    role: Role
    workspace: str = ALL_WORKSPACES
    expires_in: str | None = None
    """A duration such as `30d`."""
    spans_per_s: int | None = None
    bytes_per_day: int | None = None


class NewExpiry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that lets a key end; null for never."""

    expires_in: str | None


def keys_api(lake: Lake, ring: KeyRing) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix=KEYS)

    @router.get("", summary="List keys, the oldest first; no token is ever shown again")
    def keys() -> Response:
        return json_response({"keys": lake.keys.all()})

    @router.post("", summary="Make a key; the answer has its token", openapi_extra=body_in_openapi(WantedKey))
    def create(body: Annotated[WantedKey, Depends(json_body(WantedKey))]) -> Response:
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
    def revoke(key_id: str) -> Response:
        key = lake.keys.revoke(key_id)
        ring.forget(key.id)
        return json_response({"key": key})

    @router.post(
        "/{key_id}/expiry", summary="Let a key end after a while", openapi_extra=body_in_openapi(NewExpiry)
    )
    def expire(key_id: str, body: Annotated[NewExpiry, Depends(json_body(NewExpiry))]) -> Response:
        key = lake.keys.expire(key_id, expiry_ns(body.expires_in, time.time_ns()))
        ring.forget(None if key.standing == "active" else key.id)
        return json_response({"key": key})

    return router
