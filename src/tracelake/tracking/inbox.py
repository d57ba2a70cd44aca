"""Requests made durable on the object store before they are acknowledged (PROTOCOLS §5, hot tier off).

Requests share a segment, as `groups.py` says. A segment
is one immutable object, created whole under a new name, so a crash leaves every acknowledged request in exactly one
segment and never half a request. A client whose request timed out or failed sends it again, so a request that was
*not* acknowledged may be there too, even twice; the tables keep each span once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import ClassVar, Final

from tracelake import limits
from tracelake._errors import BackPressureError, StorageError
from tracelake.otlp.framing import write_segment
from tracelake.results import InboxInfo
from tracelake.storage.many import delete_all
from tracelake.storage.ports import ObjectInfo, ObjectStore
from tracelake.tracking.groups import Answers, RequestGroups
from tracelake.tracking.requests import TracedRequest

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
