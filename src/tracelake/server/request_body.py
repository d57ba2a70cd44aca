"""JSON bodies of requests that change something: what they must be, and what the OpenAPI document says of them.

A POST has to be `application/json`: no page of another site can send that without the consent of this server, which it
does not give.
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
    """Return what reads and checks the body of a POST."""

    async def read(request: Request) -> BodyT:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise UnsupportedError("send Content-Type: application/json")
        with Budget(
            limits.COMMIT_REQUEST_MAX_BYTES
        ).share() as share:  # small: what all hold together is no concern
            declared = request.headers.get("content-length", "").encode()
            data = await read_body(declared, request.receive, share, limits.COMMIT_REQUEST_MAX_BYTES)
        try:
            body = decoder(kind).decode(data)
        except MALFORMED as error:
            raise DecodeError(f"the body cannot be taken: {error}") from error
        tell_body(body)
        return body

    return read


def body_in_openapi(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return what the OpenAPI document says of such a body."""
    _, schemas = msgspec.json.schema_components([kind])
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schemas[kind.__name__]}}}
    }
