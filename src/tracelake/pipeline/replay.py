"""The input of the transaction that is open: its steps as they were read here, and their rows as staged.

Where a transaction waits for more, both outlive the run: the next one goes on behind them. Who is killed reads them
anew, as the journal has recorded them.

Looking what stands at a transaction, once the inputs of the one before are let go.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tracelake._errors import DamageError, TracelakeError, TrimmedError
from tracelake.journal.model import Step, inputs_of
from tracelake.journal.protocol import AttemptFailed, Published, Replayed, StateRead, compare
from tracelake.pipeline.context import PipelineContext
from tracelake.pipeline.input_failures import InputFaultError
from tracelake.pipeline.poison_input import RetryPolicy
from tracelake.pipeline.publish import TRANSFORM
from tracelake.pipeline.run_result import RunResult, now
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.staged_slices import StagedSlice
from tracelake.pipeline.staging import InputReader, ReadInput


def lost_records(t: int) -> DamageError:
    """Return that what was recorded of a transaction is not there any more, or is another."""
    return DamageError(
        f"transaction {t}: the journal has lost what it had recorded, or has other records now. Nothing was published. "
        "Restore the metadata from a backup."
    )


class OpenSteps:
    """Steps of one transaction that were read here, with their rows."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.read: list[ReadInput] = []
        self.is_new = True
        """Whether all of it was read for the first time."""
        self.began_s = time.monotonic()

    @property
    def pieces(self) -> list[StagedSlice]:
        """Their staged rows."""
        return [piece for each in self.read for piece in each.pieces]

    def staged(self) -> list[str]:
        """Return the objects that have these rows."""
        return sorted({piece.path for piece in self.pieces})

    @property
    def inputs(self) -> list[Input]:
        """What was read."""
        return [item for each in self.read for item in each.inputs]

    def age_s(self) -> float:
        """Return how long ago the transaction was begun, whoever began it: never less than here."""
        here_s, began_at = time.monotonic() - self.began_s, self.steps[0].began_at
        return max(here_s, (now() - datetime.fromisoformat(began_at)).total_seconds() if began_at else 0.0)

    @property
    def rows(self) -> int:
        """How many rows are staged."""
        return sum(piece.rows for piece in self.pieces)

    def paths(self) -> set[tuple[str, str]]:
        """Return sources and paths of its inputs: none is taken a second time before all this is committed."""
        steps = ((source, ranges) for step in self.steps for source, ranges in step.sources.items())
        return {(source, taken.path) for source, ranges in steps for taken in inputs_of(ranges)}

    def add(self, step: Step, read: ReadInput, *, is_new: bool) -> None:
        """Put one more step to it."""
        self.steps.append(step)
        self.read.append(read)
        self.is_new = self.is_new and is_new


