"""Group commit of OTLP requests: requests that arrive during a write share the next one.

Each group is written by one call, so a slower store gets larger groups. A caller may collect requests (`join`) and
then allow the write (`release`). `TrackingDoor` writes a group to the tracking store in one transaction.

Without a hot tier, `Inbox` makes requests durable in the object store before they are acknowledged (PROTOCOLS §5). A
group becomes one segment: an immutable object with a new name. After a crash, each acknowledged request is therefore
complete in exactly one segment. A client repeats a request that failed or timed out, so an unacknowledged request may
be stored too, even twice; the tables keep each span once.

`GroupCommitter` collects the requests of one event loop that are written together.

A single request is written immediately. As long as each turn of the event loop brings further requests, the group
grows, up to a time limit; the queue limits its bytes. A single client therefore never waits, and a busy server needs
fewer writes and syncs per request.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from tracelake import limits, tracking
from tracelake._errors import BackPressureError, StorageError
from tracelake.otlp.framing import Format, write_segment
from tracelake.otlp.partition import COLUMNS, TraceSpans
from tracelake.results import InboxInfo
from tracelake.storage.ports import ObjectInfo, ObjectStore
from tracelake.storage.wrappers import delete_all

if TYPE_CHECKING:
    from tracelake.tracking.store import RefusedSpans, TracedRequest, TrackingStore

Answers: TypeAlias = "Sequence[RefusedSpans | Exception | None]"
"""For each request of a group, in order: its refused spans, or None if all were taken.

An error means that this request is not acknowledged. Other requests of the group are not affected.
"""
_log = logging.getLogger("tracelake.tracking")
_PARENT: Final = COLUMNS.index("parent_span_id")
_NOT_APART: Final[Mapping[str, TraceSpans]] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class RequestGroup:
    """Requests that are written together; `written` completes once they are durable."""

    written: Future[Answers] = field(default_factory=Future)
    requests: list[TracedRequest] = field(default_factory=list)
    size_bytes: int = 0
    released: bool = False
    """Whether it waits only for the group before it."""


class RequestGroups(ABC):
    """A queue of OTLP requests: any thread appends, and one thread writes."""

    takes_apart: ClassVar[bool]
    """Whether callers must split requests by trace."""
    noun: ClassVar[str]
    """Its name in error messages."""

    def __init__(self, ack_timeout_s: float, group_max_bytes: int | None) -> None:
        """Start the queue. Groups have at most `group_max_bytes`, INBOX_SEGMENT_MAX_BYTES by default."""
        self.ack_timeout_s = ack_timeout_s
        self._group_max_bytes = group_max_bytes
        self._lock = Lock()
        self._open: RequestGroup | None = None
        self._waiting_requests = 0
        self._waiting_bytes = 0
        self._closed = False
        # One worker writes groups in sequence; the queue collects the next one in the meantime.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracelake-inbox")

    @abstractmethod
    def check(self) -> None:
        """Raise StorageError or OSError if a request would be refused now, because the queue or backlog is full or the
        store fails."""

    @abstractmethod
    def _store(self, requests: Sequence[TracedRequest]) -> Answers:
        """Write these requests, all or none, so that they are durable. Return answers; a request that the store refuses
        has an error as its answer."""

    def append(self, format: Format, payload: bytes) -> RefusedSpans | None:
        """Store a decompressed request body. Return, once it is durable, its refused spans, or None.

        Raises BackPressureError if the queue or the store is full, if the store fails, or if the acknowledgement times
        out. The client may then send the request again.
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
        experiment_id: str = "",
        refused: int = 0,
    ) -> tuple[RequestGroup, int]:
        """Add a request to the next group without waiting; `refused` counts its refused spans.

        Returns the group, and the request's position in it. A caller that receives a new group must `release` it.
        Raises BackPressureError if the queue is full.
        """
        request = tracking.store.TracedRequest(format, payload, traces, experiment_id, refused)
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
        """Allow a group to be written at its turn; until then requests may join it. The call is idempotent."""
        with self._lock:
            self._release(group)

    def too_late(self) -> BackPressureError:
        """Return the error for a request that was not written in time."""
        return BackPressureError(
            f"{self.noun} was not durable within {self.ack_timeout_s:g} s; send the request again later"
        )

    def refusal(self, error: BaseException) -> BackPressureError:
        """Return the error for a request whose write failed."""
        return BackPressureError(f"{self.noun} could not store the request: {error}; send it again later")

    def close(self) -> None:
        """Write pending requests, then stop. Later appends are refused. Calling it twice is allowed."""
        with self._lock:
            self._closed = True
            if self._open is not None:
                self._release(self._open)
        self._writer.shutdown(wait=True)

    def _release(self, group: RequestGroup) -> None:
        """Release a group. The caller must hold the lock."""
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
        """Close the group and write it; `group.written` raises any failure."""
        with self._lock:
            if self._open is group:
                self._open = None
        answers: Answers = ()
        failure: BaseException | None = None
        try:
            answers = self._store(group.requests)
        except BaseException as error:  # noqa: BLE001  the waiting callers get any failure
            failure = error
        with self._lock:
            self._waiting_requests -= len(group.requests)
            self._waiting_bytes -= group.size_bytes
        if failure is None:
            group.written.set_result(answers)
        else:
            group.written.set_exception(failure)


