"""`POST /v1/metrics` and `/v1/logs`: answered as a success, so that SDKs do not warn at each export, and not kept.

What comes is read, within the bounds of a request, and counted; nothing decodes it.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracelake import limits
from tracelake._errors import LimitError

SIGNALS = ("metrics", "logs")


class NotKeptEndpoint:
    """One of the two, as an ASGI application."""

    def __init__(self, signal: str, not_kept: Callable[[str], None]) -> None:
        """Tell `not_kept` of each request."""
        self._signal = signal
        self._not_kept = not_kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with an empty success, in its own encoding."""
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if await _skip_body(receive):
            self._not_kept(self._signal)
            as_json = content_type == "application/json"
            media_type = "application/json" if as_json else "application/x-protobuf"
            response = Response(b"{}" if as_json else b"", media_type=media_type)
            await response(scope, receive, send)


async def _skip_body(receive: Receive) -> bool:
    """Read a body and forget it; False where the client went away. Raises LimitError."""
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        size_bytes += len(message.get("body", b""))
        if size_bytes > limits.OTLP_REQUEST_MAX_BYTES:
            raise LimitError(
                f"the body has more than {limits.OTLP_REQUEST_MAX_BYTES} bytes; send smaller batches"
            )
        if not message.get("more_body", False):
            return True
