"""TLS of HTTP connections, begun here: what has not come to the end of its handshake has a bound in time and number.

An event loop that begins TLS by itself tells of a connection only when that is done. Who begins and does not go on
would hold a file that nobody counts, until there are none left to accept others with.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tracelake import limits
from tracelake.server.connections import Connection, connections_max

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    import uvicorn
    from uvicorn.server import ServerState

logger = logging.getLogger("tracelake.server")


def handshakes_max() -> int:
    """Return how many there may be at one time: a quarter of what there may be of connections, at most."""
    return max(1, min(limits.HANDSHAKES_MAX, connections_max() // 4))


class Handshakes:
    """Those of one server that are under way. One event loop uses it."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        """Begin TLS as `context` says when a connection comes."""
        self._context = context
        self._under_way: dict[asyncio.Transport, None] = {}
        """The one that began first before the others."""
        self._tasks: set[asyncio.Task[None]] = set()

    def protocol(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """Return what takes a connection that was accepted; uvicorn asks for it."""
        return _Handshake(self, Connection(config, server_state, app_state, _loop))

    def begin(self, transport: asyncio.Transport, handshake: _Handshake) -> None:
        """Begin one; where there are too many, the first makes room."""
        self._under_way[transport] = None
        if len(self._under_way) > handshakes_max():
            first = next(iter(self._under_way))
            del self._under_way[first]
            logger.warning("too many TLS handshakes are under way: the slowest was ended for a new one")
            first.abort()
        task = asyncio.get_running_loop().create_task(self._secure(transport, handshake))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _secure(self, transport: asyncio.Transport, handshake: _Handshake) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                handshake,
                self._context(),
                server_side=True,
                ssl_handshake_timeout=limits.HANDSHAKE_MAX_S,
            )
        except OSError:  # it did not go on, or speaks no TLS: nothing to tell
            transport.abort()
        else:
            # One that was ended while it went on may look as if it had come to its end.
            if secured is not None and not secured.is_closing():
                handshake.hand_on(secured)
        finally:
            self._under_way.pop(transport, None)


class _Handshake(asyncio.Protocol):
    """A connection until its handshake is done."""

    def __init__(self, handshakes: Handshakes, connection: Connection) -> None:
        self._handshakes = handshakes
        self._connection = connection
        self._early: list[bytes] = []
        """What a client sent along with the end of its handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin TLS."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # until TLS reads
        self._handshakes.begin(transport, self)

    def data_received(self, data: bytes) -> None:
        """Keep what comes before the connection is told of its transport, which is in the next turn of the loop."""
        self._early.append(data)

    def hand_on(self, transport: asyncio.Transport) -> None:
        """Let the connection go on over a transport that is secured."""
        transport.set_protocol(self._connection)
        self._connection.connection_made(transport)
        for data in self._early:
            if not transport.is_closing():
                self._connection.data_received(data)
