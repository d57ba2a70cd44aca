"""OTLP/gRPC: the same door as `POST /v1/traces`, in the same event loop, so that requests of both share segments.

https://opentelemetry.io/docs/specs/otlp/#otlpgrpc: what may be sent again later is UNAVAILABLE, or RESOURCE_EXHAUSTED
with RetryInfo; a request of which only some spans can be taken is a success that counts the others.

Messages stay bytes until the door decodes them, and gRPC's own decompression is off: it has no bound on what comes out.
The bound on messages whose bytes have not come yet is kept here, too, for only here is it known who takes longest.

gRPC's server for asyncio, without three weaknesses. Each lets who reaches the port, with no key, hold up all others.

*A call whose name is no text ended it.* Its loop takes calls of registered methods as they are, and decodes the names
of all others; one that is not UTF-8 ends the loop, which shuts the server down. So our methods are registered, and
calls of others are refused before the loop sees them.

*It stood still while the event loop took some 208 turns.* A thread of gRPC puts events in a queue, and a byte for each
in a socket that wakes the event loop; that reads one byte a turn, and takes all events. So bytes stay, until at some
277 the socket is full and the thread waits: on Linux until three quarters are read, one a turn (`sock_alloc_send_pskb`,
`unix_writable`). Turns of 0.3 s, as on a busy machine, made it a minute. So `emptied` reads all bytes.

*It began with one call in two to four turns*, however many waited. So each of our methods has `GRPC_ACCEPTED_AT_ONCE`
tasks that each wait for a call.

A server that has started must be stopped before its loop ends: gRPC writes a call that comes to where the task that
waits for it has its memory, also once that is gone.
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

from tracelake import limits
from tracelake._errors import (
    AccessError,
    BackPressureError,
    ForbiddenError,
    NoKeyError,
    QuotaError,
    StorageError,
    TracelakeError,
    UsageError,
)
from tracelake.limits import GRPC_ACCEPTED_AT_ONCE
from tracelake.otlp.input_file import GZIP_MAGIC
from tracelake.server.audit import AuditWriter, record_of
from tracelake.server.connections import Renewal, Tls, connections_max
from tracelake.server.guard import bearer
from tracelake.server.http_policy import request_workspace, retry_after_s, status_of
from tracelake.server.key_ring import KeyHolder, KeyRing
from tracelake.server.otlp_http import CODES, Meter, TracesEndpoint, experiment_of, success_message

# ruff: noqa: PLC0415  gRPC takes a while to import, and not every server has it


logger = logging.getLogger("tracelake.server")

_ALL_BYTES: Final = 65_536
"""As many as the socket that wakes the event loop may have, and more."""
_Answer: TypeAlias = Callable[[Any], Coroutine[Any, Any, None]]
_BUILT_ON: Final = ("_make_request_call_future", "_request_registered_call", "_request_call")
"""What gRPC's server has to have: it would not call what it does not know."""


class _Accepting:
    """Goes before gRPC's own server as a base: begins with many calls at once, and refuses what is not registered."""

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
        """Called once for each method, and for all others; ends with an error of gRPC when the server does."""
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
                # Under no name here: it would keep a call, and its message, until the next one comes.
                self._begin(answer, await request())
        except Exception:
            if self.is_running():
                logger.exception("one of those that wait for gRPC calls has ended")
            raise

    def _begin(self, answer: _Answer, call: Any) -> None:
        try:
            task = asyncio.create_task(answer(call))
        except Exception:  # whatever it is, it ends this call alone
            logger.exception("a gRPC call could not be begun with")
        else:
            self._under_way.add(task)  # the loop itself would forget it
            task.add_done_callback(self._under_way.discard)