class TrackingDoor(RequestGroups):
    """Ingest queue of the tracking store."""

    takes_apart: ClassVar[bool] = True
    noun: ClassVar[str] = "the tracking store"

    def __init__(self, store: TrackingStore, group_max_bytes: int | None = None) -> None:
        """Start the queue of a store; `group_max_bytes` limits the requests of one transaction."""
        super().__init__(limits.INBOX_ACK_TIMEOUT_S, group_max_bytes)
        self._tracking = store
        self._client_info = tracking.annotations.ClientTraceInfo(store)

    def check(self) -> None:
        """See `RequestGroups`."""
        with self._lock:
            self._check_queue(0)
        self._tracking.check()

    def _store(self, requests: Sequence[TracedRequest]) -> Answers:
        """Store requests in one transaction. If it fails and the store works, store each in a separate transaction.

        So a request that the database rejects does not affect the others.
        """
        try:
            answers: Answers = self._tracking.write(requests)
        except (StorageError, OSError):
            raise
        except Exception:
            if len(requests) == 1:
                raise
            answers = [self._store_alone(request) for request in requests]
        # Only MLflow's client sends metadata of traces, and it names an experiment.
        roots = [
            {key for key, of in request.traces.items() if any(row[_PARENT] is None for row in of.rows)}
            if request.experiment_id
            else set()
            for request in requests
        ]
        try:
            self._client_info.join(set().union(*roots))
        except (StorageError, OSError) as error:
            # The spans are durable. The client repeats these requests, which joins their metadata.
            refusal = self.refusal(error)
            return [refusal if ids else answer for ids, answer in zip(roots, answers, strict=True)]
        except Exception:  # noqa: BLE001  the requests are durable, and a repeated request would fail again
            _log.exception("traces without their metadata")
        return answers

    def _store_alone(self, request: TracedRequest) -> RefusedSpans | Exception | None:
        try:
            return self._tracking.write([request])[0]
        except (StorageError, OSError) as error:
            return self.refusal(error)
        except Exception as error:  # noqa: BLE001  it is the answer to this request
            return error


PREFIX: Final = "inbox/"
PROBE: Final = "probe/inbox"
"""Object that `Inbox.check` writes, because only a write shows that the store is writable."""
SEGMENT_DIGITS: Final = 12
"""Digits of a segment number: enough for all segments of a server."""


def inbox_info(objects: ObjectStore, quarantined: Collection[str] = ()) -> InboxInfo:
    """Return the pending segments of a store's inbox, without quarantined ones."""
    segments = [segment for segment in objects.list(PREFIX) if segment.path not in quarantined]
    oldest_s = max((time.time() - segment.modified_s for segment in segments), default=None)
    size_bytes = sum(segment.size_bytes for segment in segments)
    return InboxInfo(len(segments), size_bytes, None if oldest_s is None else max(0.0, oldest_s))


class Inbox(RequestGroups):
    """A queue of OTLP requests in an object store. Threads append; the pipeline takes whole segments."""

    takes_apart: ClassVar[bool] = False
    noun: ClassVar[str] = "the inbox"

    def __init__(
        self,
        objects: ObjectStore,
        ack_timeout_s: float = limits.INBOX_ACK_TIMEOUT_S,
        quarantined: Callable[[], Collection[str]] = tuple,
        segment_max_bytes: int | None = None,
    ) -> None:
        """Open the inbox of a store. Existing segments stay and count towards the backlog.

        Quarantined segments, whose paths `quarantined` returns, do not count, because they wait for the user.
        `segment_max_bytes` limits the requests of one segment; INBOX_SEGMENT_MAX_BYTES by default.
        """
        super().__init__(ack_timeout_s, segment_max_bytes)
        self._quarantined = quarantined
        self._objects = objects
        self._segments_seen: int | None = None
        # The journal compresses consecutive numbers into ranges. Each opened inbox uses a new prefix.
        self._begin = f"{PREFIX}{time.time_ns():020d}-{uuid.uuid4().hex[:16]}-"
        self._numbers = count()

    def segments(self) -> list[ObjectInfo]:
        """Return the durable segments; for each server the oldest come first."""
        return list(self._objects.list(PREFIX))

    def delete(self, paths: Collection[str]) -> None:
        """Delete segments that the pipeline has taken; missing ones are ignored."""
        delete_all(self._objects, paths)

    def check(self) -> None:
        """Raise StorageError or OSError if a request would be refused now, because of the queue, backlog or store."""
        with self._lock:
            self._check_queue(0)
        self._check_backlog(self._backlog())
        self._objects.put(PROBE, b"")

    def _backlog(self) -> int:
        """Return the number of segments that wait for the pipeline."""
        segments = self.segments()
        if len(segments) < limits.INBOX_SEGMENTS_MAX:
            return len(segments)  # below the limit even with quarantined ones
        quarantined = set(self._quarantined())
        return sum(segment.path not in quarantined for segment in segments)

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
        # The count grows with each segment and is refreshed only at the limit. Between two listings it is
        # never too low, except for segments that another server writes in the meantime.
        if self._segments_seen is None or self._segments_seen >= limits.INBOX_SEGMENTS_MAX:
            self._segments_seen = self._backlog()
        self._check_backlog(self._segments_seen)
        # Names of this inbox sort by time even if the clock steps back.
        path = f"{self._begin}{next(self._numbers):0{SEGMENT_DIGITS}}.segment"
        if not self._objects.create(path, data) and self._objects.get(path) != data:
            # Names are unique, so an existing object is our write with a lost reply, or damage.
            raise StorageError(f"{path} already contains another object")
        self._segments_seen += 1


