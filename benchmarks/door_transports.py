"""How senders of `door.py` and `exporters.py` reach a server: a connection each, kept open, as exporters have it.

The exporters of the Python SDK take longer for a request than servers do, so the same bytes are sent without them.
"""

from __future__ import annotations

import socket
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import grpc

TIMEOUT_S: Final = 120.0
EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
TAKEN: Final = 200
REFUSED: Final = 503
_MAY_BE_SENT_AGAIN: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


class Transport(Protocol):
    """A connection to a server."""

    def post(self, body: bytes) -> int:
        """Send a request, read its answer to the end, and return its status, as HTTP has it. Raises OSError."""

    def close(self) -> None:
        """End the connection."""


class Http:
    """OTLP/HTTP over a connection that is kept."""

    def __init__(self, url: str, headers: dict[str, str], content_type: str) -> None:
        """Connect. Raises OSError."""
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname or "", address.port or 80), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._head = f"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n{lines}"

    def post(self, body: bytes) -> int:
        """Send a request; return the status. Raises OSError."""
        self._socket.sendall(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._received()
        head, _, rest = answer.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        while len(rest) < length:
            rest += self._received()
        return int(head.split(b" ", 2)[1])

    def _received(self) -> bytes:
        piece = self._socket.recv(65_536)
        if not piece:
            raise ConnectionError("the server closed a connection")
        return piece

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Grpc:
    """OTLP/gRPC over a channel of its own, which shares its connection with no other."""

    def __init__(self, address: str, headers: dict[str, str]) -> None:
        """Make a channel; it connects with the first call."""
        self._channel: Any = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._export: Any = self._channel.unary_unary(EXPORT)
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())

    def post(self, body: bytes) -> int:
        """Make a call; return what HTTP has for its code. Raises ConnectionError."""
        try:
            self._export(body, timeout=TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            if error.code() in _MAY_BE_SENT_AGAIN and "grpc-status-details-bin" in dict(
                error.trailing_metadata() or ()
            ):
                return REFUSED
            raise ConnectionError(f"{error.code().name}: {error.details()}") from None
        return TAKEN

    def close(self) -> None:
        """End the connection."""
        self._channel.close()
