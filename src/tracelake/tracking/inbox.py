"""Requests made durable on the object store before they are acknowledged (PROTOCOLS §5, hot tier off).

Requests share a segment: those that arrive while another one is being written, and those that a caller lets gather
(`join`) until it says that they are all there (`release`). So the slower the store, the larger the segments. A segment
is one immutable object, created whole under a new name, so a crash leaves every acknowledged request in exactly one
segment and never half a request. A client whose request timed out or failed sends it again, so a request that was
*not* acknowledged may be there too, even twice; the tables keep each span once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Literal, TypeAlias

from tracelake import limits
from tracelake._errors import BackPressureError, StorageError
from tracelake.otlp.framing import write_segment
from tracelake.results import InboxInfo
from tracelake.storage.many import delete_all
from tracelake.storage.ports import ObjectInfo, ObjectStore

PREFIX: Final = "inbox/"
PROBE: Final = "probe/inbox"
"""Written by `Inbox.check`, since only a write shows that the store takes writes."""
Format: TypeAlias = Literal["json", "protobuf"]


def inbox_info(objects: ObjectStore, set_aside: Collection[str] = ()) -> InboxInfo:
    """Return what waits in the inbox of a store, without the segments that are set aside."""
    segments = [segment for segment in objects.list(PREFIX) if segment.path not in set_aside]
    oldest_s = max((time.time() - segment.modified_s for segment in segments), default=None)
    size_bytes = sum(segment.size_bytes for segment in segments)
    return InboxInfo(len(segments), size_bytes, None if oldest_s is None else max(0.0, oldest_s))


@dataclass(slots=True, eq=False)
class SegmentGroup:
    """Requests that will share one segment; `written` is done when the segment is durable."""

    written: Future[None] = field(default_factory=Future)
    payloads: list[tuple[Format, bytes]] = field(default_factory=list)
    size_bytes: int = 0
    released: bool = False
    """Whether it waits for nobody but the segment before it."""


class Inbox:
    """A queue of OTLP requests in an object store; threads append, the pipeline takes whole segments."""

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
        self.ack_timeout_s = ack_timeout_s
        self._segment_max_bytes = segment_max_bytes
        self._set_aside = set_aside
        self._objects = objects
        self._lock = Lock()
        self._open: SegmentGroup | None = None
        self._waiting_requests = 0
        self._waiting_bytes = 0
        self._closed = False
        self._segments_seen: int | None = None
        self._last_name_ns = 0
        # One worker: segments are written one after the other, and the queue forms the next group meanwhile.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracelake-inbox")

    def append(self, format: Format, payload: bytes) -> None:
        """Store one request body as received (decompressed) and return once it is durable.

        Raises BackPressureError when the queue or the inbox is full, the store fails, or it takes longer
        than the acknowledgement time-out; the request may be sent again then.
        """
        group = self.join(format, payload)
        self.release(group)
        try:
            group.written.result(self.ack_timeout_s)
        except TimeoutError:
            raise self.too_late() from None
        except (StorageError, OSError) as error:
            raise refusal(error) from error

    def join(self, format: Format, payload: bytes) -> SegmentGroup:
        """Add a request to those that gather for the next segment, or begin with it; do not wait.

        Whoever gets a group that is new must `release` it. Raises BackPressureError when the queue is full.
        """
        with self._lock:
            self._check_queue(len(payload))
            group, max_bytes = self._open, self._segment_max_bytes or limits.INBOX_SEGMENT_MAX_BYTES
            if group is None or group.size_bytes + len(payload) > max_bytes:
                if group is not None:
                    self._release(group)
                group = self._open = SegmentGroup()
            group.payloads.append((format, payload))
            group.size_bytes += len(payload)
            self._waiting_requests += 1
            self._waiting_bytes += len(payload)
            return group

    def release(self, group: SegmentGroup) -> None:
        """Let a group be written when its turn comes: until then others join it. Again is fine."""
        with self._lock:
            self._release(group)

    def too_late(self) -> BackPressureError:
        """Return what a request is told whose segment is not written in time."""
        return BackPressureError(
            f"the inbox was not durable within {self.ack_timeout_s:g} s; send the request again later"
        )

    def segments(self) -> list[ObjectInfo]:
        """Return the durable segments, oldest first."""
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

    def close(self) -> None:
        """Write what is waiting, then stop. Later appends are refused; calling it twice is allowed."""
        with self._lock:
            self._closed = True
            if self._open is not None:
                self._release(self._open)
        self._writer.shutdown(wait=True)

    def _release(self, group: SegmentGroup) -> None:
        """See `release`. The lock is held."""
        if not group.released:
            group.released = True
            self._writer.submit(self._write, group)

    def _check_queue(self, size_bytes: int) -> None:
        if self._closed:
            raise BackPressureError("the inbox is closing; send the request again later")
        if self._waiting_requests >= limits.INBOX_QUEUE_MAX_REQUESTS:
            raise BackPressureError(
                f"{self._waiting_requests} requests wait for the store; send the request again later"
            )
        if self._waiting_requests and self._waiting_bytes + size_bytes > limits.INBOX_QUEUE_MAX_BYTES:
            raise BackPressureError(
                f"{self._waiting_bytes} bytes wait for the store; send the request again later"
            )

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

    def _write(self, group: SegmentGroup) -> None:
        """Close the group and write it as one segment; what goes wrong is raised by `group.written`."""
        with self._lock:
            if self._open is group:
                self._open = None
        failure: BaseException | None = None
        try:
            self._create_segment(write_segment(group.payloads))
        except BaseException as error:  # noqa: BLE001  whatever it is, who waits is told
            failure = error
        with self._lock:
            self._waiting_requests -= len(group.payloads)
            self._waiting_bytes -= group.size_bytes
        if failure is None:
            group.written.set_result(None)
        else:
            group.written.set_exception(failure)

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
        """Name a segment so that names sort by time, even when the clock steps back."""
        self._last_name_ns = max(self._last_name_ns + 1, time.time_ns())
        return f"{PREFIX}{self._last_name_ns:020d}-{uuid.uuid4().hex}.segment"


def refusal(error: BaseException) -> BackPressureError:
    """Return what a request is told whose segment could not be written."""
    return BackPressureError(f"the inbox did not take the request: {error}; send it again later")
