"""`POST /v1/traces`: OTLP/HTTP as the specification says, durable before it is acknowledged.

https://opentelemetry.io/docs/specs/otlp/#otlphttp: a response has the encoding of its request; an error is a
google.rpc.Status; only 429, 502, 503 and 504 make a client send again; a request of which only some spans
can be taken is a success that counts the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import anyio
from anyio.to_thread import run_sync
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.code_pb2 import (  # type: ignore[import-untyped]
    ABORTED,
    INTERNAL,
    INVALID_ARGUMENT,
    NOT_FOUND,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)
from google.rpc.error_details_pb2 import BadRequest  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracelake import limits
from tracelake._errors import InputError, InternalError, LimitError, TracelakeError, UnsupportedError
from tracelake.otlp.decode import Decoded
from tracelake.otlp.framing import Format
from tracelake.server.body import ENCODINGS, Budget, BudgetShare, decompress, read_body
from tracelake.server.errors import retry_after_s, status_of
from tracelake.server.gathering import Gathering
from tracelake.server.scope import workspace_asked
from tracelake.server.taking import take
from tracelake.tracking.groups import RequestGroups
from tracelake.tracking.schema import DEFAULT_EXPERIMENT

logger = logging.getLogger("tracelake.server")

ResultT = TypeVar("ResultT")
Meter: TypeAlias = Callable[[int, int], None]
"""Counts spans and bytes, decompressed, of a request that is decoded: of whoever has a quota."""
METER = "tracelake.meter"
"""Where the scope of a request has one."""

FORMATS: dict[str, Format] = {"application/x-protobuf": "protobuf", "application/json": "json"}


CODES: dict[int, int] = {
    400: INVALID_ARGUMENT,
    401: UNAUTHENTICATED,
    403: PERMISSION_DENIED,
    404: NOT_FOUND,
    409: ABORTED,
    413: RESOURCE_EXHAUSTED,
    415: UNIMPLEMENTED,
    429: RESOURCE_EXHAUSTED,
    500: INTERNAL,
    503: UNAVAILABLE,
}
"""HTTP status → code of google.rpc.Status."""


class TracesEndpoint:
    """`POST /v1/traces` as an ASGI application: what a framework does for each request costs more than the request."""

    def __init__(self, queue: RequestGroups, wait_s: float = limits.SEGMENT_WAIT_S) -> None:
        """Store into `queue`; `wait_s` as `Gathering` has it."""
        self._gathering = Gathering(queue, wait_s)
        self._takes_apart = queue.takes_apart
        self._budget = Budget(limits.REQUESTS_MEMORY_MAX_BYTES)
        self._decoders = anyio.CapacityLimiter(limits.DECODE_THREADS_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._answer(dict(scope["headers"]), receive, scope.get(METER))
        await response(scope, receive, send)

    async def _answer(self, headers: dict[bytes, bytes], receive: Receive, meter: Meter | None) -> Response:
        content_type = headers.get(b"content-type", b"").decode("latin-1").split(";")[0].strip().lower()
        format = FORMATS.get(content_type)
        if format is None:
            message = f"Content-Type {content_type or 'is missing'}: send application/x-protobuf or application/json"
            return failure("json", UnsupportedError(message))
        try:
            return _response(format, 200, success_message(await self._take(headers, receive, format, meter)))
        except ClientDisconnect:
            raise
        except Exception as error:
            if isinstance(error, TracelakeError) and status_of(type(error)) != 500:
                return failure(format, error)
            logger.exception("a request of %s could not be taken", content_type)
            return failure(format, InternalError("internal error; the log of the server says more"))

    async def _take(
        self, headers: dict[bytes, bytes], receive: Receive, format: Format, meter: Meter | None
    ) -> Decoded:
        experiment_id = experiment_of(_text(headers.get(b"x-mlflow-experiment-id", b"")))
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if encoding != "identity" and encoding not in ENCODINGS:
            raise UnsupportedError(f"Content-Encoding {encoding}: send gzip, zstd, deflate or none")
        max_bytes = limits.OTLP_REQUEST_MAX_BYTES
        with self._budget.share() as share:
            payload = await read_body(headers.get(b"content-length", b""), receive, share, max_bytes)
            return await self._store(format, payload, encoding, experiment_id, share, meter)

    async def take_message(
        self, payload: bytes, encoding: str, experiment_id: str, meter: Meter | None = None
    ) -> Decoded:
        """Take a protobuf message that came by another way than HTTP. Raises TracelakeError."""
        with self._budget.share() as share:
            share.take(len(payload))
            return await self._store("protobuf", payload, encoding, experiment_id, share, meter)

    async def _store(
        self,
        format: Format,
        payload: bytes,
        encoding: str,
        experiment_id: str,
        share: BudgetShare,
        meter: Meter | None,
    ) -> Decoded:
        """Take a request of which the share holds the bytes as they were sent."""
        work_bytes = len(payload)
        try:
            if encoding != "identity":
                before_bytes = share.size_bytes
                try:
                    payload = await self._decompress(payload, encoding, share)
                finally:
                    work_bytes = max(work_bytes, len(payload), share.size_bytes - before_bytes)
            workspace, sent = workspace_asked(), payload
            taken = await self._do(
                len(sent) <= limits.DECODED_AT_ONCE_MAX_BYTES,
                lambda: take(format, sent, share, workspace, takes_apart=self._takes_apart),
            )
        except (InputError, LimitError):
            if meter is not None:
                meter(0, work_bytes)  # what costs work and is refused counts like any other request
            raise
        format, payload, decoded, traces = taken.format, taken.payload, taken.decoded, taken.traces
        if meter is not None:
            meter(decoded.accepted + decoded.rejected, len(sent))
        # The pipeline decodes it, and refuses the same spans. Without one good span it is not stored.
        if decoded.accepted:
            refused = await self._gathering.append(format, payload, traces, experiment_id, decoded.rejected)
            if refused is not None:
                return Decoded(
                    decoded.accepted - refused.spans,
                    decoded.rejected + refused.spans,
                    (*decoded.reasons, refused.reason),
                    decoded.notes,
                )
        return decoded

    async def _decompress(self, compressed: bytes, encoding: str, share: BudgetShare) -> bytes:
        is_small = len(compressed) <= limits.DECOMPRESSED_AT_ONCE_MAX_BYTES
        payload = await self._do(
            is_small, lambda: decompress(compressed, encoding, limits.OTLP_REQUEST_MAX_BYTES, share)
        )
        share.give_back(len(compressed))
        return payload

    async def _do(self, is_small: bool, work: Callable[[], ResultT]) -> ResultT:
        """Do some work: in a thread, unless it is small, so that going there takes longer than the work.

        An error loses its frames on the way. They would be held by a cycle of references, and with them all that a
        refused request was decoded to, until the garbage collector comes by.
        """

        def call() -> ResultT | TracelakeError:
            try:
                return work()
            except TracelakeError as error:
                error.__cause__ = error.__context__ = None
                return error.with_traceback(None)

        outcome = call() if is_small else await run_sync(call, limiter=self._decoders)
        if not isinstance(outcome, TracelakeError):
            return outcome
        try:
            raise outcome
        finally:
            del outcome


def _text(header: bytes) -> str:
    """Return the text of a header, UTF-8 as clients of today send it, or else the Latin-1 of HTTP."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header.decode("latin-1")


