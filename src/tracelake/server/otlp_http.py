"""OTLP/HTTP: `POST /v1/traces`, which acknowledges a request once it is durable, and `/v1/metrics` and `/v1/logs`.

It follows https://opentelemetry.io/docs/specs/otlp/#otlphttp. A response has the encoding of its request. An error is
a google.rpc.Status. Clients retry only after 429, 502, 503 and 504. A partly rejected request is a success that
counts the rejected spans.

A body is limited on the wire, decompressed, and by a memory budget over all requests. A request is decoded within the
budget, assigned to the workspace of its key, and split by trace. Its results keep their share until the response,
because a resource of 60 KB is copied into each trace.

Metrics and logs are acknowledged, so that SDKs do not log a warning at each export. They are read within the limits
and counted, but neither decoded nor stored.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import anyio
import zstandard
from anyio.to_thread import run_sync
from google.protobuf import json_format
from google.protobuf.message import Message as ProtobufMessage
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
from starlette.types import Message, Receive, Scope, Send

from tracelake import _errors, limits
from tracelake.limits.input import MIB
from tracelake.otlp import parse
from tracelake.otlp.columns import SpanChecks
from tracelake.otlp.decode import Decoded, OnParsed, decode_json, decode_protobuf
from tracelake.otlp.framing import Format
from tracelake.otlp.partition import TracePartitioner, TraceSpans, complete, placed
from tracelake.server.http_policy import requested_workspace, retry_after_s, status_of
from tracelake.tracking.ingest_queue import GroupCommitter, RequestGroups

_OTLP_COUNTED_MIN: Final = 100_000
"""Opening braces or tags of protobuf that a request may have before its structure is counted."""
_DECOMPRESSED_AT_ONCE_MAX_BYTES: Final = 2 * 1024
"""A compressed request that is decompressed without going to a thread."""
REQUEST_APART_MAX_BYTES: Final = 256 * MIB
"""Traces of one request in a hot tier, which stores each with its resources and scopes."""
_DECOMPRESSED_PIECE_BYTES: Final = 256 * 1024
"""Bytes decompressed before more memory is reserved."""
_DECODE_THREADS_MAX: Final = 4
"""Requests that one Python process decompresses or decodes concurrently."""
_DECODED_AT_ONCE_MAX_BYTES: Final = 64 * 1024
"""Request decompressed or decoded on the event loop, which briefly blocks others."""

WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""zlib's window bits for each Content-Encoding."""
ENCODINGS = frozenset({*WINDOW_BITS, "zstd"})
"""Supported values of Content-Encoding."""


class Budget:
    """Memory budget over all requests: bytes as sent, decompressed, and during decoding. Threads share it."""

    def __init__(self, max_bytes: int) -> None:
        """Set the limit of the budget."""
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._lock = Lock()

    @contextmanager
    def share(self) -> Iterator[BudgetShare]:
        """Lend a share to one request; return all of it at the end."""
        share = BudgetShare(self)
        try:
            yield share
        finally:
            self.give_back(share.size_bytes)

    def take(self, size_bytes: int, held_bytes: int) -> None:
        """Reserve `size_bytes` for a request that already has `held_bytes`.

        Raises LimitError if the request alone exceeds the budget, BackPressureError if other requests use it now.
        """
        if held_bytes + size_bytes > self._max_bytes:
            raise _errors.LimitError(
                f"the request takes more than {self._max_bytes} bytes while it is decoded; send smaller batches"
            )
        with self._lock:
            if self._held_bytes + size_bytes > self._max_bytes:
                raise _errors.BackPressureError(
                    "too many request bytes are in flight; send the request again later"
                )
            self._held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Release bytes."""
        with self._lock:
            self._held_bytes -= size_bytes


class BudgetShare:
    """Share of the budget that one request uses."""

    def __init__(self, budget: Budget) -> None:
        """Start with no bytes."""
        self._budget = budget
        self.size_bytes = 0
        self._kept_bytes = 0

    @contextmanager
    def for_now(self) -> Iterator[BudgetShare]:
        """Inside the `with` block, reserve bytes temporarily: at its end, bytes from `take` are released, and bytes
        from `keep` stay."""
        before_bytes = self.size_bytes - self._kept_bytes
        try:
            yield self
        finally:
            self.give_back(self.size_bytes - self._kept_bytes - before_bytes)

    def keep(self, size_bytes: int) -> None:
        """Reserve bytes until the end of the request. Raises the errors of `Budget.take`."""
        self.take(size_bytes)
        self._kept_bytes += size_bytes

    def take(self, size_bytes: int) -> None:
        """Reserve bytes. Raises the errors of `Budget.take`."""
        self._budget.take(size_bytes, self.size_bytes)
        self.size_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Release bytes."""
        self._budget.give_back(size_bytes)
        self.size_bytes -= size_bytes