def grpc_server(options: Sequence[tuple[str, int]]) -> Any:
    """Return a server of `grpc.aio`, for the running event loop, that takes calls of its registered methods alone.

    Raises UsageError for a release of gRPC whose server is built otherwise.
    """
    from grpc import __version__
    from grpc._cython import cygrpc
    from grpc.aio import _server as aio

    if not all(hasattr(cygrpc.AioServer, name) for name in _BUILT_ON):
        raise UsageError(
            f"OTLP/gRPC does not know the package grpcio {__version__}; install one that Tracelake was tested with, or "
            "use --no-grpc"
        )

    class Calls(_Accepting, cygrpc.AioServer):  # type: ignore[misc]  # it has no types
        pass

    class Server(aio.Server):  # type: ignore[misc]
        """The public one, over `Calls`."""

        def __init__(self) -> None:
            self._loop = asyncio.get_running_loop()
            with emptied(self._loop):
                self._server = Calls(self._loop, None, (), (), tuple(options), None)

    return Server()


def _answer(methods: Mapping[str, Any], name: str) -> _Answer:
    """Return what answers a call of a method as gRPC does."""
    from grpc._cython import cygrpc

    resolver = cygrpc._MethodResolver([], methods)

    def answer(call: Any) -> Coroutine[Any, Any, None]:
        loop = asyncio.get_running_loop()
        answering = cygrpc._handle_rpc(name, resolver, (), call, loop, False)
        return cygrpc._schedule_rpc_coro(answering, call, loop, name)  # type: ignore[no-any-return]

    return answer


async def _refuse(call: Any) -> None:
    """Answer a call of a method that nobody has."""
    from grpc._cython import cygrpc

    begin = cygrpc.SendInitialMetadataOperation(None, 0)
    with suppress(Exception):  # whose client has gone
        await cygrpc._send_error_status_from_server(
            call, cygrpc.StatusCode.unimplemented, "Method not found!", (), begin, asyncio.get_running_loop()
        )


