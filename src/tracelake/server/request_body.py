"""JSON request bodies: validation, and their OpenAPI schemas.

A POST must be `application/json`. A page of another site can send that only with this server's CORS consent, which it
never gives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from fastapi import Request

from tracelake import limits
from tracelake._errors import DecodeError, UnsupportedError
from tracelake.formats import MALFORMED, decoder
from tracelake.server.audit import tell_body
from tracelake.server.otlp_http import Budget, read_body

BodyT = TypeVar("BodyT")


def json_body(kind: type[BodyT]) -> Callable[[Request], Awaitable[BodyT]]:
    """Return a dependency that reads and validates the body of a POST."""

    async def read(request: Request) -> BodyT:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise UnsupportedError("send Content-Type: application/json")
        with Budget(
            limits.COMMIT_REQUEST_MAX_BYTES
        ).share() as share:  # small, so a shared budget is not needed
            declared = request.headers.get("content-length", "").encode()
            data = await read_body(declared, request.receive, share, limits.COMMIT_REQUEST_MAX_BYTES)
        try:
            body = decoder(kind).decode(data)
        except MALFORMED as error:
            raise DecodeError(f"the body cannot be read: {error}") from error
        tell_body(body)
        return body

    return read


def body_in_openapi(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the OpenAPI schema of a body."""
    _, schemas = msgspec.json.schema_components([kind])
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schemas[kind.__name__]}}}
    }
