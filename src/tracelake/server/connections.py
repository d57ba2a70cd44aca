"""Connections of the server: limits on their number and speed, and TLS.

A client must act while the server waits for a request, for more of its body, or for the client to read the response. It
then has a grace period, extended by each byte that it moves; after that the connection is closed. At the maximum number
of connections, the slowest one by this measure is closed for a new one. Slow clients, such as those that send one byte
a second, therefore cannot lock out others. uvicorn itself closes only connections that idle after a response.

The HTTP parser has no limits. Therefore this module bounds the head of a request, and the pipelined requests behind
the current one.

TLS handshakes of HTTP connections start here, with limits on time and number. If the event loop started TLS, it would
report a connection only after the handshake. Stalled handshakes would then hold uncounted file descriptors, until the
server can accept no more connections. A renewed certificate takes effect on both ports without a restart.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.storage.local import descriptors_max

if TYPE_CHECKING:
    from asyncio import TimerHandle, Transport

    import uvicorn
    from starlette.types import Scope
    from uvicorn.server import ServerState

TLS_LOOK_S: Final = 10.0
"""Time for which a server trusts its certificate files as last read when a client connects."""
_CONNECTIONS_SHARE: Final = 4
"""Divisor for that share of open files; gRPC has half as many connections."""
STRANGERS_SHARE: Final = 2
"""Divisor for the share of connections whose client has not presented a valid key yet."""
CONNECTION_LOOK_S: Final = 1.0
"""Interval at which the server checks for slow connections."""

logger = logging.getLogger("tracelake.server")

REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)

CONNECTION: Final = "tracelake.connection"
"""ASGI scope entry with the request's connection."""


