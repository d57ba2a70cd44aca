"""Connections that send a byte at a time, from the point of HTTP, TLS or gRPC that each kind reaches at once."""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, cycle, repeat
from typing import Final, NamedTuple

from tests.server.otlp_requests import export_request
from tracelake.server.otlp_grpc import TRACES

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP_HEAD: Final = b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY_LENGTH: Final = 100_000
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6


class Kind(NamedTuple):
    """The bytes of one connection: the beginning at once, then one byte per turn."""

    at_once: bytes
    slowly: Callable[[], Iterator[bytes]]


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """Return a frame of HTTP/2; `length` overrides its true length."""
    told = len(payload) if length is None else length
    return told.to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def head_block(fields: Mapping[str, str | bytes]) -> bytes:
    """Return the header fields, without compression."""
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value
        for name, value in ((name, _octets(value)) for name, value in fields.items())
    )


def _octets(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def call_head(authorization: str, path: str | bytes = f"/{TRACES}/Export") -> bytes:
    """Return the frame that begins a call of Export, or of another method."""
    fields: dict[str, str | bytes] = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "a"}
    fields |= {"content-type": "application/grpc", "te": "trailers", "authorization": authorization}
    return frame(HEADERS, 4, 1, head_block(fields))


def _message(data: bytes, length: int | None = None) -> bytes:
    """Return a message in gRPC's framing."""
    return b"\0" + (len(data) if length is None else length).to_bytes(4) + data


def _each(data: bytes) -> Iterator[bytes]:
    return (bytes([byte]) for byte in data)


def client_hello() -> bytes:
    """Return the first bytes of a TLS client."""
    read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(read, written, server_hostname="slow").do_handshake()
    except ssl.SSLWantReadError:
        return written.read()
    raise AssertionError("a handshake needs two")


def http_kinds(authorization: str = "") -> dict[str, Kind]:
    """Return kinds of connections to the HTTP port, with such a header."""
    head = HTTP_HEAD + f"Authorization: {authorization}\r\n".encode()
    return {
        "HTTP head": Kind(head + b"X-Slow: ", lambda: repeat(b"x")),
        "HTTP body": Kind(head + b"Content-Length: %d\r\n\r\n" % BODY_LENGTH, lambda: repeat(b"\n")),
        "HTTP chunks": Kind(
            head + b"Transfer-Encoding: chunked\r\n\r\n", lambda: cycle(_each(b"1\r\nx\r\n"))
        ),
    }


def grpc_kinds(authorization: str = "") -> dict[str, Kind]:
    """Return kinds of connections to the gRPC port, with such metadata."""
    acknowledges = frame(SETTINGS, 1, 0, b"")
    speaks = PREFACE + frame(SETTINGS, 0, 0, b"") + acknowledges
    reads_nothing = PREFACE + frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)) + acknowledges
    call = call_head(authorization)
    whole = frame(DATA, 1, 1, _message(export_request(7).SerializeToString()))
    endless = _message(export_request(1).SerializeToString(), BODY_LENGTH)
    return {
        "gRPC preface": Kind(b"", lambda: _each(PREFACE)),
        "gRPC head": Kind(speaks, lambda: chain(_each(frame(HEADERS, 4, 1, b"", 10_000)), repeat(b"\0"))),
        "gRPC pings": Kind(speaks, lambda: cycle(_each(frame(6, 0, 0, bytes(8))))),
        "gRPC message": Kind(
            speaks + call + frame(DATA, 0, 1, b"", 16_000), lambda: chain(_each(endless), repeat(b"\0"))
        ),
        "gRPC frames": Kind(
            speaks + call,
            lambda: (frame(DATA, 0, 1, byte) for byte in chain(_each(endless), repeat(b"\0"))),
        ),
        # A call whose response gets no window, and a frame without effect.
        "gRPC answer": Kind(
            reads_nothing + call + whole, lambda: chain(_each(frame(11, 0, 0, b"", 16_000)), repeat(b"\0"))
        ),
    }


TLS_KIND: Final = Kind(b"", lambda: chain(_each(client_hello()), repeat(b"\0")))


class SlowConnections:
    """Several connections of each kind; each `turn` advances all open ones."""

    def __init__(self, address: tuple[str, int], kinds: Mapping[str, Kind], of_each: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._open: dict[socket.socket, tuple[str, Iterator[bytes]]] = {}
        self.ended_after_s: dict[str, list[float]] = {name: [] for name in kinds}
        self._began_s = time.monotonic()
        for name, kind in kinds.items():
            for _ in range(of_each):
                connection = socket.create_connection(address, timeout=60)
                connection.sendall(kind.at_once)
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ)
                self._open[connection] = name, kind.slowly()

    @property
    def open(self) -> int:
        """Return the number of connections that the server has not closed."""
        return len(self._open)

    def turn(self) -> None:
        """Send a byte over each, and read the server's response."""
        for connection, (_, slowly) in list(self._open.items()):
            try:
                connection.send(next(slowly, b""))
            except OSError:
                self._end(connection)
        for key, _ in self._selector.select(0):
            told = key.fileobj
            assert isinstance(told, socket.socket)
            try:
                if not told.recv(65_536):
                    self._end(told)
            except BlockingIOError:
                pass
            except OSError:
                self._end(told)

    def _end(self, connection: socket.socket) -> None:
        name, _ = self._open.pop(connection)
        self.ended_after_s[name].append(time.monotonic() - self._began_s)
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Close the open connections."""
        for connection in list(self._open):
            self._selector.unregister(connection)
            connection.close()
        self._open.clear()
        self._selector.close()
