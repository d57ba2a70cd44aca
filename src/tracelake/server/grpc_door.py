"""OTLP/gRPC: the same door as `POST /v1/traces`, in the same event loop, so that requests of both share segments.

https://opentelemetry.io/docs/specs/otlp/#otlpgrpc: what may be sent again later is UNAVAILABLE, or RESOURCE_EXHAUSTED
with RetryInfo; a request of which only some spans can be taken is a success that counts the others.

Messages stay bytes until the door decodes them, and gRPC's own decompression is off: it has no bound on what comes out.
The bound on messages whose bytes have not come yet is kept here, too, for only here is it known who takes longest.
"""

# ruff: noqa: PLC0415  gRPC takes a while to import, and not every server has it

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
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
from tracelake.otlp.stream import GZIP_MAGIC
from tracelake.server.auditing import Auditing, record_of
from tracelake.server.connections import connections_max
from tracelake.server.errors import retry_after_s, status_of
from tracelake.server.grpc_server import grpc_server
from tracelake.server.guard import bearer
from tracelake.server.key_ring import KeyHolder, KeyRing
from tracelake.server.otlp import CODES, Meter, TracesEndpoint, experiment_of, success_message
from tracelake.server.scope import asked_within
from tracelake.server.tls import Renewal, Tls

logger = logging.getLogger("tracelake.server")

_SERVICES: Final = "opentelemetry.proto.collector"
TRACES: Final = f"{_SERVICES}.trace.v1.TraceService"
NOT_KEPT: Final = {
    "metrics": f"{_SERVICES}.metrics.v1.MetricsService",
    "logs": f"{_SERVICES}.logs.v1.LogsService",
}
"""Signals that are answered, so that SDKs do not warn at each export, and are not kept."""
Counted: TypeAlias = Callable[[str, str], None]
"""Counts a call of a service that ended with a code."""


class GrpcDoor:
    """Takes OTLP/gRPC on one address. One event loop uses it."""

    def __init__(
        self,
        traces: TracesEndpoint,
        address: str,
        counted: Counted = lambda _service, _code: None,
        not_kept: Callable[[str], None] = lambda _signal: None,
        ring: KeyRing | None = None,
        tls: Tls | None = None,
        auditing: Auditing | None = None,
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
                with asked_within(None if actor is None else actor.workspace):
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
