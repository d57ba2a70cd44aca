"""Senders of `door.py`: OTLP requests over keep-alive connections, from a process of their own."""

from __future__ import annotations

import json
import multiprocessing
import queue
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.door_transports import REFUSED, TAKEN, Grpc, Http, Transport

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

TEXT_CHARS: Final = 2_000
"""Of the input and of the output of a span each: with names and ids, about 4 KB."""
POOL_BYTES: Final = 64 * 2**20
"""Bodies that are made before the clock starts; beyond, they are sent again with other ids."""
POOL_REQUESTS: Final = 4_000
TRACE_ID: Final = b"\xee" * 16
TOKEN: Final = "q" + "7" * 15
"""A word that stands in the text of a request alone, for finding it."""
SAMPLE_EVERY_S: Final = 0.25
HOT_SAMPLE_EVERY_S: Final = 1.0
"""Where each search indexes what came since the one before it: that is its price, and who asks often pays it often."""
READY_WITHIN_S: Final = 600.0
FAILED_PAUSE_S: Final = 0.1
FAILURES_IN_A_ROW_MAX: Final = 50
"""Of one sender without an answer. Beyond: the server is taken to be gone."""
CONTENT_TYPES: Final = {"protobuf": "application/x-protobuf", "json": "application/json"}


@dataclass(frozen=True)
class Load:
    """What is sent, and where to."""

    url: str
    headers: dict[str, str]
    senders: int
    spans: int
    """In one request."""
    format: str = "protobuf"
    seconds: float = 10.0
    requests: int | None = None
    """How many in all, however long that takes; None: as many as the seconds allow."""
    spans_per_s: float | None = None
    """All senders together; None: each sends when it has its answer."""
    sample_every_s: float = SAMPLE_EVERY_S
    """How often a request is told of that is to be looked for."""
    grpc: str = ""
    """Where gRPC is taken."""
    grpc_share: float = 0.0
    """Of the senders, how many send by gRPC; the others send by HTTP."""

    def connect(self, sender: int) -> Transport:
        """Return a connection for one of the senders. Raises OSError."""
        if sender < self.grpc_share * self.senders:
            return Grpc(self.grpc, self.headers)
        return Http(self.url, self.headers, CONTENT_TYPES[self.format])


@dataclass(frozen=True)
class Answer:
    """One request that was answered with 200."""

    at_s: float
    """When, by the monotonic clock, which the processes of a machine share."""
    latency_s: float
    token: str


@dataclass(frozen=True)
class Sent:
    """What became of a load."""

    answers: list[Answer]
    refused: int
    """Requests that were answered with 503, or by gRPC with when to send again, and not sent again."""
    failed: int
    """Requests that were answered with another error, or not at all."""
    problem: str
    """The last of these errors."""
    last: int
    """No request has a higher number."""


def bodies(
    spans: int,
    format: str,
    pool_bytes: int = POOL_BYTES,
    text_words: int = 600_000,
    text_chars: int = TEXT_CHARS,
) -> list[bytes]:
    """Return requests of spans with so much text in and out, each with placeholders for trace id and token.

    Texts are cut from one of so many words, by chance: two of them may share some.
    """
    rng = random.Random(4)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(20_000)]
    text = " ".join(rng.choices(words, k=text_words))
    made: list[bytes] = []
    size_bytes = 0
    while size_bytes < pool_bytes and len(made) < POOL_REQUESTS:
        made.append(_body(rng, text, spans, format, text_chars))
        size_bytes += len(made[-1])
    return made


def _body(rng: random.Random, text: str, spans: int, format: str, text_chars: int) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_spans.add()
    for number in range(1, spans + 1):
        span = scope.spans.add(trace_id=TRACE_ID, span_id=number.to_bytes(8), name=f"step {number}")
        if number > 1:
            span.parent_span_id = (1).to_bytes(8)
        span.start_time_unix_nano = 1_790_000_000_000_000_000 + number * 1_000_000
        span.end_time_unix_nano = span.start_time_unix_nano + 7_000_000
        for key in ("input.value", "output.value"):
            begin = rng.randrange(len(text) - text_chars)
            value = text[begin : begin + text_chars]
            span.attributes.add(key=key).value.string_value = f"{TOKEN} {value}" if number == 1 else value
        span.attributes.add(key="llm.model_name").value.string_value = "small"
        span.attributes.add(key="llm.token_count.prompt").value.int_value = rng.randrange(4_000)
    if format == "protobuf":
        return request.SerializeToString()
    document = MessageToDict(request)
    for number, item in enumerate(document["resourceSpans"][0]["scopeSpans"][0]["spans"], 1):
        item |= {"traceId": TRACE_ID.hex(), "spanId": f"{number:016x}", "kind": 1}
        if "parentSpanId" in item:
            item["parentSpanId"] = f"{1:016x}"
    return json.dumps(document).encode()