_GATHERING_QUIET_TURNS: Final = 4
"""Consecutive turns of the event loop without a new request; a request takes three turns to be read and started."""


@dataclass(slots=True)
class _Group:
    """Requests of this loop that are written together."""

    until_s: float
    answers: list[tuple[int, asyncio.Future[RefusedSpans | None]]] = field(default_factory=list)
    last_size: int = 0
    quiet_turns: int = 0
    deadline: asyncio.TimerHandle | None = None


class GroupCommitter:
    """Committer that appends requests to a queue in groups. One event loop uses it."""

    def __init__(self, queue: RequestGroups, wait_s: float = limits.SEGMENT_WAIT_S) -> None:
        """Set the longest time that a request waits for others; 0 disables waiting."""
        self._queue = queue
        self._wait_s = wait_s
        self._groups: dict[RequestGroup, _Group] = {}

    async def append(
        self,
        format: Format,
        payload: bytes,
        traces: Mapping[str, TraceSpans] | None = None,
        experiment_id: str = "",
        refused: int = 0,
    ) -> RefusedSpans | None:
        """Store one decompressed request body; return, once it is durable, the spans that were refused.

        Raises BackPressureError if the queue or the store is full, the store fails, or the acknowledgement timeout
        passes. The client may then retry.
        """
        loop = asyncio.get_running_loop()
        group, place = self._queue.join(format, payload, traces or {}, experiment_id, refused)
        gathered = self._groups.get(group) or self._begin(group, loop)
        # One future per request, so that a cancelled request cancels only its own.
        answer: asyncio.Future[RefusedSpans | None] = loop.create_future()
        gathered.answers.append((place, answer))
        return await answer

    def _begin(self, group: RequestGroup, loop: asyncio.AbstractEventLoop) -> _Group:
        gathered = self._groups[group] = _Group(loop.time() + self._wait_s)
        # One timer per group. Requests that join later wait less.
        gathered.deadline = loop.call_later(self._queue.ack_timeout_s, self._end, group, self._queue.too_late)

        def tell(written: Future[Answers]) -> None:
            with suppress(RuntimeError):  # the loop has ended, with all its waiting requests
                loop.call_soon_threadsafe(self._written, group, written)

        group.written.add_done_callback(tell)
        loop.call_soon(self._look, group, loop)
        return gathered

    def _look(self, group: RequestGroup, loop: asyncio.AbstractEventLoop) -> None:
        """Release the group for writing, or check again in the next turn."""
        if group.released:
            return
        gathered = self._groups.get(group)
        if gathered is None:  # timed out: no request waits for it any more
            self._queue.release(group)
            return
        come = len(group.requests)
        gathered.quiet_turns = 0 if come > gathered.last_size else gathered.quiet_turns + 1
        gathered.last_size = come
        if gathered.quiet_turns >= _GATHERING_QUIET_TURNS or loop.time() >= gathered.until_s:
            self._queue.release(group)
        else:
            loop.call_soon(self._look, group, loop)

    def _written(self, group: RequestGroup, written: Future[Answers]) -> None:
        error = written.exception()
        if error is None:
            self._end(group, None, written.result())
        else:
            self._end(
                group,
                lambda: self._queue.refusal(error) if isinstance(error, (StorageError, OSError)) else error,
            )

    def _end(
        self, group: RequestGroup, error: Callable[[], BaseException] | None, answers: Answers = ()
    ) -> None:
        """Resolve all requests of a group, each with its answer or error."""
        gathered = self._groups.pop(group, None)
        if gathered is None:
            return
        if gathered.deadline is not None:
            gathered.deadline.cancel()
        for place, answer in gathered.answers:
            if answer.done():
                continue  # its request was cancelled
            if error is not None:
                answer.set_exception(error())
            elif isinstance(outcome := answers[place], Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