class RequestBody:
    """Body of one request. The application may read all of it, a part, or nothing."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        """Wrap the `receive` of a request."""
        headers = dict(scope["headers"])
        self._receive = receive
        self._awaits_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        self._is_complete = (
            b"transfer-encoding" not in headers and headers.get(b"content-length", b"0").strip() == b"0"
        )

    async def receive(self) -> Message:
        """Receive the next message for the application."""
        self._awaits_continue = False
        message = await self._receive()
        self._is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def discard(self) -> bool:
        """Read and discard the rest of the body; return whether the whole body was read.

        If the server closes the connection while a client is sending, the client sees a reset instead of the response
        (RFC 9112, section 9.6). A client that waits for `100 Continue` has sent nothing, so nothing is read.
        """
        if self._is_complete or self._awaits_continue:
            return self._is_complete
        size_bytes = 0
        try:
            async with asyncio.timeout(limits.DISCARDED_BODY_MAX_S):
                while not self._is_complete and size_bytes <= limits.DISCARDED_BODY_MAX_BYTES:
                    size_bytes += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return False
        return self._is_complete


async def read_body(declared: bytes, receive: Receive, share: BudgetShare, max_bytes: int) -> bytes:
    """Return the body as sent. `declared` is its Content-Length, if any.

    Raises ClientDisconnect if the client disconnects, and LimitError as soon as the body exceeds `max_bytes`.
    """
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size_bytes = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise _too_large(max_bytes)
        share.take(len(chunk))
        chunks.append(chunk)
        more = message.get("more_body", False)
    return b"".join(chunks)


def decompress(body: bytes, encoding: str, max_bytes: int, share: BudgetShare) -> bytes:
    """Decompress a `gzip`, `deflate` or `zstd` body, which may have several gzip members or zstd frames.

    Raises DecodeError for a damaged or truncated body, LimitError beyond `max_bytes`, and BackPressureError if other
    requests use the memory budget.
    """
    is_zstd = encoding == "zstd"
    piece_bytes = limits.ZSTD_READ_BYTES if is_zstd else _DECOMPRESSED_PIECE_BYTES
    out = bytearray()
    position = 0
    for _ in range(limits.COMPRESSED_MEMBERS_MAX):
        # A client can demand a window of any size, so it is limited.
        stream: Any = (
            zstandard.ZstdDecompressor(max_window_size=limits.ZSTD_WINDOW_MAX_BYTES).decompressobj()
            if is_zstd
            else zlib.decompressobj(WINDOW_BITS[encoding])
        )
        while not stream.eof:
            # Use small pieces for input and output, because zlib copies the rest of each.
            chunk = stream.unconsumed_tail or body[position : position + piece_bytes]
            position += 0 if stream.unconsumed_tail else len(chunk)
            room = () if is_zstd else (min(piece_bytes, max_bytes - len(out) + 1),)
            try:
                piece = stream.decompress(chunk, *room)
            except (zlib.error, zstandard.ZstdError) as error:
                raise _errors.DecodeError(
                    f"the body is not {encoding}: {error}; see Content-Encoding"
                ) from None
            if not chunk and not piece and not stream.eof:
                raise _errors.DecodeError(f"the {encoding} body is truncated after {len(body)} bytes")
            share.take(len(piece))
            out += piece
            if len(out) > max_bytes:
                raise _too_large(max_bytes)
        position -= len(stream.unused_data)
        if position == len(body):
            return bytes(out)
    unit = "frames" if is_zstd else "members"
    raise _errors.DecodeError(f"the body has more than {limits.COMPRESSED_MEMBERS_MAX} {encoding} {unit}")


def _too_large(max_bytes: int) -> _errors.LimitError:
    return _errors.LimitError(
        f"the body is larger than {max_bytes} bytes, decompressed; send smaller batches"
    )


_COMMAS_OF_OBJECT: Final = 8
_TAGS_OF_MESSAGE: Final = 4
_BYTES_OF_MESSAGE: Final = 40
"""Smallest sizes that are counted: requests of SDKs have larger messages, with fewer such bytes in texts."""
_MESSAGES_OF_ATTRIBUTE: Final = 2
"""A KeyValue and its AnyValue."""


class DecodedRequest(NamedTuple):
    """Request in the form that is stored."""

    format: Format
    payload: bytes
    decoded: Decoded
    traces: dict[str, TraceSpans]


def decode_request(
    format: Format, payload: bytes, share: BudgetShare, workspace: str | None, *, takes_apart: bool
) -> DecodedRequest:
    """Decode a request and assign it to the workspace of its key, if the key has one. Raises the errors of
    `_decode`."""
    decoded, traces, workspaces = _decode(format, payload, share, workspace, takes_apart=takes_apart)
    if workspace is None or workspaces <= {workspace}:
        return DecodedRequest(format, payload, decoded, traces)
    with _reserve(format, payload, share):
        there = placed(format, payload, workspace)
        share.keep(len(there.payload))
    again, traces, workspaces = _decode("protobuf", there.payload, share, workspace, takes_apart=takes_apart)
    if not workspaces <= {workspace}:
        raise _errors.InternalError(
            f"a request is of {len(workspaces)} workspaces, and not of its key's alone"
        )
    every = decoded.accepted + decoded.rejected
    reasons = (*decoded.reasons, there.left_out) if there.left_out else decoded.reasons
    result = Decoded(again.accepted, every - again.accepted, reasons, decoded.notes)
    return DecodedRequest("protobuf", there.payload, result, traces)


def _decode(
    format: Format, payload: bytes, share: BudgetShare, workspace: str | None, *, takes_apart: bool
) -> tuple[Decoded, dict[str, TraceSpans], set[str]]:
    """Decode a request; find the accepted spans and their workspaces.

    Split it by trace if all spans belong to `workspace`, or if that is None. The result keeps its memory share until
    the response. Raises InputError if the payload cannot be decoded, LimitError if it needs too much memory, and
    BackPressureError if other requests use the memory.
    """
    decode = decode_json if format == "json" else decode_protobuf

    def on_careful() -> None:
        _check_structure(format, payload, limits.OTLP_CAREFUL_VALUES_MAX, limits.OTLP_CAREFUL_VALUES_MAX)

    with _reserve(format, payload, share) as check:
        if not takes_apart:
            checks = SpanChecks()
            return decode(payload, checks, check, on_careful), {}, checks.workspaces()
        partitioner = TracePartitioner()
        decoded = decode(payload, partitioner, check, on_careful)
        workspaces = partitioner.workspaces()
        if workspace is not None and not workspaces <= {workspace}:
            return decoded, {}, workspaces
        share.keep(len(payload) + decoded.accepted * parse.MESSAGE_BYTES)  # rows and their texts

        def keep(apart_bytes: int) -> None:
            if apart_bytes > REQUEST_APART_MAX_BYTES:
                raise _too_many(
                    f"{REQUEST_APART_MAX_BYTES} bytes by trace, each with its resources and scopes"
                )
            share.keep(apart_bytes)

        return decoded, complete(format, payload, partitioner, decoded, keep), workspaces


@contextmanager
def _reserve(format: Format, payload: bytes, share: BudgetShare) -> Iterator[OnParsed]:
    """Reserve memory for decoding. The yielded function adjusts the reservation to the parsed size."""
    with share.for_now() as room:
        if format == "protobuf" and parse.has_spans_beyond(payload, limits.OTLP_REQUEST_SPANS_MAX):
            raise _too_many(f"{limits.OTLP_REQUEST_SPANS_MAX} spans")
        if _tokens(format, payload) > _OTLP_COUNTED_MIN:
            messages_max = _MESSAGES_OF_ATTRIBUTE * limits.OTLP_REQUEST_MESSAGES_MAX
            _check_structure(format, payload, limits.OTLP_REQUEST_VALUES_MAX, messages_max)
        guess_bytes = parse.parse_max_bytes(payload, format)
        room.take(guess_bytes)

        def check(size: parse.PayloadSize) -> None:
            if size.spans > limits.OTLP_REQUEST_SPANS_MAX:
                raise _too_many(f"{limits.OTLP_REQUEST_SPANS_MAX} spans")
            if size.messages > limits.OTLP_REQUEST_MESSAGES_MAX:
                raise _too_many(
                    f"{limits.OTLP_REQUEST_MESSAGES_MAX} spans, events, links and attributes together"
                )
            room.give_back(guess_bytes)
            room.take(len(payload) + size.messages * parse.MESSAGE_BYTES)

        yield check


def _tokens(format: Format, payload: bytes) -> int:
    """Return an upper bound on the values of a payload (JSON objects, arrays and commas, or protobuf messages and
    fields), by a fast scan."""
    if format == "json":
        return payload.count(b"{") + payload.count(b"[") + payload.count(b",") // _COMMAS_OF_OBJECT
    return max(parse.message_tags(payload) // _TAGS_OF_MESSAGE, len(payload) // _BYTES_OF_MESSAGE)


def _check_structure(format: Format, payload: bytes, values_max: int, messages_max: int) -> None:
    """Count the values and messages of a payload without parsing it. Raises LimitError if there are too many."""
    if format == "protobuf":
        if parse.has_messages_beyond(payload, messages_max, limits.OTLP_CAREFUL_VALUES_MAX):
            raise _too_many(f"{messages_max} messages, or {limits.OTLP_CAREFUL_VALUES_MAX} other fields")
        return
    structure = parse.json_structure(payload, values_max)
    if max(structure.resources, structure.scopes, structure.spans) > limits.OTLP_REQUEST_SPANS_MAX:
        raise _too_many(f"{limits.OTLP_REQUEST_SPANS_MAX} resources, scopes or spans")
    if structure.values > values_max:
        raise _too_many(f"{values_max} objects, arrays and members")


def _too_many(what: str) -> _errors.LimitError:
    return _errors.LimitError(f"the request has more than {what}; send smaller batches")


logger = logging.getLogger("tracelake.server")

ResultT = TypeVar("ResultT")
Meter: TypeAlias = Callable[[int, int], None]
"""Function that charges a decoded request's spans and decompressed bytes to its key's quota."""
METER = "tracelake.meter"
"""ASGI scope entry with the request's `Meter`."""

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
"""google.rpc.Status code of each HTTP status."""


