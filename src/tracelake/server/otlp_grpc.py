"""OTLP/gRPC: the equivalent of `POST /v1/traces`, in the same event loop, so that requests of both share segments.

It follows https://opentelemetry.io/docs/specs/otlp/#otlpgrpc. A retryable error is UNAVAILABLE, or RESOURCE_EXHAUSTED
with RetryInfo. A partly rejected request is a success that counts the rejected spans.

Messages stay bytes until the shared endpoint decodes them. gRPC's decompression is disabled, because its output is
unbounded. The limit on incomplete messages is enforced here too, because only this module knows which call is the
slowest.

The server is a variant of gRPC's asyncio server without three weaknesses. Each one lets a client without a key block
all others.

*A call with an undecodable name ended the server.* Its loop decodes the names of unregistered methods, and a name
that is not UTF-8 ends the loop. Therefore our methods are registered, and other calls are refused before the loop
sees them.

*It stalled for about 208 turns of the event loop.* A gRPC thread queues events and writes one byte for each to a
socket that wakes the event loop. The loop reads one byte per turn, but takes all events. So bytes accumulate. At
about 277 the socket is full and the thread blocks. On Linux it blocks until three quarters are read, one per turn
(`sock_alloc_send_pskb`, `unix_writable`). With turns of 0.3 s, as on a busy machine, that took a minute. Therefore
`emptied` reads all bytes.

*It accepted one call per two to four turns*, regardless of the backlog. Therefore each method has
`GRPC_ACCEPTED_AT_ONCE` tasks that each wait for a call.

A started server must be stopped before its loop ends. Otherwise gRPC writes an incoming call into the freed memory of
the task that waited for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from google.protobuf.duration_pb2 import Duration
from google.rpc import code_pb2  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import BadRequest, RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tracelake import _errors, limits
from tracelake.otlp.decode import GZIP_MAGIC
from tracelake.server.audit import AuditWriter, record_of
from tracelake.server.connections import Renewal, Tls, connections_max
from tracelake.server.guard import bearer
from tracelake.server.http_policy import request_workspace, retry_after_s, status_of
from tracelake.server.key_ring import KeyHolder, KeyRing
from tracelake.server.otlp_http import CODES, Meter, TracesEndpoint, experiment_of, success_message

GRPC_ACCEPTED_AT_ONCE: Final = 64
"""gRPC calls of one method that start within one or two turns of the event loop."""
GRPC_READING_MAX: Final = 64
"""gRPC calls whose messages are read concurrently."""
GRPC_LOOK_S: Final = 0.125
"""Interval between checks of gRPC calls being read while others wait."""
GRPC_LOOKS: Final = 4
"""Checks in which a call's message is still incomplete while others wait."""
_GRPC_KEEPALIVE_S: Final = 60.0
"""Silence of a gRPC connection before a keep-alive ping."""
_GRPC_KEEPALIVE_ANSWER_S: Final = 20.0
"""Time for the reply to that ping."""


# ruff: noqa: PLC0415  gRPC takes a while to import, and not every server has it


logger = logging.getLogger("tracelake.server")

_ALL_BYTES: Final = 65_536
"""More bytes than the wake-up socket can hold."""
_Answer: TypeAlias = Callable[[Any], Coroutine[Any, Any, None]]
_BUILT_ON: Final = ("_make_request_call_future", "_request_registered_call", "_request_call")
"""Methods that gRPC's server must have, because it silently ignores unknown overrides."""


class _Accepting:
    """Mixin for gRPC's server: accept many calls concurrently, and refuse unregistered methods."""

    is_running: Callable[[], bool]
    _request_call: Callable[[], Coroutine[Any, Any, Any]]
    _request_registered_call: Callable[[bytes], Coroutine[Any, Any, Any]]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._methods: dict[str, Any] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def add_registered_method_handlers(self, method_handlers: Mapping[str, Any]) -> None:
        self._methods.update(method_handlers)
        super().add_registered_method_handlers(method_handlers)  # type: ignore[misc]

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[None]:
        """Start the accept tasks of a method, or of all unregistered ones. They end with a gRPC error when the server
        does."""
        if method is None:
            return asyncio.ensure_future(self._accept(self._request_call, _refuse))
        return asyncio.ensure_future(self._accept_many(method))

    async def _accept_many(self, method: bytes) -> None:
        request = partial(self._request_registered_call, method)
        answer = _answer(self._methods, method.decode())
        waiting = [asyncio.create_task(self._accept(request, answer)) for _ in range(GRPC_ACCEPTED_AT_ONCE)]
        try:
            await asyncio.gather(*waiting)
        finally:
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _accept(self, request: Callable[[], Coroutine[Any, Any, Any]], answer: _Answer) -> None:
        try:
            while True:
                # Not in a variable, which would keep the call and its message until the next call.
                self._begin(answer, await request())
        except Exception:
            if self.is_running():
                logger.exception("a thread that accepts gRPC calls has ended")
            raise

    def _begin(self, answer: _Answer, call: Any) -> None:
        try:
            task = asyncio.create_task(answer(call))
        except Exception:  # an error ends only this call
            logger.exception("a gRPC call could not be started")
        else:
            self._under_way.add(task)  # the loop keeps only weak references
            task.add_done_callback(self._under_way.discard)


