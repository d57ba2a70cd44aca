"""Connections that send one byte at a time, in TLS handshakes and in gRPC: they block no client, and are ended."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import uvicorn
from uvicorn.server import ServerState

from tests.patience import HANG_S
from tests.server.faults import FaultyStore
from tests.server.grpc_client import export_call, with_door
from tests.server.otlp_requests import export_request
from tests.server.slow_connections import TLS_KIND, SlowConnections, grpc_kinds
from tests.server.test_run import certificate
from tracelake import limits
from tracelake.server.connections import Handshakes, Tls

GOOD = export_request(1).SerializeToString()


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    """Return a certificate."""
    cert, key = certificate(tmp_path)
    return Tls(str(cert), str(key))


async def _answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def secured(tls: Tls, use: Callable[[tuple[str, int]], Awaitable[None]]) -> None:
    """Call `use` with the address of a server that terminates TLS itself."""

    async def run() -> None:
        config = uvicorn.Config(_answer, log_config=None, lifespan="off")
        state, handshakes = ServerState(), Handshakes(tls.context)
        loop = asyncio.get_running_loop()
        server: Any = await loop.create_server(
            lambda: handshakes.protocol(config, state, {}, loop), "127.0.0.1", 0
        )
        async with server:
            try:
                await use(server.sockets[0].getsockname()[:2])
            finally:  # leftovers at the end of the loop cause warnings in a later test
                for task in list(handshakes._tasks):
                    task.cancel()
                for connection in list(state.connections):
                    connection.transport.abort()
                async with asyncio.timeout(60.0):
                    while server._active_count:
                        await asyncio.sleep(0.01)

    asyncio.run(run())


async def asked(address: tuple[str, int], tls: Tls) -> bytes:
    """Return the response to a request that arrives together with the end of its handshake."""
    read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
    speaks = ssl.create_default_context(cafile=tls.cert).wrap_bio(read, written, server_hostname="127.0.0.1")
    reader, writer = await asyncio.open_connection(*address)
    is_secured, answer = False, b""
    try:
        while not answer.endswith(b"hello"):
            try:
                if not is_secured:
                    speaks.do_handshake()
                    is_secured = True
                    speaks.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                answer += speaks.read()
            except ssl.SSLWantReadError:
                writer.write(written.read())
                piece = await reader.read(65_536)
                assert piece, "the server has ended the connection"
                read.write(piece)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return answer


async def goes_on(
    slow: SlowConnections, good: Callable[[], Awaitable[object]], until: Callable[[], bool]
) -> None:
    """Advance slow connections and a good client until a condition is true; then close them."""
    try:
        async with asyncio.timeout(HANG_S):
            while not until():
                slow.turn()
                await good()
                await asyncio.sleep(0.02)
    finally:
        slow.close()


def test_a_request_that_comes_with_the_end_of_a_handshake_is_answered(tls: Tls) -> None:
    """Early bytes of a client are not lost. A connection without TLS is ended, and no other."""

    async def use(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(HANG_S):
            assert (await asked(address, tls)).startswith(b"HTTP/1.1 200")
            assert b"HTTP/1" not in await reader.read()
        writer.close()
        await writer.wait_closed()

    secured(tls, use)


def check_handshakes_at_once(tls: Tls) -> None:
    """Check that the slowest of too many handshakes are closed, and that good ones finish."""

    async def use(address: tuple[str, int]) -> None:
        slow = SlowConnections(address, {"TLS": TLS_KIND}, 12)
        await goes_on(slow, lambda: asked(address, tls), lambda: slow.open <= 3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "HANDSHAKES_MAX", 3)
        patch.setattr(limits, "HANDSHAKE_MAX_S", 600.0)
        secured(tls, use)


def check_long_handshakes(tls: Tls) -> None:
    """Check that a handshake that takes too long is closed."""

    async def use(address: tuple[str, int]) -> None:
        slow = SlowConnections(address, {"TLS": TLS_KIND}, 3)
        await goes_on(slow, lambda: asyncio.sleep(0), lambda: not slow.open)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "HANDSHAKE_MAX_S", 0.2)
        secured(tls, use)


def test_handshakes_have_bounds(tls: Tls) -> None:
    """Handshakes are bounded in number and in time."""
    check_handshakes_at_once(tls)
    check_long_handshakes(tls)


def test_slow_grpc_connections_keep_nobody_out(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that are slow at the start, in a frame or in a message are closed, each by its limit; others
    continue."""
    monkeypatch.setattr(limits, "GRPC_HANDSHAKE_MAX_S", 0.5)
    monkeypatch.setattr(limits, "GRPC_READ_MAX_S", 0.5)
    monkeypatch.setattr(limits, "GRPC_IDLE_MAX_S", 1.0)

    async def use(address: str) -> None:
        host, _, port = address.rpartition(":")
        slow = SlowConnections((host, int(port)), grpc_kinds(), 3)
        async with grpc.aio.insecure_channel(address) as channel:
            export = export_call(channel)
            answers: list[object] = []

            async def good() -> None:
                try:
                    answers.append(await export(GOOD))
                except grpc.aio.AioRpcError as error:  # on a slow machine short limits end good calls, too
                    if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                        raise

            await goes_on(slow, good, lambda: not slow.open and answers != [])

    assert ("TraceService", "OK") in with_door(store, use)
