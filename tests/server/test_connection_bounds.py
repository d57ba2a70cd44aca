"""The bounds of a connection's parser: endless headers, and pipelined requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tracelake import limits
from tracelake.server import connections
from tracelake.server.connections import CONNECTION, Connection, mark_admitted

HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Transport(asyncio.Transport):
    """A client that reads nothing and records the server's writes."""

    def __init__(self) -> None:
        """Start open."""
        super().__init__()
        self.written = b""
        self.ended = False

    def write(self, data: Any) -> None:
        """Record the written data."""
        self.written += bytes(data)

    def close(self) -> None:
        """Close the connection."""
        self.ended = True

    abort = close

    def is_closing(self) -> bool:
        """Return whether the connection was closed."""
        return self.ended

    def get_write_buffer_size(self) -> int:
        """Return 0, because no bytes are pending."""
        return 0

    def pause_reading(self) -> None:
        """Stop reading: the connection gets no more bytes."""

    def resume_reading(self) -> None:
        """Resume reading."""


async def _never(_scope: Any, _receive: Any, _send: Any) -> None:
    await asyncio.Event().wait()


@contextmanager
def connected() -> Iterator[tuple[Connection, Transport]]:
    """Yield a client's connection on the running loop."""
    transport = Transport()
    connection = Connection(uvicorn.Config(_never, log_config=None), ServerState(), {})
    connection.connection_made(transport)
    yield connection, transport
    connection.connection_lost(ConnectionError())
    for task in connection.tasks:
        task.cancel()


def given(*pieces: bytes) -> tuple[Transport, int]:
    """Feed pieces to a connection; return its transport, and its number of pending requests."""

    async def give() -> tuple[Transport, int]:
        with connected() as (connection, transport):
            for piece in pieces:
                if not transport.is_closing():
                    connection.data_received(piece)
            return transport, len(connection.tasks) + len(connection.pipeline)

    return asyncio.run(give())


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (HEAD + b"X: ", b"x" * 1_000),
        (HEAD, b"X-Header: x\r\n" * 100),
        (b"POST /", b"x" * 1_000),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nTrailer: ", b"x" * 1_000),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;a=", b"x" * 1_000),
    ],
    ids=["a header without end", "headers without end", "a path", "a trailer", "an extension of a chunk"],
)
def test_a_head_without_end_is_cut_off(begin: bytes, piece: bytes) -> None:
    """A connection ends if any part of a request before its body has no end."""
    pieces = 2 * limits.HEAD_MAX_BYTES // len(piece)
    transport, _ = given(begin, *[piece] * pieces)
    assert transport.ended
    assert transport.written.startswith(b"HTTP/1.1 400")


def test_a_body_may_be_long() -> None:
    """Bytes of a body do not count as bytes of the header, even in chunks of one byte."""
    chunks = b"1\r\nx\r\n" * 1_000
    transport, held = given(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunks] * 50)
    assert (transport.ended, held) == (False, 1)


def test_requests_ahead_are_bounded() -> None:
    """A client that pipelines requests without reading responses has some of them queued, and is closed beyond the
    limit."""
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    transport, held = given(request * limits.REQUESTS_AHEAD_MAX)
    assert (transport.ended, held) == (False, limits.REQUESTS_AHEAD_MAX)
    transport, held = given(request * 10 * limits.REQUESTS_AHEAD_MAX)
    assert transport.ended
    assert held <= limits.REQUESTS_AHEAD_MAX + 1


def test_who_moves_enough_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow but steady body may take longer than the grace period; once it stops, the connection ends."""
    # everything fits into the connection's read buffer
    monkeypatch.setattr(limits, "CONNECTION_MIN_BYTES_PER_S", 100)
    look_s, piece = (
        connections.CONNECTION_LOOK_S,
        int(connections.CONNECTION_LOOK_S * limits.CONNECTION_MIN_BYTES_PER_S),
    )
    looks = 3 * int(limits.CONNECTION_GRACE_S / look_s + 1)

    async def send() -> list[bool]:
        loop, now_s, ended = asyncio.get_running_loop(), 0.0, []
        with monkeypatch.context() as patched, connected() as (connection, transport):
            patched.setattr(loop, "time", lambda: now_s)
            connection._begin_turn()
            connection.data_received(HEAD + b"Content-Length: 999999999\r\n\r\n")
            for size in [piece] * looks + [0] * looks:
                now_s += look_s
                if not transport.ended:
                    connection.data_received(bytes(size))
                    connection._look()
                ended.append(transport.ended)
        return ended

    ended = asyncio.run(send())
    assert ended[looks - 1 :: looks] == [False, True]


def check_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that clients without an accepted key have a share of the connections; beyond it only their slowest is
    closed."""
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 8)

    async def run() -> tuple[list[bool], list[bool]]:
        config, state = uvicorn.Config(_never, log_config=None), ServerState()
        made: list[tuple[Connection, Transport]] = []

        def connect(*, admitted: bool) -> None:
            connection, transport = Connection(config, state, {}), Transport()
            connection.connection_made(transport)
            if admitted:
                mark_admitted({CONNECTION: connection})
            made.append((connection, transport))

        for number in range(12):
            connect(admitted=number in (0, 1, 2))
        ended = [transport.ended for _, transport in made]
        for connection, _ in made:
            connection.connection_lost(None)
        return ended[:3], ended[3:]

    admitted, strangers = asyncio.run(run())
    assert admitted == [False] * 3
    assert strangers.count(False) == 4


def test_strangers_get_a_share_of_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of clients with a key stay open, for any number of connections without one."""
    check_strangers(monkeypatch)