@contextmanager
def emptied(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have sockets that gRPC adds to a loop meanwhile read empty before it looks at what it queued.

    It adds one for each loop, with the first server or channel there. A byte is written after its event is queued, so
    that an event whose byte is read here is found at once, and no wake-up is lost.
    """
    add = loop.add_reader

    def add_reader(wakes: socket.socket, handle: Callable[..., None], *args: Any) -> None:
        def emptied_first() -> None:
            with suppress(BlockingIOError):
                wakes.recv(_ALL_BYTES)
            try:
                handle(*args)
            except BaseException:
                loop.call_soon(emptied_first)  # for events behind the one that raised
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
"""Signals that are answered, so that SDKs do not warn at each export, and are not kept."""
Counted: TypeAlias = Callable[[str, str], None]
"""Counts a call of a service that ended with a code."""


class OtlpGrpcServer:
    """Takes OTLP/gRPC on one address. One event loop uses it."""

    def __init__(
        self,
        traces: TracesEndpoint,
        address: str,
        counted: Counted = lambda _service, _code: None,
        not_kept: Callable[[str], None] = lambda _signal: None,
        ring: KeyRing | None = None,
        tls: Tls | None = None,
        auditing: AuditWriter | None = None,
    ) -> None:
        """Store by `traces`, on `address`, such as `127.0.0.1:4317`, for whom `ring` lets in.

        `counted` and `not_kept` are told of each call that ended, and of each whose signal is not kept.
        """
        self._traces = traces
        self._address = address
        self._counted = counted
        self._not_kept = not_kept
        self._ring = ring
        self._tls = tls
        self._auditing = auditing
        self._server: Any = None
        self._reading: dict[asyncio.Timeout, int] = {}
        """Calls whose message is on its way, the one that began first before the others; how often each was seen."""
        self._turns = asyncio.Semaphore(limits.GRPC_READING_MAX)
        self._waiting = 0
        """Calls that wait for their turn to be read."""
        self._looking: asyncio.TimerHandle | None = None

    async def start(self) -> int:
        """Listen, and return the port. Raises UsageError where the address cannot be had, or gRPC is not installed."""
        grpc = _grpc()
        self._server = grpc_server(_options())
        services = {TRACES: self._export} | {
            service: self._refuse_to_keep(signal) for signal, service in NOT_KEPT.items()
        }
        for service, answer in services.items():
            # A stream, though clients send one message: so it is read here, with a bound on the time.
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
            raise UsageError(
                f"cannot listen for gRPC on {self._address}: {error}; choose another port with --grpc-port, or use "
                "--no-grpc"
            ) from None
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Take no further calls, and answer those that are under way."""
        if self._server is not None:
            await self._server.stop(limits.SHUTDOWN_MAX_S)

    def _answering(
        self, service: str, answer: Callable[[bytes, dict[str, str], Meter | None], Awaitable[bytes]]
    ) -> Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]:
        """Return what answers a call, with an error as gRPC has it."""

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
            except Exception as error:  # noqa: BLE001  whatever it is, the client is told
                status = status_message(error)
                code = code_pb2.Code.Name(status.code)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            finally:
                self._counted(service, code)
            details = (("grpc-status-details-bin", status.SerializeToString()),)
            await context.abort(_grpc_code(status.code), status.message, details)
            raise AssertionError  # abort has raised

        return call

    async def _admit(self, authorization: str | None, service: str, peer: str) -> KeyHolder | None:
        """Return who calls, None where nobody is asked for a key. Raises AccessError, StorageError."""
        if self._ring is None:
            return None
        try:
            return await self._ring.actor(bearer(authorization), "ingest")
        except (NoKeyError, ForbiddenError) as error:
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
        """Return the message of a call. Raises TimeoutError, BackPressureError where it is slow and others came."""
        await self._wait_for_turn()
        turn = asyncio.timeout(limits.GRPC_READ_MAX_S)
        try:
            async with turn:
                self._reading[turn] = 0
                return await anext(messages, b"")
        except TimeoutError:
            if turn in self._reading:
                raise
            raise BackPressureError("other calls came, and this one was the slowest; send it again") from None
        finally:
            self._reading.pop(turn, None)
            self._turns.release()

    async def _wait_for_turn(self) -> None:
        """Wait until fewer are read than may be, in the order in which calls came.

        Raises BackPressureError where very many wait.
        """
        if self._waiting >= limits.GRPC_WAITING_MAX:
            raise BackPressureError("too many calls came at once; send it again")
        self._waiting += 1
        try:
            if self._looking is None:
                self._look_again()
            await self._turns.acquire()
        finally:
            self._waiting -= 1

    def _look_again(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(limits.GRPC_LOOK_S, self._look)

    def _look(self) -> None:
        """End the slowest while others wait: those that were seen a few times, each in a turn of the loop by itself.

        So none is slow because the loop has not come to it.
        """
        wanted = self._waiting - (limits.GRPC_READING_MAX - len(self._reading))
        for turn, seen in list(self._reading.items()):
            self._reading[turn] = seen + 1
            # One whose own time is over ends by that.
            if wanted > 0 and seen >= limits.GRPC_LOOKS and not turn.expired():
                del self._reading[turn]
                turn.reschedule(asyncio.get_running_loop().time())
                wanted -= 1
        self._looking = None
        if self._waiting:
            self._look_again()

    async def _export(self, message: bytes, metadata: dict[str, str], meter: Meter | None) -> bytes:
        encoding = (
            "gzip" if message.startswith(GZIP_MAGIC) else "identity"
        )  # no message of protobuf begins so
        experiment_id = experiment_of(metadata.get("x-mlflow-experiment-id", ""))
        decoded = await self._traces.take_message(message, encoding, experiment_id, meter)
        return success_message(decoded).SerializeToString()

    def _refuse_to_keep(
        self, signal: str
    ) -> Callable[[bytes, dict[str, str], Meter | None], Awaitable[bytes]]:
        async def answer(_message: bytes, _metadata: dict[str, str], _meter: Meter | None) -> bytes:
            self._not_kept(signal)
            return b""

        return answer


def _address_of(peer: str) -> str:
    """Return the address of who calls, such as `127.0.0.1` of `ipv4:127.0.0.1:53124`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")


def status_message(error: Exception) -> Status:
    """Return what a client is told of an error: whether it may send again, and when."""
    text = str(error).encode("ascii", "backslashreplace")[: limits.PROBLEM_MAX_CHARS].decode()
    match error:
        case StorageError() | QuotaError():
            busy = isinstance(error, (BackPressureError, QuotaError))
            status = Status(code=code_pb2.RESOURCE_EXHAUSTED if busy else code_pb2.UNAVAILABLE, message=text)
            wait = Duration(seconds=retry_after_s(error))
            status.details.add().Pack(RetryInfo(retry_delay=wait))
        case AccessError():
            status = Status(code=CODES[status_of(type(error))], message=text)
        case TracelakeError() if status_of(type(error)) != 500:
            status = Status(code=code_pb2.INVALID_ARGUMENT, message=text)
            violation = BadRequest.FieldViolation(field="body", description=text)
            status.details.add().Pack(BadRequest(field_violations=[violation]))
        case TimeoutError():
            text = f"no message came within {limits.GRPC_READ_MAX_S:g} s; send smaller batches"
            status = Status(code=code_pb2.DEADLINE_EXCEEDED, message=text)
        case _:
            logger.error("a gRPC call could not be answered", exc_info=error)
            status = Status(code=code_pb2.INTERNAL, message="internal error; the log of the server says more")
    return status


def _credentials(grpc: Any, renewal: Renewal) -> Any:
    """Return what gRPC asks for the certificate when a connection comes; None is no other than before."""
    given = renewal.pair()

    def renewed() -> Any:
        nonlocal given
        before, given = given, renewal.pair()
        return None if given == before else grpc.ssl_server_certificate_configuration([given])

    return grpc.dynamic_ssl_server_credentials(grpc.ssl_server_certificate_configuration([given]), renewed)


def _grpc() -> Any:
    """Import gRPC. Raises UsageError where it is not installed."""
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # it would write a line for each call of a client that is wrong
    try:
        import grpc.aio
    except ImportError as error:
        raise UsageError(
            f"OTLP/gRPC needs the package grpcio ({error}); install it, or use --no-grpc"
        ) from None
    logging.getLogger("grpc").propagate = False  # clients that go away, or send no text, are nothing to tell
    logging.getLogger("grpc").addHandler(logging.NullHandler())
    return grpc


def _grpc_code(code: int) -> Any:
    import grpc

    return next(each for each in grpc.StatusCode if each.value[0] == code)


def _options() -> list[tuple[str, int]]:
    identity, gzip = 0, 2
    return [
        ("grpc.so_reuseport", 0),  # else another server's port could be had
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", 1 << identity | 1 << gzip),
        ("grpc.max_receive_message_length", limits.GRPC_MESSAGE_MAX_BYTES),
        ("grpc.max_concurrent_streams", limits.GRPC_STREAMS_MAX),
        ("grpc.max_allowed_incoming_connections", max(1, connections_max() // 2)),
        ("grpc.max_metadata_size", limits.GRPC_METADATA_MAX_BYTES),
        ("grpc.absolute_max_metadata_size", limits.GRPC_METADATA_MAX_BYTES),
        ("grpc.server_handshake_timeout_ms", int(limits.GRPC_HANDSHAKE_MAX_S * 1000)),
        ("grpc.max_connection_idle_ms", int(limits.GRPC_IDLE_MAX_S * 1000)),
        ("grpc.keepalive_time_ms", int(limits.GRPC_KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(limits.GRPC_KEEPALIVE_ANSWER_S * 1000)),
    ]
