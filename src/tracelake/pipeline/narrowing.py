"""New input on which a task fails, or runs died as they read it: narrowed down to the one, which is set aside."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tracelake._errors import DeathsError
from tracelake.journal.model import Suspect
from tracelake.journal.protocol import Undone, tries_max
from tracelake.journal.suspects import narrowed, on_commit, on_failure
from tracelake.limits import ASIDE_REASON_MAX_CHARS
from tracelake.pipeline.outcome import RunResult, now
from tracelake.pipeline.rooms import Dependencies
from tracelake.pipeline.sources.port import Input
from tracelake.pipeline.sources.registry import content_of, to_range
from tracelake.pipeline.staging import InputReader


class Narrowing:
    """Keeps apart what cannot be read, and names it."""

    def __init__(
        self,
        reader: InputReader,
        rooms: Dependencies,
        result: RunResult,
        stopping: Callable[[], bool],
    ) -> None:
        self._reader = reader
        self._rooms = rooms
        self._result = result
        self._stopping = stopping

    def without_deadly(self, t: int, inputs: list[Input], *, suspected: bool) -> list[Input]:
        """Leave out what runs died of while they read it: it is offered in halves; the one alone is set aside."""
        enough = tries_max(Undone(0, len(inputs), suspected))
        is_alone = suspected and len(inputs) == 1
        deadly = self._rooms.tries.deaths_of_reading(t, inputs, enough, self._stopping, alone=is_alone)
        if not deadly:
            return inputs
        error = DeathsError(
            max(deadly.values()), f"read {', '.join(sorted(item.path for item in deadly)[:3])}"
        )
        if not self._reader.tasks_work():
            self._rooms.tries.forgive()
            raise error  # no input is at fault
        together = narrowed(len(deadly), died=True, suspected=is_alone)
        for item, deaths in deadly.items():
            self._narrow(t, item, deaths, error, together)
        self._rooms.tries.forgive()
        return [item for item in inputs if item not in deadly]

    def set_aside(self, t: int, item: Input, tries: int, error: Exception) -> None:
        """Set an input aside that failed alone."""
        if not self._reader.tasks_work():
            raise error
        self._narrow(t, item, tries, error, together=0)

    def _narrow(self, t: int, item: Input, tries: int, error: Exception, together: int) -> None:
        try:
            size_bytes, sha256 = content_of(self._rooms.objects, item.source, item.path, item.size_bytes)
        except OSError as failure:
            self._result.failed[item.path] = f"cannot be read: {failure.strerror or failure}"
            return
        if not sha256:  # gone meanwhile: where it was offered, nobody could ever take it
            self._rooms.suspects.forget({item.path: None})
            return
        suspect = Suspect(
            source=item.source,
            path=item.path,
            size_bytes=size_bytes,
            sha256=sha256,
            transaction=t,
            reason=str(error)[:ASIDE_REASON_MAX_CHARS],
            tries=tries,
            at=now().isoformat(timespec="microseconds"),
            state="offered" if together else "set aside",
            together=together,
        )
        stands = self._rooms.suspects.change(suspect, partial(on_failure, suspect=suspect)) or suspect
        self._rooms.suspects.forget_others(
            suspect
        )  # a file that has changed since it was offered has another record
        if self._rooms.settling.is_taken(suspect):  # a peer could do it, and may not have seen our record
            taken = to_range(
                item.source, item.path, size_bytes=size_bytes, sha256=sha256, records=0, checksum="", spans=0
            )
            self._rooms.suspects.change(suspect, partial(on_commit, taken=taken))
            return
        self._result.note_aside(stands)