def with_ids(body: bytes, number: int, format: str) -> tuple[bytes, str]:
    """Return the request as the one of this number, and its token."""
    trace_id = random.Random(number).randbytes(16)
    token = f"q{trace_id.hex()[:15]}"
    if format == "json":
        return body.replace(TRACE_ID.hex().encode(), trace_id.hex().encode()).replace(
            TOKEN.encode(), token.encode()
        ), token
    return body.replace(TRACE_ID, trace_id).replace(TOKEN.encode(), token.encode()), token


class Senders:
    """A process that sends a load. `samples` gets an answer now and then, while it goes on."""

    def __init__(self, load: Load, first: int) -> None:
        """Start it; the first request has the number `first`, and no two loads of a lake may share one."""
        context = multiprocessing.get_context("spawn")
        self.samples: Queue[Answer] = context.Queue()
        self._sent: Queue[Sent | str] = context.Queue()
        self._begin = context.Event()
        self._ready = context.Event()
        arguments = (load, first, self._ready, self._begin, self.samples, self._sent)
        self._process = context.Process(target=_send, args=arguments, daemon=True)

    def __enter__(self) -> Senders:
        """Wait until they could begin."""
        self._process.start()
        assert self._ready.wait(READY_WITHIN_S), "the senders do not get ready"
        return self

    def __exit__(self, *_: object) -> None:
        """End them, whatever they are at."""
        self._process.kill()
        self._process.join()

    def begin(self) -> None:
        """Let them send."""
        self._begin.set()

    def sent(self) -> Sent:
        """Let them send, wait until they have done, and return what became of it."""
        self.begin()
        while True:
            try:
                sent = self._sent.get(timeout=1)
            except queue.Empty:
                assert self._process.is_alive(), "the senders died"
            else:
                assert isinstance(sent, Sent), sent
                return sent


def _send(
    load: Load, first: int, ready: Event, begin: Event, samples: Queue[Answer], sent: Queue[Sent | str]
) -> None:
    pool = bodies(load.spans, load.format)
    work = _Work(load, pool, first, samples)
    threads = [
        threading.Thread(target=work.send, args=(number,), daemon=True) for number in range(load.senders)
    ]
    ready.set()
    begin.wait()
    work.until_s = time.monotonic() + load.seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent.put("; ".join(work.broken) if work.broken else work.done())
    samples.cancel_join_thread()  # who looks for them may have gone


class _Work:
    def __init__(self, load: Load, pool: list[bytes], first: int, samples: Queue[Answer]) -> None:
        self.until_s = 0.0
        self.broken: list[str] = []
        self._answers: list[Answer] = []
        self._refused: list[int] = []
        self._failed: list[str] = []
        self._load, self._pool, self._samples = load, pool, samples
        self._first = first
        self._numbers: Iterator[int] = count(first)
        self._end = None if load.requests is None else first + load.requests
        self._sampled_s = 0.0

    def done(self) -> Sent:
        """Return what became of the load."""
        problem = self._failed[-1] if self._failed else ""
        last = next(self._numbers)
        return Sent(self._answers, len(self._refused), len(self._failed), problem, last)

    def send(self, sender: int) -> None:
        """Send until the end, one request after the other."""
        try:
            self._send(sender)
        except Exception as error:  # noqa: BLE001  whatever it is, the run must not go on as if all were sent
            self.broken.append(f"{type(error).__name__}: {error}")

    def _send(self, sender: int) -> None:
        load = self._load
        pause_s = None if load.spans_per_s is None else load.senders * load.spans / load.spans_per_s
        due_s = time.monotonic() + (pause_s or 0.0) * sender / load.senders
        connection: Transport | None = None
        in_a_row = 0
        while not self.broken:
            if pause_s is not None:
                time.sleep(max(0.0, due_s - time.monotonic()))
            number = next(self._numbers)  # one step of the interpreter: each has it once
            if (self._end is not None and number >= self._end) or (
                self._end is None and time.monotonic() >= self.until_s
            ):
                break
            body, token = with_ids(self._pool[number % len(self._pool)], number, load.format)
            begun_s = time.monotonic() if pause_s is None else due_s
            due_s += pause_s or 0.0
            try:
                connection = connection or load.connect(sender)
                status = connection.post(body)
            except OSError as error:  # such as a server that ends a connection after so many requests
                if connection is not None:
                    connection.close()
                connection = None
                self._failed.append(f"{type(error).__name__}: {error}")
                in_a_row += 1
                if in_a_row >= FAILURES_IN_A_ROW_MAX:
                    raise
                time.sleep(FAILED_PAUSE_S)
                continue
            in_a_row = 0
            if status == TAKEN:
                self._answered(Answer(time.monotonic(), time.monotonic() - begun_s, token))
            elif status == REFUSED:
                self._refused.append(number)
                time.sleep(FAILED_PAUSE_S)
            else:
                self._failed.append(f"answered with {status}")
        if connection is not None:
            connection.close()

    def _answered(self, answer: Answer) -> None:
        self._answers.append(answer)
        if answer.at_s - self._sampled_s > self._load.sample_every_s:
            self._sampled_s = answer.at_s
            self._samples.put(answer)