def grpc_server(options: Sequence[tuple[str, int]]) -> Any:
    """Return a `grpc.aio` server on the running event loop that accepts only registered methods.

    Raises UsageError if this release of gRPC has a different internal structure.
    """
    from grpc import __version__
    from grpc._cython import cygrpc
    from grpc.aio import _server as aio

    if not all(hasattr(cygrpc.AioServer, name) for name in _BUILT_ON):
        raise _errors.UsageError(
            f"OTLP/gRPC does not support the package grpcio {__version__}; install a version that Tracelake "
            "was tested with, or use --no-grpc"
        )

    class Calls(_Accepting, cygrpc.AioServer):  # type: ignore[misc]  # it has no types
        pass

    class Server(aio.Server):  # type: ignore[misc]
        """Public gRPC server over `Calls`."""

        def __init__(self) -> None:
            self._loop = asyncio.get_running_loop()
            with emptied(self._loop):
                self._server = Calls(self._loop, None, (), (), tuple(options), None)

    return Server()


def _answer(methods: Mapping[str, Any], name: str) -> _Answer:
    """Return gRPC's handler for calls of a method."""
    from grpc._cython import cygrpc

    resolver = cygrpc._MethodResolver([], methods)

    def answer(call: Any) -> Coroutine[Any, Any, None]:
        loop = asyncio.get_running_loop()
        answering = cygrpc._handle_rpc(name, resolver, (), call, loop, False)
        return cygrpc._schedule_rpc_coro(answering, call, loop, name)  # type: ignore[no-any-return]

    return answer


async def _refuse(call: Any) -> None:
    """Refuse a call of an unknown method."""
    from grpc._cython import cygrpc

    begin = cygrpc.SendInitialMetadataOperation(None, 0)
    with suppress(Exception):  # the client may have disconnected
        await cygrpc._send_error_status_from_server(
            call, cygrpc.StatusCode.unimplemented, "Method not found!", (), begin, asyncio.get_running_loop()
        )