def connections_max() -> int:
    """Return the maximum number of connections, a share of the process's file descriptors."""
    return max(1, min(limits.CONNECTIONS_MAX, descriptors_max() // _CONNECTIONS_SHARE))


def strangers_max() -> int:
    """Return the maximum number of connections whose client is not authenticated yet."""
    return max(1, connections_max() // STRANGERS_SHARE)


def mark_admitted(scope: Scope) -> None:
    """Mark a request's connection as one of an authenticated client."""
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
        """Close the connection, at once if the request was read completely."""
        self._connection.close_after_request()


class Connection(HttpToolsProtocol):
    """uvicorn connection that is closed if its client is too slow."""

    _moved_bytes = 0
    """Bytes that the client sent or read during its turn."""
    _unsent_bytes = 0
    """Bytes of the response that were unread at the last check."""
    _timer: TimerHandle | None = None
    _linger_timer: TimerHandle | None = None
    _held_bytes = 0
    """Bytes since the parser last returned a complete head or a piece of a body."""
    _lingers = False
    """Whether the last response was sent and the rest of its request is being discarded."""
    _discarded_bytes = 0
    is_admitted = False
    """Whether the guard has admitted a request of this connection."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start the connection; at the limit, close another one or refuse this one."""
        super().connection_made(transport)
        self._begin_turn()
        if len(self.connections) > connections_max() and not self._make_room():
            logger.warning("all %d connections are in use; another was refused", len(self.connections))
            transport.write(REFUSAL)
            transport.close()
        elif self._strangers() > strangers_max():
            self._make_room(among_strangers=True)
        self._timer = self.loop.call_later(CONNECTION_LOOK_S, self._look)

    def data_received(self, data: bytes) -> None:
        """Count received bytes."""
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
        """Start a request, unless too many requests are pipelined."""
        self._held_bytes = 0
        if len(self.pipeline) >= limits.REQUESTS_AHEAD_MAX:
            raise ValueError("too many requests at once")  # ends the parser and the connection
        super().on_headers_complete()
        self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        # uvicorn calls its write, close and is_closing.
        self.cycle.transport = LingeringTransport(self)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        """Receive a piece of a body."""
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Finish reading a request."""
        self._held_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Start the client's next turn, in which it may send a request."""
        self._begin_turn()
        if self._lingers:
            self.pipeline.clear()  # requests after one that closes the connection get no response
        super().on_response_complete()
        if self._lingers:
            self._unset_keepalive_if_required()

    def close_after_request(self) -> None:
        """Close the connection after its last response. Discard the unread rest of the request first."""
        if self.transport.is_closing() or not self.cycle.more_body:
            self.transport.close()
            return
        self._lingers = True
        with suppress(NotImplementedError):  # TLS has no half-close; the response says `Connection: close`
            if self.transport.can_write_eof():
                self.transport.write_eof()
        self._linger_timer = self.loop.call_later(limits.DISCARDED_BODY_MAX_S, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        for timer in (self._timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def late_s(self) -> float:
        """Return by how many seconds the client exceeds its allowance; negative if it does not."""
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
            logger.warning(
                "a connection was closed: its client transferred %d bytes in its turn", self._moved_bytes
            )
            self._end()
            return
        self._timer = self.loop.call_later(CONNECTION_LOOK_S, self._look)

    def _strangers(self) -> int:
        return sum(isinstance(each, Connection) and not each.is_admitted for each in self.connections)

    def _make_room(self, *, among_strangers: bool = False) -> bool:
        """Close the slowest connection that waits for its client; return whether one existed."""
        others = (other for other in self.connections if isinstance(other, Connection) and other is not self)
        waiting = [
            other
            for other in others
            if other._is_clients_turn() and not (among_strangers and other.is_admitted)
        ]
        if not waiting:
            return False
        logger.warning(
            "all %d connections are in use: the slowest was closed for a new one", len(self.connections)
        )
        max(waiting, key=Connection.late_s)._end()
        return True

    def _end(self) -> None:
        self.connections.discard(self)  # at once, so that several new connections close different ones
        self.transport.abort()


def handshakes_max() -> int:
    """Return the maximum number of concurrent handshakes: at most a quarter of the connections."""
    return max(1, min(limits.HANDSHAKES_MAX, connections_max() // 4))


class Handshakes:
    """TLS handshakes in progress. One event loop uses it."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        """Get a TLS context from `context` for each new connection."""
        self._context = context
        self._under_way: dict[asyncio.Transport, None] = {}
        """Handshakes in progress, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()

    def protocol(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> asyncio.Protocol:
        """Return the protocol for an accepted connection. uvicorn calls this."""
        return _Handshake(self, Connection(config, server_state, app_state, _loop))

    def begin(self, transport: asyncio.Transport, handshake: _Handshake) -> None:
        """Start a handshake. If too many are in progress, abort the oldest."""
        self._under_way[transport] = None
        if len(self._under_way) > handshakes_max():
            first = next(iter(self._under_way))
            del self._under_way[first]
            logger.warning("too many TLS handshakes are in progress: the slowest was aborted for a new one")
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
        except OSError:  # timed out, or not TLS: nothing to report
            transport.abort()
        else:
            # An aborted handshake may look complete.
            if secured is not None and not secured.is_closing():
                handshake.hand_on(secured)
        finally:
            self._under_way.pop(transport, None)


class _Handshake(asyncio.Protocol):
    """Connection during its TLS handshake."""

    def __init__(self, handshakes: Handshakes, connection: Connection) -> None:
        self._handshakes = handshakes
        self._connection = connection
        self._early: list[bytes] = []
        """Data that arrived with the end of the handshake."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start TLS."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # until TLS reads
        self._handshakes.begin(transport, self)

    def data_received(self, data: bytes) -> None:
        """Buffer data that arrives before the connection gets its transport, in the next turn of the loop."""
        self._early.append(data)

    def hand_on(self, transport: asyncio.Transport) -> None:
        """Give the connection its secured transport, and the data that has arrived."""
        transport.set_protocol(self._connection)
        self._connection.connection_made(transport)
        for data in self._early:
            if not transport.is_closing():
                self._connection.data_received(data)


@dataclass(frozen=True)
class Tls:
    """Paths of a PEM certificate chain and its private key."""

    cert: str
    key: str

    def check(self) -> None:
        """Raise UsageError if the files are unusable."""
        try:
            self.context()
        except OSError as error:
            raise UsageError(
                f"the certificate {self.cert} with the key {self.key} cannot be used: {error}; both are PEM files, and "
                "the key has no password"
            ) from None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for HTTP. Raises OSError, or its subclass SSLError, if the files are unusable."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key, password="")
        return context

    def read(self) -> tuple[bytes, bytes]:
        """Return the key and the certificate for gRPC. Raises OSError if a file cannot be read."""
        return Path(self.key).read_bytes(), Path(self.cert).read_bytes()


class Renewal:
    """Certificate that is reloaded when its files change. One thread uses it.

    While key and certificate do not match, such as between the replacement of the two files, the previous pair stays
    in use.
    """

    def __init__(self, tls: Tls, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files. Raises OSError if they are unusable."""
        self._tls = tls
        self._clock = clock
        self._looked_s = clock()
        self._pair, self._context = tls.read(), tls.context()

    def context(self) -> ssl.SSLContext:
        """Return the current TLS context for HTTP."""
        self._look()
        return self._context

    def pair(self) -> tuple[bytes, bytes]:
        """Return the current key and certificate for gRPC."""
        self._look()
        return self._pair

    def _look(self) -> None:
        now_s = self._clock()
        if now_s - self._looked_s < TLS_LOOK_S:
            return
        self._looked_s = now_s
        try:
            pair = self._tls.read()
            if pair == self._pair:
                return
            context = self._tls.context()
            if pair != self._tls.read():
                return  # the files are being replaced; check again later
        except OSError as error:
            logger.warning(
                "the certificate %s cannot be used, so the earlier one stays in use: %s",
                self._tls.cert,
                error,
            )
            return
        self._pair, self._context = pair, context
        logger.info("the certificate %s was renewed", self._tls.cert)
