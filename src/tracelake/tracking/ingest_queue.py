"""Requests that are made durable together: those that come while others are being written share the next write.

Each group is written by one call, so the slower the store, the larger the groups. A caller may let requests gather
(`join`) until it says that they are all there (`release`).

The way into the tracking store: requests that come together are stored by one transaction.

Requests made durable on the object store before they are acknowledged (PROTOCOLS §5, hot tier off).

Requests share a segment, as `groups.py` says. A segment
is one immutable object, created whole under a new name, so a crash leaves every acknowledged request in exactly one
segment and never half a request. A client whose request timed out or failed sends it again, so a request that was
*not* acknowledged may be there too, even twice; the tables keep each span once.
"""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from tracelake import limits
from tracelake._errors import BackPressureError, StorageError
from tracelake.otlp.framing import Format, write_segment
from tracelake.otlp.partition import TraceSpans
from tracelake.results import InboxInfo
from tracelake.storage.ports import ObjectInfo, ObjectStore
from tracelake.storage.wrappers import delete_all
from tracelake.tracking.schema import DEFAULT_EXPERIMENT
from tracelake.tracking.store import RefusedSpans, TracedRequest, TrackingStore

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


class TrackingDoor(RequestGroups):
    """A queue of requests into the tracking store."""

    takes_apart: ClassVar[bool] = True
    noun: ClassVar[str] = "the tracking store"

    def __init__(
        self,
        store: TrackingStore,
        ack_timeout_s: float = limits.INBOX_ACK_TIMEOUT_S,
        group_max_bytes: int | None = None,
    ) -> None:
        """Store what comes in `store`; `group_max_bytes` is what the requests of one transaction may have."""
        super().__init__(ack_timeout_s, group_max_bytes)
        self._tracking = store

    def check(self) -> None:
        """See `RequestGroups`."""
        with self._lock:
            self._check_queue(0)
        self._tracking.check()

    def _store(self, requests: Sequence[TracedRequest]) -> Answers:
        """Store requests by one transaction; where that fails and the store is well, each by one of its own.

        So a request that the database does not take, for whatever it has, takes nobody down with it.
        """
        try:
            return self._tracking.write(requests)
        except (StorageError, OSError):
            raise
        except Exception:
            if len(requests) == 1:
                raise
            return [self._store_alone(request) for request in requests]

    def _store_alone(self, request: TracedRequest) -> RefusedSpans | Exception | None:
        try:
            return self._tracking.write([request])[0]
        except (StorageError, OSError) as error:
            return self.refusal(error)
        except Exception as error:  # noqa: BLE001  it is the answer to this request
            return error


PREFIX: Final = "inbox/"
PROBE: Final = "probe/inbox"
"""Written by `Inbox.check`, since only a write shows that the store takes writes."""
SEGMENT_DIGITS: Final = 12
"""Of the number of a segment: more than a server ever writes."""


def inbox_info(objects: ObjectStore, set_aside: Collection[str] = ()) -> InboxInfo:
    """Return what waits in the inbox of a store, without the segments that are set aside."""
    segments = [segment for segment in objects.list(PREFIX) if segment.path not in set_aside]
    oldest_s = max((time.time() - segment.modified_s for segment in segments), default=None)
    size_bytes = sum(segment.size_bytes for segment in segments)
    return InboxInfo(len(segments), size_bytes, None if oldest_s is None else max(0.0, oldest_s))


class Inbox(RequestGroups):
    """A queue of OTLP requests in an object store; threads append, the pipeline takes whole segments."""

    takes_apart: ClassVar[bool] = False
    noun: ClassVar[str] = "the inbox"

    def __init__(
        self,
        objects: ObjectStore,
        ack_timeout_s: float = limits.INBOX_ACK_TIMEOUT_S,
        set_aside: Callable[[], Collection[str]] = tuple,
        segment_max_bytes: int | None = None,
    ) -> None:
        """Open the inbox of a store. Segments that are there from before stay, and count.

        Those do not of which `set_aside` tells the paths: they wait for the user, and not for the pipeline.
        `segment_max_bytes` is what the requests of one segment may have; INBOX_SEGMENT_MAX_BYTES by default.
        """
        super().__init__(ack_timeout_s, segment_max_bytes)
        self._set_aside = set_aside
        self._objects = objects
        self._segments_seen: int | None = None
        # The journal records a run of numbers in short. Who begins anew takes a name of its own.
        self._begin = f"{PREFIX}{time.time_ns():020d}-{uuid.uuid4().hex[:16]}-"
        self._numbers = count()

    def segments(self) -> list[ObjectInfo]:
        """Return the durable segments, those of each server oldest first."""
        return list(self._objects.list(PREFIX))

    def delete(self, paths: Collection[str]) -> None:
        """Delete segments that the pipeline has taken; one that is gone already is fine."""
        delete_all(self._objects, paths)

    def check(self) -> None:
        """Raise StorageError or OSError where a request would be refused now: queue, backlog, store."""
        with self._lock:
            self._check_queue(0)
        self._check_backlog(self._backlog())
        self._objects.put(PROBE, b"")

    def _backlog(self) -> int:
        """Count the segments that wait for the pipeline."""
        segments = self.segments()
        if len(segments) < limits.INBOX_SEGMENTS_MAX:
            return len(segments)  # few enough, whatever is set aside
        set_aside = set(self._set_aside())
        return sum(segment.path not in set_aside for segment in segments)

    def _check_backlog(self, segments: int) -> None:
        if segments >= limits.INBOX_SEGMENTS_MAX:
            raise BackPressureError(
                f"{segments} segments wait for the pipeline; start it (`tracelake pipeline run`) "
                "and send the request again"
            )

    def _store(self, requests: Sequence[TracedRequest]) -> Answers:
        self._create_segment(write_segment([(request.format, request.payload) for request in requests]))
        return [None] * len(requests)

    def _create_segment(self, data: bytes) -> None:
        # The count climbs with each segment and is taken anew only when it reaches the limit: between two
        # listings it is never too low, except for segments that another server writes meanwhile.
        if self._segments_seen is None or self._segments_seen >= limits.INBOX_SEGMENTS_MAX:
            self._segments_seen = self._backlog()
        self._check_backlog(self._segments_seen)
        path = self._next_name()
        if not self._objects.create(path, data) and self._objects.get(path) != data:
            # A name is never used twice: what is there is our own write with a lost reply, or damage.
            raise StorageError(f"another object stands at {path}")
        self._segments_seen += 1

    def _next_name(self) -> str:
        """Name a segment so that those of this inbox sort by time, even when the clock steps back."""
        return f"{self._begin}{next(self._numbers):0{SEGMENT_DIGITS}}.segment"