class Replayer:
    """Reads what the journal has recorded of a transaction, step by step."""

    def __init__(
        self,
        rooms: PipelineContext,
        reader: InputReader,
        attempts: RetryPolicy,
        result: RunResult,
        opened: OpenSteps | None,
    ) -> None:
        """`opened` is what an earlier run has left of a transaction that waits."""
        self._rooms = rooms
        self._reader = reader
        self._attempts = attempts
        self._result = result
        self.opened = opened

    def paths(self) -> set[tuple[str, str]]:
        """Return sources and paths of what the open transaction has."""
        return set() if self.opened is None else self.opened.paths()

    def steps(self) -> list[Step]:
        """Return the steps of the open transaction that are fed; there is one at least."""
        assert self.opened is not None
        return self.opened.steps

    def fed(self, steps: Sequence[Step]) -> int:
        """Return how many of the recorded steps of a transaction are fed; what was fed of another one is dropped."""
        ours = [] if self.opened is None else self.opened.steps
        if ours and list(steps[: len(ours)]) == ours:
            return len(ours)
        self.discard()
        return 0

    def add(self, step: Step, read: ReadInput, *, is_new: bool) -> None:
        """Take a step for fed."""
        self.opened = self.opened or OpenSteps()
        self.opened.add(step, read, is_new=is_new)

    def feed(self, step: Step) -> Replayed | Published | AttemptFailed:
        """Read a step again as it was recorded, unless table `spans` has the rows of its transaction."""
        fed = self._feed(step)
        # It had none of them at the last look: a peer has appended them since, and they stand for what cannot be read.
        return replace(fed, tries=0) if isinstance(fed, AttemptFailed) and fed.held else fed

    def _feed(self, step: Step) -> Replayed | Published | AttemptFailed:
        t = step.transaction
        if t not in self._result.recovered and self._attempts.is_first(t):
            self._result.recovered.append(t)
        if step.number == 0:
            if (died := self._attempts.died(self.recorded(t))) is not None:
                return died
        else:
            self._rooms.tries.begin(t)
        inputs = [
            Input(source, taken.path, taken.size_bytes)
            for source, ranges in step.sources.items()
            for taken in inputs_of(ranges)
        ]
        try:
            read = self._reader.stage(inputs, t)
        except InputFaultError as fault:
            return self.undone(t, fault)
        differs = compare(step.sources, read.sources) is not None
        if differs and self._rooms.outputs.upper() > t:
            self._rooms.outputs.tally.rows_dropped += sum(piece.rows for piece in read.pieces)
            self._reader.discard(read)
            self.discard()
            return Published()  # a peer was faster, and has deleted what it took from the inbox
        if read.failed:
            self._reader.discard(read)
            undone = self._attempts.unread(step, read.failed)
            self.discard()
            return undone
        self._rooms.unread.was_read(t, str(step.number))
        self.add(step, read, is_new=False)
        return Replayed(read.sources)

    def restage(self, step: Step) -> Replayed | Published | AttemptFailed:
        """Read the rows that table `spans` has of a transaction."""
        t = step.transaction
        self.discard()
        if t not in self._result.recovered:
            self._result.recovered.append(t)
        try:
            pieces = self._reader.restage(self._rooms.outputs.rows_of(t), t)
        except InputFaultError as fault:
            return self.undone(t, fault)
        except TracelakeError:
            if self._rooms.outputs.upper() > t:
                return Published()  # and what a peer has published may be compacted by now
            raise
        self.add(step, ReadInput({}, pieces, ()), is_new=False)
        return Replayed(step.sources)

    def recorded(self, t: int) -> Step:
        """Return all recorded steps of a transaction as one. Raises DamageError where they are gone since."""
        step = self._rooms.journal.read(t).step
        if step is None:
            raise lost_records(t)
        return step

    def undone(self, t: int, fault: InputFaultError) -> AttemptFailed:
        """Say that a task failed on what a transaction has."""
        self.discard()
        return self._attempts.undone(self.recorded(t), fault)

    def discard(self) -> None:
        """Delete the rows that are staged."""
        if self.opened is not None:
            opened, self.opened = self.opened, None
            for read in opened.read:
                self._reader.discard(read)

    def clean_up(self) -> None:
        """Delete them as well as it goes: the next run reads its input again."""
        with contextlib.suppress(TracelakeError, OSError):
            self.discard()


class StateReader:
    """Looks for one run."""

    def __init__(self, rooms: PipelineContext, feeding: Replayer, result: RunResult) -> None:
        self._rooms = rooms
        self._feeding = feeding
        self._result = result
        self._settled = -1  # the transaction of which this run has let the inputs go

    def settle(self, t: int) -> None:
        """Let go of the inputs of a committed transaction, and note what is kept of them."""
        self._result.note(self._rooms.settling.settle(t))
        self._settled = t

    def look(self, at_least: int) -> StateRead:
        """Say what stands at the least transaction, from `at_least` on, that has no commit."""
        while True:
            t = max(at_least, self._rooms.outputs.upper())
            try:
                return self._look_at(t)
            except TrimmedError:  # we were late: peers have gone on
                self._rooms.outputs.require_committed(t)

    def _look_at(self, t: int) -> StateRead:
        if t > 0 and t - 1 != self._settled:
            # Before T is open, the segments that T-1 holds are gone: none can be recorded a second time.
            self.settle(t - 1)
        # Outputs first: a peer may seal and append between the two looks, and a seal is never taken back.
        begun = self._rooms.outputs.begun(t)
        recorded = self._rooms.journal.read(t)
        aside = recorded.step is not None and self._rooms.journal.aside(t) is not None
        if recorded.seal is None and begun:
            raise DamageError(
                f"tables or index hold transaction {t}, and the journal has no seal of it. "
                "Restore the metadata from a backup."
            )
        held = recorded.step is not None and self._rooms.outputs.has_rows(t)
        only_commit_missing = recorded.seal is not None and self._rooms.outputs.only_commit_missing(t)
        if aside or only_commit_missing:
            self._feeding.discard()
        return StateRead(
            transaction=t,
            steps=recorded.steps,
            sealed=recorded.seal is not None,
            only_commit_missing=only_commit_missing,
            transform=TRANSFORM,
            fed=self._feeding.fed(recorded.steps),
            aside=aside and not held,
            held=held,
        )

    def require_aside(self, t: int) -> None:
        """Check that a transaction of which table `spans` has no rows was set aside. Raises DamageError."""
        if self._rooms.journal.aside(t) is None:
            raise DamageError(
                f"table spans has passed transaction {t} without its rows, and the journal does not say that it "
                "is set aside. Restore the metadata from a backup."
            )