class TracesEndpoint:
    """ASGI application for `POST /v1/traces`. A framework's overhead per request would cost more than the request."""

    def __init__(self, queue: RequestGroups, wait_s: float = limits.SEGMENT_WAIT_S) -> None:
        """Store into `queue`. `wait_s` is passed to `GroupCommitter`."""
        self._gathering = GroupCommitter(queue, wait_s)
        self._takes_apart = queue.takes_apart
        self._budget = Budget(limits.REQUESTS_MEMORY_MAX_BYTES)
        self._decoders = anyio.CapacityLimiter(_DECODE_THREADS_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._answer(dict(scope["headers"]), receive, scope.get(METER))
        await response(scope, receive, send)

    async def _answer(self, headers: dict[bytes, bytes], receive: Receive, meter: Meter | None) -> Response:
        content_type = headers.get(b"content-type", b"").decode("latin-1").split(";")[0].strip().lower()
        format = FORMATS.get(content_type)
        if format is None:
            message = f"Content-Type {content_type or 'is missing'}: send application/x-protobuf or application/json"
            return failure("json", _errors.UnsupportedError(message))
        try:
            return _response(format, 200, success_message(await self._take(headers, receive, format, meter)))
        except ClientDisconnect:
            raise
        except Exception as error:
            if isinstance(error, _errors.TracelakeError) and status_of(type(error)) != 500:
                return failure(format, error)
            logger.exception("a request of %s could not be processed", content_type)
            return failure(format, _errors.InternalError("internal error; see the log of the server"))

    async def _take(
        self, headers: dict[bytes, bytes], receive: Receive, format: Format, meter: Meter | None
    ) -> Decoded:
        experiment_id = experiment_of(_text(headers.get(b"x-mlflow-experiment-id", b"")))
        encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
        if encoding != "identity" and encoding not in ENCODINGS:
            raise _errors.UnsupportedError(f"Content-Encoding {encoding}: send gzip, zstd, deflate or none")
        max_bytes = limits.OTLP_REQUEST_MAX_BYTES
        with self._budget.share() as share:
            payload = await read_body(headers.get(b"content-length", b""), receive, share, max_bytes)
            return await self._store(format, payload, encoding, experiment_id, share, meter)

    async def take_message(
        self, payload: bytes, encoding: str, experiment_id: str, meter: Meter | None = None
    ) -> Decoded:
        """Store a protobuf message that arrived through another protocol. Raises the errors of a request over HTTP."""
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
        """Decompress, decode and store a request whose bytes, as sent, are already in the share."""
        work_bytes = len(payload)
        try:
            if encoding != "identity":
                before_bytes = share.size_bytes
                try:
                    payload = await self._decompress(payload, encoding, share)
                finally:
                    work_bytes = max(work_bytes, len(payload), share.size_bytes - before_bytes)
            workspace, sent = requested_workspace(), payload
            request = await self._do(
                len(sent) <= _DECODED_AT_ONCE_MAX_BYTES,
                lambda: decode_request(format, sent, share, workspace, takes_apart=self._takes_apart),
            )
        except (_errors.InputError, _errors.LimitError):
            if meter is not None:
                meter(0, work_bytes)  # a refused request that cost work counts like any other
            raise
        format, payload, decoded, traces = request.format, request.payload, request.decoded, request.traces
        if meter is not None:
            meter(decoded.accepted + decoded.rejected, len(sent))
        # The pipeline decodes it again and rejects the same spans. A request without an accepted span is not
        # stored.
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
        is_small = len(compressed) <= _DECOMPRESSED_AT_ONCE_MAX_BYTES
        payload = await self._do(
            is_small, lambda: decompress(compressed, encoding, limits.OTLP_REQUEST_MAX_BYTES, share)
        )
        share.give_back(len(compressed))
        return payload

    async def _do(self, is_small: bool, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in a thread; small work runs in the event loop, because switching threads would take longer.

        An error is raised without its frames. In a reference cycle, they would keep all decoded data of a refused
        request alive until the next garbage collection.
        """

        def call() -> ResultT | _errors.TracelakeError:
            try:
                return work()
            except _errors.TracelakeError as error:
                error.__cause__ = error.__context__ = None
                return error.with_traceback(None)

        outcome = call() if is_small else await run_sync(call, limiter=self._decoders)
        if not isinstance(outcome, _errors.TracelakeError):
            return outcome
        try:
            raise outcome
        finally:
            del outcome


def _text(header: bytes) -> str:
    """Decode a header's text as UTF-8, which clients send today, or as HTTP's Latin-1."""
    try:
        return header.decode()
    except UnicodeDecodeError:
        return header.decode("latin-1")


def experiment_of(header: str) -> str:
    """Return the experiment from the header that MLflow's clients send. Raises LimitError if it is too long."""
    experiment_id = header.strip()
    if len(experiment_id) > limits.TRACKING_KEY_MAX_CHARS:
        raise _errors.LimitError(
            f"x-mlflow-experiment-id has more than {limits.TRACKING_KEY_MAX_CHARS} characters; send an id"
        )
    if len(experiment_id.encode()) > limits.EXPERIMENT_ID_MAX_BYTES:
        raise _errors.LimitError(
            f"x-mlflow-experiment-id has more than {limits.EXPERIMENT_ID_MAX_BYTES} bytes; send an id"
        )
    return experiment_id


def success_message(decoded: Decoded) -> ExportTraceServiceResponse:
    """Return the success response, with rejected spans and notes."""
    message = ExportTraceServiceResponse()
    if decoded.rejected or decoded.notes:
        message.partial_success.rejected_spans = decoded.rejected
        message.partial_success.error_message = "; ".join((*decoded.reasons, *decoded.notes))
    return message


def failure(format: Format, error: _errors.TracelakeError) -> Response:
    """Return the error response as google.rpc.Status."""
    http_status = status_of(type(error))
    status = Status(code=CODES[http_status], message=str(error))
    if http_status == 400:
        violation = BadRequest.FieldViolation(field="body", description=str(error))
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    response = _response(format, http_status, status)
    if (wait_s := retry_after_s(error)) is not None:
        response.headers["Retry-After"] = str(wait_s)
    return response


def _response(format: Format, http_status: int, message: ProtobufMessage) -> Response:
    if format == "json":
        body: bytes | str = json_format.MessageToJson(message, indent=None)
        return Response(body, http_status, media_type="application/json")
    return Response(message.SerializeToString(), http_status, media_type="application/x-protobuf")


SIGNALS = ("metrics", "logs")


class IgnoredSignalsEndpoint:
    """ASGI application that acknowledges and drops metrics or logs."""

    def __init__(self, signal: str, on_ignored: Callable[[str], None]) -> None:
        """Count requests with `on_ignored`."""
        self._signal = signal
        self._on_ignored = on_ignored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with an empty success, in its own encoding."""
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if await _skip_body(receive):
            self._on_ignored(self._signal)
            as_json = content_type == "application/json"
            media_type = "application/json" if as_json else "application/x-protobuf"
            response = Response(b"{}" if as_json else b"", media_type=media_type)
            await response(scope, receive, send)


async def _skip_body(receive: Receive) -> bool:
    """Read and discard a body; return False if the client disconnected. Raises LimitError if it is too large."""
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        size_bytes += len(message.get("body", b""))
        if size_bytes > limits.OTLP_REQUEST_MAX_BYTES:
            raise _errors.LimitError(
                f"the body has more than {limits.OTLP_REQUEST_MAX_BYTES} bytes; send smaller batches"
            )
        if not message.get("more_body", False):
            return True