def experiment_of(header: str) -> str:
    """Return the experiment that a request names as MLflow's clients do, in a header. Raises LimitError."""
    experiment_id = header.strip()
    if len(experiment_id) > limits.TRACKING_KEY_MAX_CHARS:
        raise LimitError(
            f"x-mlflow-experiment-id has more than {limits.TRACKING_KEY_MAX_CHARS} characters; send an id"
        )
    if len(experiment_id.encode()) > limits.EXPERIMENT_ID_MAX_BYTES:
        raise LimitError(
            f"x-mlflow-experiment-id has more than {limits.EXPERIMENT_ID_MAX_BYTES} bytes; send an id"
        )
    return experiment_id or DEFAULT_EXPERIMENT


def success_message(decoded: Decoded) -> ExportTraceServiceResponse:
    """Return what a client is told of a request that was taken, or a part of it."""
    message = ExportTraceServiceResponse()
    if decoded.rejected or decoded.notes:
        message.partial_success.rejected_spans = decoded.rejected
        message.partial_success.error_message = "; ".join((*decoded.reasons, *decoded.notes))
    return message


def failure(format: Format, error: TracelakeError) -> Response:
    """Return what a client is told of an error, as google.rpc.Status."""
    http_status = status_of(type(error))
    status = Status(code=CODES[http_status], message=str(error))
    if http_status == 400:
        violation = BadRequest.FieldViolation(field="body", description=str(error))
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    response = _response(format, http_status, status)
    if (wait_s := retry_after_s(error)) is not None:
        response.headers["Retry-After"] = str(wait_s)
    return response


def _response(format: Format, http_status: int, message: Message) -> Response:
    if format == "json":
        body: bytes | str = json_format.MessageToJson(message, indent=None)
        return Response(body, http_status, media_type="application/json")
    return Response(message.SerializeToString(), http_status, media_type="application/x-protobuf")
