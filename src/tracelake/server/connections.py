"""Connections of the server: so many at most, and none for a client that makes no use of it, or too much.

A connection is the client's to move while the server waits for a request, for more of its body, or for the client
to read the answer. It may take a grace then, and longer as it moves bytes; after that it is ended. Where there are
as many connections as there may be, the one that is slowest by this measure makes room for the next: so clients
that send a byte a second keep nobody out. uvicorn itself ends only connections that idle after an answer.

The parser, which is quick, has no bounds of its own: what it reads without giving it out, as the head of a request, and
the requests that it reads behind the one that is being answered, are bounded here.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracelake import limits
from tracelake.storage.descriptors import descriptors_max

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

    from starlette.types import Scope

logger = logging.getLogger("tracelake.server")

REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


CONNECTION: Final = "tracelake.connection"
"""The key of a request's scope under which its connection is."""


def connections_max() -> int:
    """Return how many connections there may be, as a share of the files that the process may open."""
    return max(1, min(limits.CONNECTIONS_MAX, descriptors_max() // limits.CONNECTIONS_SHARE))


def strangers_max() -> int:
    """Return how many of these may be of clients that have not been let in yet."""
    return max(1, connections_max() // limits.STRANGERS_SHARE)


def mark_admitted(scope: Scope) -> None:
    """Mark the connection of a request as one of a client that may read or send."""
    if (connection := scope.get(CONNECTION)) is not None:
        connection.is_admitted = True


class LingeringTransport:
    """Transport of one response: when the response closes the connection, the rest of the request is discarded first.

    Closing at once would reset the connection, and the client would lose the response (RFC 9112, section 9.6).
    """

    def __init__(self, connection: Connection) -> None:
        """Write to the transport of a connection."""
        self._connection = connection
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing

    def close(self) -> None:
        """Close the connection, at once if the request was read whole."""
        self._connection.close_after_request()


class Connection(HttpToolsProtocol):
    """One connection, as uvicorn serves it, which is ended where its client is too slow."""

    _moved_bytes = 0
    """What the client sent and read in its turn."""
    _unsent_bytes = 0
    """What it had not read at the last look."""
    _timer: TimerHandle | None = None
    _linger_timer: TimerHandle | None = None
    _held_bytes = 0
    """What came since the parser last gave out a whole head, or a piece of a body."""
    _lingers = False
    """Whether the last response was sent, and the rest of its request is being discarded."""
    _discarded_bytes = 0
    is_admitted = False
    """Whether the guard has let in a request of it."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin, or make room first."""
        super().connection_made(transport)
        self._begin_turn()
        if len(self.connections) > connections_max() and not self._make_room():
            logger.warning(
                "%d connections are all being answered; another was refused", len(self.connections)
            )
            transport.write(REFUSAL)
            transport.close()
        elif self._strangers() > strangers_max():
            self._make_room(among_strangers=True)
        self._timer = self.loop.call_later(limits.CONNECTION_LOOK_S, self._look)

    def data_received(self, data: bytes) -> None:
        """Count what came."""
        self._moved_bytes += len(data)
        if self._lingers:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > limits.DISCARDED_BODY_MAX_BYTES:
                self._end()
            return
        self._held_bytes += len(data)
        super().data_received(data)
        if self._held_bytes > limits.HEAD_MAX_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of a request is longer than {limits.HEAD_MAX_BYTES} bytes.")

    def on_headers_complete(self) -> None:
        """Begin with a request, unless too many wait before it."""
        self._held_bytes = 0
        if len(self.pipeline) >= limits.REQUESTS_AHEAD_MAX:
            raise ValueError("too many requests at once")  # the parser ends, and the connection
        super().on_headers_complete()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        # uvicorn asks it to write, to close, and whether it is closing.
        self.cycle.transport = LingeringTransport(self)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._held_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Begin a new turn: the client may send its next request."""
        self._begin_turn()
        if self._lingers:
            self.pipeline.clear()  # requests behind one that closes the connection get no response
        super().on_response_complete()
        if self._lingers:
            self._unset_keepalive_if_required()

    def close_after_request(self) -> None:
        """Close the connection after its last response; a request that is not read whole is discarded before."""
        if self.transport.is_closing() or not self.cycle.more_body:
            self.transport.close()
            return
        self._lingers = True
        with suppress(NotImplementedError):  # TLS has no half-close; the response says `Connection: close`
            if self.transport.can_write_eof():
                self.transport.write_eof()
        self._linger_timer = self.loop.call_later(limits.DISCARDED_BODY_MAX_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        for timer in (self._timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def late_s(self) -> float:
        """Return by how much the client is slower than it may be, in seconds; below zero where it is not."""
        if not self._is_clients_turn():
            return -limits.CONNECTION_GRACE_S
        granted_s = limits.CONNECTION_GRACE_S + self._moved_bytes / limits.CONNECTION_MIN_BYTES_PER_S
        return self.loop.time() - self._turn_began_s - granted_s

    def _begin_turn(self) -> None:
        self._turn_began_s = self.loop.time()
        self._moved_bytes = 0

    def _is_clients_turn(self) -> bool:
        if self.cycle is None or self.cycle.response_complete or self.flow.write_paused:
            return True
        return self.cycle.more_body and not self.flow.read_paused

    def _look(self) -> None:
        unsent_bytes = self.transport.get_write_buffer_size()
        self._moved_bytes += max(0, self._unsent_bytes - unsent_bytes)
        self._unsent_bytes = unsent_bytes
        if not self._is_clients_turn():
            self._begin_turn()
        elif self.late_s() > 0:
            logger.warning("a connection was ended: its client moved %d bytes in its turn", self._moved_bytes)
            self._end()
            return
        self._timer = self.loop.call_later(limits.CONNECTION_LOOK_S, self._look)

    def _strangers(self) -> int:
        return sum(isinstance(each, Connection) and not each.is_admitted for each in self.connections)

    def _make_room(self, *, among_strangers: bool = False) -> bool:
        """End the slowest of the connections that wait for their client; return whether there was one."""
        others = (other for other in self.connections if isinstance(other, Connection) and other is not self)
        waiting = [
            other
            for other in others
            if other._is_clients_turn() and not (among_strangers and other.is_admitted)
        ]
        if not waiting:
            return False
        logger.warning("there are %d connections: the slowest was ended for a new one", len(self.connections))
        max(waiting, key=Connection.late_s)._end()
        return True

    def _end(self) -> None:
        self.connections.discard(self)  # at once: of several new ones each ends another
        self.transport.abort()