@contextmanager
def emptied(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Make the loop empty the sockets that gRPC adds in this block, before it calls gRPC's handler.

    One socket is added per loop, with the first server or channel. Each event is queued before its byte is written.
    So an event whose byte is read here is handled at once, and no wake-up is lost.
    """
    add = loop.add_reader

    def add_reader(wakes: socket.socket, handle: Callable[..., None], *args: Any) -> None:
        def emptied_first() -> None:
            with suppress(BlockingIOError):
                wakes.recv(_ALL_BYTES)
            try:
                handle(*args)
            except BaseException:
                loop.call_soon(emptied_first)  # for events after the one that raised
                raise

        add(wakes, emptied_first)

    loop.add_reader = add_reader  # type: ignore[method-assign, assignment]  # of this loop, until it is taken back
    try:
        yield
    finally:
        del loop.add_reader


# ruff: noqa: PLC0415  gRPC takes a while to import, and not every server has it


_SERVICES: Final = "opentelemetry.proto.collector"
TRACES: Final = f"{_SERVICES}.trace.v1.TraceService"
NOT_KEPT: Final = {
    "metrics": f"{_SERVICES}.metrics.v1.MetricsService",
    "logs": f"{_SERVICES}.logs.v1.LogsService",
}
"""Signals that are acknowledged but dropped, so that SDKs do not log a warning at each export."""
Counted: TypeAlias = Callable[[str, str], None]
"""Counter of finished calls, by service and code."""


class OtlpGrpcServer:
    """OTLP/gRPC server on one address. One event loop uses it."""

    def __init__(
        self,
        traces: TracesEndpoint,
        address: str,
        counted: Counted = lambda _service, _code: None,
        on_ignored: Callable[[str], None] = lambda _signal: None,
        ring: KeyRing | None = None,
        tls: Tls | None = None,
        auditing: AuditWriter | None = None,
    ) -> None:
        """Store calls through `traces`; listen on `address`, such as `127.0.0.1:4317`; admit callers by `ring`.

        `counted` counts finished calls, and `on_ignored` calls with an ignored signal.
        """
        self._traces = traces
        self._address = address
        self._counted = counted
        self._on_ignored = on_ignored
        self._ring = ring
        self._tls = tls
        self._auditing = auditing
        self._server: Any = None
        self._reading: dict[asyncio.Timeout, int] = {}
        """Calls whose message is being read, oldest first, and the number of checks that saw each."""
        self._turns = asyncio.Semaphore(GRPC_READING_MAX)
        self._waiting = 0
        """Calls that wait to be read."""
        self._looking: asyncio.TimerHandle | None = None

    async def start(self) -> int:
        """Listen, and return the port. Raises UsageError if the address is unavailable or gRPC is not installed."""
        grpc = _grpc()
        self._server = grpc_server(_options())
        services = {TRACES: self._export} | {
            service: self._refuse_to_keep(signal) for signal, service in NOT_KEPT.items()
        }
        for service, answer in services.items():
            # Declared as a stream, though clients send one message, so that reading has a deadline here.
            handler = grpc.stream_unary_rpc_method_handler(self._answering(service, answer))
            self._server.add_registered_method_handlers(service, {"Export": handler})
        try:
            port: int
            if self._tls is None:
                port = self._server.add_insecure_port(self._address)
            else:
                port = self._server.add_secure_port(self._address, _credentials(grpc, Renewal(self._tls)))
        except RuntimeError as error:
            await self._server.stop(None)
            raise _errors.UsageError(
                f"cannot listen for gRPC on {self._address}: {error}; choose another port with --grpc-port, or use "
                "--no-grpc"
            ) from None
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Stop accepting calls, and finish those in progress."""
        if self._server is not None:
            await self._server.stop(limits.SHUTDOWN_MAX_S)

    def _answering(
        self, service: str, answer: Callable[[bytes, dict[str, str], Meter | None], Awaitable[bytes]]
    ) -> Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]:
        """Wrap a handler: authenticate the call, read its message, and map errors to gRPC status codes."""

        async def call(messages: AsyncIterator[bytes], context: Any) -> bytes:
            code = "OK"
            try:
                metadata = {
                    key: value for key, value in context.invocation_metadata() if isinstance(value, str)
                }
                actor = await self._admit(metadata.get("authorization"), service, context.peer())
                meter = None if self._ring is None or actor is None else self._ring.meter(actor)
                with request_workspace(None if actor is None else actor.workspace):
                    return await answer(await self._read(messages), metadata, meter)
            except Exception as error:  # noqa: BLE001  the client gets any failure
                status = status_message(error)
                code = code_pb2.Code.Name(status.code)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            finally:
                self._counted(service, code)
            details = (("grpc-status-details-bin", status.SerializeToString()),)
            await context.abort(_grpc_code(status.code), status.message, details)
            raise AssertionError  # unreachable, because abort raises

        return call

    async def _admit(self, authorization: str | None, service: str, peer: str) -> KeyHolder | None:
        """Return the caller, or None without a key ring. Raises AccessError if the key does not permit the call, and
        StorageError if keys cannot be read."""
        if self._ring is None:
            return None
        try:
            return await self._ring.actor(bearer(authorization), "ingest")
        except (_errors.NoKeyError, _errors.ForbiddenError) as error:
            logger.warning("refused: a gRPC call: %s", error)
            if self._auditing is not None:
                token = (authorization or "").rpartition(" ")[2].strip()
                status = str(status_of(type(error)))
                self._auditing.count(
                    record_of(
                        "counted",
                        self._ring.holder(token),
                        "refused: gRPC",
                        _address_of(peer),
                        service,
                        status,
                    )
                )
            raise

    async def _read(self, messages: AsyncIterator[bytes]) -> bytes:
        """Return a call's message. Raises TimeoutError if the message takes too long, and BackPressureError if it is
        slow while other calls wait."""
        await self._wait_for_turn()
        turn = asyncio.timeout(limits.GRPC_READ_MAX_S)
        try:
            async with turn:
                self._reading[turn] = 0
                return await anext(messages, b"")
        except TimeoutError:
            if turn in self._reading:
                raise
            raise _errors.BackPressureError(
                "this call was the slowest and was ended for a new one; send it again"
            ) from None
        finally:
            self._reading.pop(turn, None)
            self._turns.release()

    async def _wait_for_turn(self) -> None:
        """Wait for a free reading slot, in the order of arrival. Raises BackPressureError if too many calls wait."""
        if self._waiting >= limits.GRPC_WAITING_MAX:
            raise _errors.BackPressureError("too many calls at once; send it again")
        self._waiting += 1
        try:
            if self._looking is None:
                self._look_again()
            await self._turns.acquire()
        finally:
            self._waiting -= 1

    def _look_again(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(GRPC_LOOK_S, self._look)

    def _look(self) -> None:
        """End the slowest reads while other calls wait. A read must have been seen at several checks, in separate
        turns of the loop. So a read is never ended only because the loop was busy."""
        wanted = self._waiting - (GRPC_READING_MAX - len(self._reading))
        for turn, checks in list(self._reading.items()):
            self._reading[turn] = checks + 1
            # An expired read ends anyway.
            if wanted > 0 and checks >= GRPC_LOOKS and not turn.expired():
                del self._reading[turn]
                turn.reschedule(asyncio.get_running_loop().time())
                wanted -= 1
        self._looking = None
        if self._waiting:
            self._look_again()

    async def _export(self, message: bytes, metadata: dict[str, str], meter: Meter | None) -> bytes:
        # no protobuf message starts with these bytes
        encoding = "gzip" if message.startswith(GZIP_MAGIC) else "identity"
        experiment_id = experiment_of(metadata.get("x-mlflow-experiment-id", ""))
        decoded = await self._traces.take_message(message, encoding, experiment_id, meter)
        return success_message(decoded).SerializeToString()

    def _refuse_to_keep(
        self, signal: str
    ) -> Callable[[bytes, dict[str, str], Meter | None], Awaitable[bytes]]:
        async def answer(_message: bytes, _metadata: dict[str, str], _meter: Meter | None) -> bytes:
            self._on_ignored(signal)
            return b""

        return answer


def _address_of(peer: str) -> str:
    """Return the caller's address, such as `127.0.0.1` from `ipv4:127.0.0.1:53124`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")


def status_message(error: Exception) -> Status:
    """Return the gRPC status of an error, with the retry delay if a retry makes sense."""
    text = str(error).encode("ascii", "backslashreplace")[: limits.PROBLEM_MAX_CHARS].decode()
    match error:
        case _errors.StorageError() | _errors.QuotaError():
            busy = isinstance(error, (_errors.BackPressureError, _errors.QuotaError))
            status = Status(code=code_pb2.RESOURCE_EXHAUSTED if busy else code_pb2.UNAVAILABLE, message=text)
            wait = Duration(seconds=retry_after_s(error))
            status.details.add().Pack(RetryInfo(retry_delay=wait))
        case _errors.AccessError():
            status = Status(code=CODES[status_of(type(error))], message=text)
        case _errors.TracelakeError() if status_of(type(error)) != 500:
            status = Status(code=code_pb2.INVALID_ARGUMENT, message=text)
            violation = BadRequest.FieldViolation(field="body", description=text)
            status.details.add().Pack(BadRequest(field_violations=[violation]))
        case TimeoutError():
            text = f"no message came within {limits.GRPC_READ_MAX_S:g} s; send smaller batches"
            status = Status(code=code_pb2.DEADLINE_EXCEEDED, message=text)
        case _:
            logger.error("a gRPC call could not be answered", exc_info=error)
            status = Status(code=code_pb2.INTERNAL, message="internal error; see the log of the server")
    return status


def _credentials(grpc: Any, renewal: Renewal) -> Any:
    """Return credentials that reload the certificate for new connections. The callback returns None if it is
    unchanged."""
    pair = renewal.pair()

    def renewed() -> Any:
        nonlocal pair
        before, pair = pair, renewal.pair()
        return None if pair == before else grpc.ssl_server_certificate_configuration([pair])

    return grpc.dynamic_ssl_server_credentials(grpc.ssl_server_certificate_configuration([pair]), renewed)


def _grpc() -> Any:
    """Import gRPC. Raises UsageError if it is not installed."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # otherwise gRPC writes a line for each invalid call
    try:
        import grpc.aio
    except ImportError as error:
        raise _errors.UsageError(
            f"OTLP/gRPC needs the package grpcio ({error}); install it, or use --no-grpc"
        ) from None
    logging.getLogger("grpc").propagate = False  # disconnects and undecodable names are not worth logging
    logging.getLogger("grpc").addHandler(logging.NullHandler())
    return grpc


def _grpc_code(code: int) -> Any:
    import grpc

    return next(each for each in grpc.StatusCode if each.value[0] == code)


def _options() -> list[tuple[str, int]]:
    identity, gzip = 0, 2
    return [
        ("grpc.so_reuseport", 0),  # otherwise two servers could share the port
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", 1 << identity | 1 << gzip),
        ("grpc.max_receive_message_length", limits.GRPC_MESSAGE_MAX_BYTES),
        ("grpc.max_concurrent_streams", limits.GRPC_STREAMS_MAX),
        ("grpc.max_allowed_incoming_connections", max(1, connections_max() // 2)),
        ("grpc.max_metadata_size", limits.GRPC_METADATA_MAX_BYTES),
        ("grpc.absolute_max_metadata_size", limits.GRPC_METADATA_MAX_BYTES),
        ("grpc.server_handshake_timeout_ms", int(limits.GRPC_HANDSHAKE_MAX_S * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.GRPC_IDLE_MAX_S * 1000)),
        ("grpc.keepalive_time_ms", int(_GRPC_KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(_GRPC_KEEPALIVE_ANSWER_S * 1000)),
    ]
