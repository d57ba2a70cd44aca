"""Retry policy of recorded transactions, and bisection of failing new input.

Class `RetryPolicy` counts failed tasks and crashes of a recorded transaction. Class `PoisonInputFinder` handles new
input on which tasks fail or processes crash. It bisects the input down to the poison input, and quarantines that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import replace as replace_fields
from functools import partial
from typing import NoReturn

from tracelake._errors import DeathsError, StorageError, TaskError
from tracelake.journal.model import QuarantinedInput, QuarantineRecord, Step, inputs_of
from tracelake.journal.protocol import AttemptFailed, tries_max
from tracelake.journal.quarantine import narrowed, on_commit, on_failure
from tracelake.limits import UNREAD_INPUT_MAX_S
from tracelake.pipeline.context import PipelineContext
from tracelake.pipeline.input_failures import ASIDE_REASON_MAX_CHARS, InputFaultError, quarantine_unreadable
from tracelake.pipeline.run_result import RunResult, now
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.registry import content_of, to_range
from tracelake.pipeline.staging import InputReader


class RetryPolicy:
    """Retry counter and policy of one run."""

    def __init__(self, context: PipelineContext, reader: InputReader, stopping: Callable[[], bool]) -> None:
        self._context = context
        self._reader = reader
        self._stopping = stopping
        self._tries: Counter[int] = Counter()
        self._fault: InputFaultError | None = None  # of the last failed attempt
        self._unread: dict[str, str] = {}  # inputs unreadable for too long, with the reason

    def is_first(self, t: int) -> bool:
        """Return whether no attempt at a transaction has failed in this run."""
        return not self._tries[t]

    def died(self, step: Step) -> AttemptFailed | None:
        """Return AttemptFailed if too many processes crashed on a transaction. Otherwise write a crash marker for it,
        and return None."""
        t = step.transaction
        enough = tries_max(self._attempt_failed(step))
        deaths = self._context.tries.crash_count(t, enough, self._stopping)
        if not deaths:
            self._context.tries.begin(t)
            return None
        return self.undone(step, InputFaultError(DeathsError(deaths, f"did transaction {t}")), deaths)

    def undone(self, step: Step, fault: InputFaultError, tries: int = 1) -> AttemptFailed:
        """Count failed attempts at a transaction, and return AttemptFailed. Raises the failure if the run is stopping,
        or if tasks also fail on known good input."""
        if self._stopping():
            raise fault.error from fault
        t, self._fault = step.transaction, fault
        self._tries[t] += tries
        undone = self._attempt_failed(step)
        if undone.tries >= tries_max(undone) and not undone.has_rows and not self._reader.tasks_work():
            self._context.tries.over(t)
            raise fault.error from fault  # no input is at fault
        return undone

    def unread(self, step: Step, failed: Mapping[str, str]) -> AttemptFailed:
        """Return AttemptFailed if inputs were unreadable for too long. Raises StorageError while retrying is still
        allowed."""
        t = step.transaction
        path, reason = next(iter(failed.items()))
        waited_s = self._context.unread.again(t, str(step.number))
        if waited_s < UNREAD_INPUT_MAX_S or self._stopping():
            left_min = max(0.0, UNREAD_INPUT_MAX_S - waited_s) / 60
            raise StorageError(
                f"transaction {t}: {path} {reason}. Nothing was published; the next run reads it again. If it "
                f"stays unreadable for {left_min:.0f} more minutes, it is set aside, and all others continue; "
                f"`tracelake pipeline retry {t}`, or `discard {t}`, does so now"
            )
        self._unread = dict(failed)
        return replace_fields(self._attempt_failed(step), tries=1, unread=True)

    def is_suspected(self, inputs: Set[tuple[str, str]]) -> bool:
        """Return whether some of these inputs, given by source and path, are suspected."""
        return any((suspect.source, suspect.path) in inputs for suspect in self._context.suspects.all())

    def _attempt_failed(self, step: Step) -> AttemptFailed:
        suspects = {suspect.path for suspect in self._context.suspects.all()}
        paths = [
            recorded_input.path for ranges in step.sources.values() for recorded_input in inputs_of(ranges)
        ]
        return AttemptFailed(
            self._tries[step.transaction],
            len(paths),
            suspected=not suspects.isdisjoint(paths),
            has_rows=self._context.outputs.has_rows(step.transaction),
        )

    def give_up(self, t: int) -> NoReturn:
        """Raise the error of a transaction that must be finished, because a table has its rows, but fails on this
        machine."""
        assert self._fault is not None
        raise TaskError(
            f"transaction {t} has its spans in table spans, so it can only be finished, but a task fails on "
            f"it: {self._fault}. Run again with more memory, or with the release that started it."
        ) from self._fault

    def quarantine(self, step: Step) -> None:
        """Record that a transaction is quarantined."""
        if self._unread:
            self._context.journal.quarantine(quarantine_unreadable(step, self._unread))
            self._context.unread.over(step.transaction)
            return
        assert self._fault is not None
        t, undone = step.transaction, self._attempt_failed(step)
        died = isinstance(self._fault.error, DeathsError)
        self._context.journal.quarantine(
            QuarantineRecord(
                transaction=t,
                reason=str(self._fault.error)[:ASIDE_REASON_MAX_CHARS],
                tries=undone.tries,
                by="pipeline",
                set_aside_at=now().isoformat(timespec="microseconds"),
                together=narrowed(undone.inputs, died=died, suspected=undone.suspected),
            )
        )
        self._context.tries.over(t)


class PoisonInputFinder:
    """Isolates inputs on which tasks fail or processes crash, and quarantines them."""

    def __init__(
        self,
        reader: InputReader,
        context: PipelineContext,
        result: RunResult,
        stopping: Callable[[], bool],
    ) -> None:
        self._reader = reader
        self._context = context
        self._result = result
        self._stopping = stopping

    def without_deadly(self, t: int, inputs: list[Input], *, suspected: bool) -> list[Input]:
        """Return the inputs, without those on which processes crashed while reading.

        The others are offered again in halves, in separate transactions. An input that crashes a process alone is
        quarantined.
        """
        enough = tries_max(AttemptFailed(0, len(inputs), suspected))
        is_alone = suspected and len(inputs) == 1
        deadly = self._context.tries.crash_counts_of_reading(
            t, inputs, enough, self._stopping, alone=is_alone
        )
        if not deadly:
            return inputs
        error = DeathsError(
            max(deadly.values()), f"read {', '.join(sorted(item.path for item in deadly)[:3])}"
        )
        if not self._reader.tasks_work():
            self._context.tries.clear_foreign()
            raise error  # no input is at fault
        together = narrowed(len(deadly), died=True, suspected=is_alone)
        for item, deaths in deadly.items():
            self._narrow(t, item, deaths, error, together)
        self._context.tries.clear_foreign()
        return [item for item in inputs if item not in deadly]

    def quarantine(self, t: int, item: Input, tries: int, error: Exception) -> None:
        """Quarantine an input that failed alone. If tasks also fail on known good input, raise `error` instead."""
        if not self._reader.tasks_work():
            raise error
        self._narrow(t, item, tries, error, together=0)

    def _narrow(self, t: int, item: Input, tries: int, error: Exception, together: int) -> None:
        try:
            size_bytes, sha256 = content_of(self._context.objects, item.source, item.path, item.size_bytes)
        except OSError as failure:
            self._result.failed[item.path] = f"cannot be read: {failure.strerror or failure}"
            return
        if not sha256:  # deleted in the meantime; an offer of it could never be taken
            self._context.suspects.forget({item.path: None})
            return
        suspect = QuarantinedInput(
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
        current = self._context.suspects.change(suspect, partial(on_failure, suspect=suspect)) or suspect
        # a file that changed after it was offered has another record
        self._context.suspects.forget_others(suspect)
        if self._context.acker.is_committed(suspect):  # a peer succeeded, perhaps before our record existed
            recorded_input = to_range(
                item.source, item.path, size_bytes=size_bytes, sha256=sha256, records=0, checksum="", spans=0
            )
            self._context.suspects.change(suspect, partial(on_commit, committed=recorded_input))
            return
        self._result.add_quarantined(current)
