"""Requests that are made durable together: those that come while others are being written share the next write.

Each group is written by one call, so the slower the store, the larger the groups. A caller may let requests gather
(`join`) until it says that they are all there (`release`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from tracelake import limits
from tracelake._errors import BackPressureError, StorageError
from tracelake.otlp.by_trace import TraceSpans
from tracelake.otlp.framing import Format
from tracelake.tracking.requests import RefusedSpans, TracedRequest
from tracelake.tracking.schema import DEFAULT_EXPERIMENT

Answers: TypeAlias = Sequence[RefusedSpans | Exception | None]
"""For each request of a group, in their order, the spans that were not taken of it; None where all were.

An error where nothing of this request was stored, and it is to blame for that alone.
"""
_NOT_APART: Final[Mapping[str, TraceSpans]] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class RequestGroup:
    """Requests that will be written together; `written` is done when they are durable."""

    written: Future[Answers] = field(default_factory=Future)
    requests: list[TracedRequest] = field(default_factory=list)
    size_bytes: int = 0
    released: bool = False
    """Whether it waits for nobody but the group before it."""


class RequestGroups(ABC):
    """A queue of OTLP requests that threads append to, and one thread writes."""

    takes_apart: ClassVar[bool]
    """Whether requests are to come apart by trace."""
    noun: ClassVar[str]
    """What errors call it."""

    def __init__(self, ack_timeout_s: float, group_max_bytes: int | None) -> None:
        """Take requests of so many bytes together, INBOX_SEGMENT_MAX_BYTES by default."""
        self.ack_timeout_s = ack_timeout_s
        self._group_max_bytes = group_max_bytes
        self._lock = Lock()
        self._open: RequestGroup | None = None
        self._waiting_requests = 0
        self._waiting_bytes = 0
        self._closed = False
        # One worker: groups are written one after the other, and the queue forms the next one meanwhile.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracelake-inbox")

    @abstractmethod
    def check(self) -> None:
        """Raise StorageError or OSError where a request would be refused now: queue, backlog, store."""

    @abstractmethod
    def _store(self, requests: Sequence[TracedRequest]) -> Answers:
        """Make requests durable, all of them or none, but for those that are answered by an error."""

    def append(self, format: Format, payload: bytes) -> RefusedSpans | None:
        """Store one request body as received (decompressed) and return once it is durable.

        Raises BackPressureError when the queue or the store is full, the store fails, or it takes longer
        than the acknowledgement time-out; the request may be sent again then.
        """
        group, place = self.join(format, payload)
        self.release(group)
        try:
            answer = group.written.result(self.ack_timeout_s)[place]
        except TimeoutError:
            raise self.too_late() from None
        except (StorageError, OSError) as error:
            raise self.refusal(error) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def join(
        self,
        format: Format,
        payload: bytes,
        traces: Mapping[str, TraceSpans] = _NOT_APART,
        experiment_id: str = DEFAULT_EXPERIMENT,
        refused: int = 0,
    ) -> tuple[RequestGroup, int]:
        """Add a request, of which so many spans were refused, to those that gather for the next write; do not wait.

        Return the group, and the place of the request in it. Whoever gets a group that is new must `release` it.
        Raises BackPressureError when the queue is full.
        """
        request = TracedRequest(format, payload, traces, experiment_id, refused)
        size_bytes = request.size_bytes
        with self._lock:
            self._check_queue(size_bytes)
            group, max_bytes = self._open, self._group_max_bytes or limits.INBOX_SEGMENT_MAX_BYTES
            if group is None or group.size_bytes + size_bytes > max_bytes:
                if group is not None:
                    self._release(group)
                group = self._open = RequestGroup()
            group.requests.append(request)
            group.size_bytes += size_bytes
            self._waiting_requests += 1
            self._waiting_bytes += size_bytes
            return group, len(group.requests) - 1

    def release(self, group: RequestGroup) -> None:
        """Let a group be written when its turn comes: until then others join it. Again is fine."""
        with self._lock:
            self._release(group)

    def too_late(self) -> BackPressureError:
        """Return what a request is told that is not written in time."""
        return BackPressureError(
            f"{self.noun} was not durable within {self.ack_timeout_s:g} s; send the request again later"
        )

    def refusal(self, error: BaseException) -> BackPressureError:
        """Return what a request is told that could not be written."""
        return BackPressureError(f"{self.noun} did not take the request: {error}; send it again later")

    def close(self) -> None:
        """Write what is waiting, then stop. Later appends are refused; calling it twice is allowed."""
        with self._lock:
            self._closed = True
            if self._open is not None:
                self._release(self._open)
        self._writer.shutdown(wait=True)

    def _release(self, group: RequestGroup) -> None:
        """See `release`. The lock is held."""
        if not group.released:
            group.released = True
            self._writer.submit(self._write, group)

    def _check_queue(self, size_bytes: int) -> None:
        if self._closed:
            raise BackPressureError(f"{self.noun} is closing; send the request again later")
        if self._waiting_requests >= limits.INBOX_QUEUE_MAX_REQUESTS:
            raise BackPressureError(
                f"{self._waiting_requests} requests wait for the store; send the request again later"
            )
        if self._waiting_requests and self._waiting_bytes + size_bytes > limits.INBOX_QUEUE_MAX_BYTES:
            raise BackPressureError(
                f"{self._waiting_bytes} bytes wait for the store; send the request again later"
            )

    def _write(self, group: RequestGroup) -> None:
        """Close the group and write it; what goes wrong is raised by `group.written`."""
        with self._lock:
            if self._open is group:
                self._open = None
        answers: Answers = ()
        failure: BaseException | None = None
        try:
            answers = self._store(group.requests)
        except BaseException as error:  # noqa: BLE001  whatever it is, who waits is told
            failure = error
        with self._lock:
            self._waiting_requests -= len(group.requests)
            self._waiting_bytes -= group.size_bytes
        if failure is None:
            group.written.set_result(answers)
        else:
            group.written.set_exception(failure)
