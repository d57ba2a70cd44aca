"""Tries of recorded transactions: how often a task failed on one, or a run died of it, and what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import NoReturn

from tracelake._errors import DeathsError, StorageError, TaskError
from tracelake.journal.model import Aside, Step
from tracelake.journal.protocol import Undone, tries_max
from tracelake.journal.runs import inputs_of
from tracelake.journal.suspects import narrowed
from tracelake.limits import ASIDE_REASON_MAX_CHARS, UNREAD_INPUT_MAX_S
from tracelake.pipeline.faults import InputFaultError
from tracelake.pipeline.outcome import now
from tracelake.pipeline.rooms import Dependencies
from tracelake.pipeline.staging import InputReader
from tracelake.pipeline.unread import aside_unread


class Attempts:
    """The tries of one run."""

    def __init__(self, rooms: Dependencies, reader: InputReader, stopping: Callable[[], bool]) -> None:
        self._rooms = rooms
        self._reader = reader
        self._stopping = stopping
        self._tries: Counter[int] = Counter()
        self._fault: InputFaultError | None = None  # of the last try that failed
        self._unread: dict[str, str] = {}  # inputs that could not be read for too long, with the reason

    def is_first(self, t: int) -> bool:
        """Whether no try of a transaction has failed yet in this run."""
        return not self._tries[t]

    def died(self, step: Step) -> Undone | None:
        """Say that runs died at a transaction again and again, so that it is not begun once more."""
        t = step.transaction
        enough = tries_max(self._undone_of(step))
        deaths = self._rooms.tries.deaths(t, enough, self._stopping)
        if not deaths:
            self._rooms.tries.begin(t)
            return None
        return self.undone(step, InputFaultError(DeathsError(deaths, f"did transaction {t}")), deaths)

    def undone(self, step: Step, fault: InputFaultError, tries: int = 1) -> Undone:
        """Say how often the input of a transaction was too much. Raises what failed once we are to stop."""
        if self._stopping():
            raise fault.error from fault
        t, self._fault = step.transaction, fault
        self._tries[t] += tries
        undone = self._undone_of(step)
        if undone.tries >= tries_max(undone) and not undone.held and not self._reader.tasks_work():
            self._rooms.tries.over(t)
            raise fault.error from fault  # no input is at fault
        return undone

    def unread(self, step: Step, failed: Mapping[str, str]) -> Undone:
        """Say that inputs could not be read for too long. Raises StorageError as long as they may be waited for."""
        t = step.transaction
        path, reason = next(iter(failed.items()))
        waited_s = self._rooms.unread.again(t, str(step.number))
        if waited_s < UNREAD_INPUT_MAX_S or self._stopping():
            left_min = max(0.0, UNREAD_INPUT_MAX_S - waited_s) / 60
            raise StorageError(
                f"transaction {t}: {path} {reason}. Nothing was published; the next run reads it again. Where it "
                f"cannot be read for {left_min:.0f} minutes more, it is set aside, and "
                f"all others go on; `tracelake pipeline retry {t}`, or `discard {t}`, does so now"
            )
        self._unread = dict(failed)
        return replace(self._undone_of(step), tries=1, unread=True)

    def is_suspected(self, inputs: Set[tuple[str, str]]) -> bool:
        """Whether some of these inputs, by source and path, are suspected."""
        return any((suspect.source, suspect.path) in inputs for suspect in self._rooms.suspects.all())

    def _undone_of(self, step: Step) -> Undone:
        suspects = {suspect.path for suspect in self._rooms.suspects.all()}
        paths = [taken.path for ranges in step.sources.values() for taken in inputs_of(ranges)]
        return Undone(
            self._tries[step.transaction],
            len(paths),
            suspected=not suspects.isdisjoint(paths),
            held=self._rooms.outputs.has_rows(step.transaction),
        )

    def give_up(self, t: int) -> NoReturn:
        """Raise that a transaction can only be finished, and fails here."""
        assert self._fault is not None
        raise TaskError(
            f"transaction {t} has its spans in table spans and can only be finished, and a task fails on it here: "
            f"{self._fault}. Run again where there is more memory, or with the release that began it."
        ) from self._fault

    def set_aside(self, step: Step) -> None:
        """Record that a transaction is set aside."""
        if self._unread:
            self._rooms.journal.set_aside(aside_unread(step, self._unread))
            self._rooms.unread.over(step.transaction)
            return
        assert self._fault is not None
        t, undone = step.transaction, self._undone_of(step)
        died = isinstance(self._fault.error, DeathsError)
        self._rooms.journal.set_aside(
            Aside(
                transaction=t,
                reason=str(self._fault.error)[:ASIDE_REASON_MAX_CHARS],
                tries=undone.tries,
                by="pipeline",
                set_aside_at=now().isoformat(timespec="microseconds"),
                together=narrowed(undone.inputs, died=died, suspected=undone.suspected),
            )
        )
        self._rooms.tries.over(t)
