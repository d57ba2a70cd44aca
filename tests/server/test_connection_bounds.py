"""What the parser of a connection holds has a bound: heads without an end, and requests ahead of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tracelake import limits
from tracelake.server.connections import CONNECTION, Connection, mark_admitted

HEAD = b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\n"


class Transport(asyncio.Transport):
    """A client that reads nothing; it keeps what was written."""

    def __init__(self) -> None:
        """Begin open."""
        super().__init__()
        self.written = b""
        self.ended = False

    def write(self, data: Any) -> None:
        """Keep it."""
        self.written += bytes(data)

    def close(self) -> None:
        """End."""
        self.ended = True

    abort = close

    def is_closing(self) -> bool:
        """Whether it was ended."""
        return self.ended

    def get_write_buffer_size(self) -> int:
        """Nothing waits to be sent."""
        return 0

    def pause_reading(self) -> None:
        """Read no more: nothing more is given."""

    def resume_reading(self) -> None:
        """Read on."""


async def _never(_scope: Any, _receive: Any, _send: Any) -> None:
    await asyncio.Event().wait()


@contextmanager
def connected() -> Iterator[tuple[Connection, Transport]]:
    """Yield a connection of a client, on the loop that runs."""
    transport = Transport()
    connection = Connection(uvicorn.Config(_never, log_config=None), ServerState(), {})
    connection.connection_made(transport)
    yield connection, transport
    connection.connection_lost(ConnectionError())
    for task in connection.tasks:
        task.cancel()


def given(*pieces: bytes) -> tuple[Transport, int]:
    """Give pieces to a connection; return its transport, and how many requests it holds."""

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
    """Whatever part of a request goes on without bringing a body, its connection is ended."""
    pieces = 2 * limits.HEAD_MAX_BYTES // len(piece)
    transport, _ = given(begin, *[piece] * pieces)
    assert transport.ended
    assert transport.written.startswith(b"HTTP/1.1 400")


def test_a_body_may_be_long() -> None:
    """Bytes of a body are none of a head's, in chunks of one byte too."""
    chunks = b"1\r\nx\r\n" * 1_000
    transport, held = given(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunks] * 50)
    assert (transport.ended, held) == (False, 1)


def test_requests_ahead_are_bounded() -> None:
    """A client that sends requests without reading an answer has some of them held, and is ended beyond."""
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    transport, held = given(request * limits.REQUESTS_AHEAD_MAX)
    assert (transport.ended, held) == (False, limits.REQUESTS_AHEAD_MAX)
    transport, held = given(request * 10 * limits.REQUESTS_AHEAD_MAX)
    assert transport.ended
    assert held <= limits.REQUESTS_AHEAD_MAX + 1


def test_who_moves_enough_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that takes longer than the grace, but comes steadily, is waited for; once no more comes, it is not."""
    monkeypatch.setattr(
        limits, "CONNECTION_MIN_BYTES_PER_S", 100
    )  # all of it fits into what waits to be read
    look_s, piece = (
        limits.CONNECTION_LOOK_S,
        int(limits.CONNECTION_LOOK_S * limits.CONNECTION_MIN_BYTES_PER_S),
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
    """Clients without an accepted key have a share of the connections; the slowest of them makes room, no other."""
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
    """However many connections strangers open, those of clients with a key stay."""
    check_strangers(monkeypatch)
