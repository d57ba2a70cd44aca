"""Group commit: requests of one event loop that are written together.

A single request is written at once. While turns of the event loop bring further requests, the group grows, up to a
time limit; the queue limits its bytes. So a lone client never waits, and a busy server needs fewer writes and syncs
per request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tracelake import limits
from tracelake._errors import StorageError
from tracelake.otlp.framing import Format
from tracelake.otlp.partition import TraceSpans
from tracelake.tracking.ingest_queue import Answers, RequestGroup, RequestGroups
from tracelake.tracking.schema import DEFAULT_EXPERIMENT
from tracelake.tracking.store import RefusedSpans

_GATHERING_QUIET_TURNS: Final = 4
"""Consecutive turns of the event loop without a new request; a request takes three turns to be read and started."""


@dataclass(slots=True)
class _Group:
    """Requests of this loop that are written together."""

    until_s: float
    answers: list[tuple[int, asyncio.Future[RefusedSpans | None]]] = field(default_factory=list)
    seen: int = 0
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
        experiment_id: str = DEFAULT_EXPERIMENT,
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
        gathered.quiet_turns = 0 if come > gathered.seen else gathered.quiet_turns + 1
        gathered.seen = come
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
            elif isinstance(told := answers[place], Exception):
                answer.set_exception(told)
            else:
                answer.set_result(told)
