"""Replay of the open transaction from the journal, and its staged rows.

A transaction that waits for more input keeps its steps and staged rows between runs, and the next run continues it.
After a crash, a process reads the steps' inputs again as the journal recorded them. `StateReader` reads the state of
the lowest uncommitted transaction after acknowledging the inputs of the one before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from tracelake._errors import DamageError, TracelakeError, TrimmedError
from tracelake.journal.model import DELETIONS, Step, inputs_of
from tracelake.journal.protocol import AttemptFailed, Published, Replayed, StateRead, compare
from tracelake.pipeline.context import PipelineContext
from tracelake.pipeline.decode_task import StagedSlice
from tracelake.pipeline.input_failures import InputFaultError, RetryPolicy
from tracelake.pipeline.publish import TRANSFORM
from tracelake.pipeline.run_result import RunResult, now
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.staging import InputReader, ReadInput


def lost_records(t: int) -> DamageError:
    """Return the error for journal records of a transaction that are lost or have changed."""
    return DamageError(
        f"transaction {t}: the journal has lost or changed its records. Nothing was published. Restore the "
        "metadata from a backup."
    )


class OpenTransaction:
    """The transaction that has begun and is not yet sealed: its recorded steps, the inputs that they read, and the rows
    staged from these inputs. This process keeps it between runs, so that a transaction can wait for more input."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.read: list[ReadInput] = []
        self.is_new = True
        """True if all steps were read for the first time."""
        self.began_s = time.monotonic()

    @property
    def pieces(self) -> list[StagedSlice]:
        """Staged rows of all steps."""
        return [piece for each in self.read for piece in each.pieces]

    def staged(self) -> list[str]:
        """Return the paths of the staged objects."""
        return sorted({piece.path for piece in self.pieces})

    @property
    def inputs(self) -> list[Input]:
        """Inputs of all steps."""
        return [item for each in self.read for item in each.inputs]

    def age_s(self) -> float:
        """Return the seconds since any replica began the transaction, or since this process read it if that is
        longer."""
        here_s, began_at = time.monotonic() - self.began_s, self.steps[0].began_at
        return max(here_s, (now() - datetime.fromisoformat(began_at)).total_seconds() if began_at else 0.0)

    @property
    def rows(self) -> int:
        """Number of staged rows."""
        return sum(piece.rows for piece in self.pieces)

    def paths(self) -> set[tuple[str, str]]:
        """Return source and path of the transaction's inputs. No input among them may be taken again before the
        commit."""
        steps = ((source, ranges) for step in self.steps for source, ranges in step.sources.items())
        return {
            (source, recorded_input.path) for source, ranges in steps for recorded_input in inputs_of(ranges)
        }

    def add(self, step: Step, read: ReadInput, *, is_new: bool) -> None:
        """Append a step, and what was read for it. `is_new` is False if the step was replayed."""
        self.steps.append(step)
        self.read.append(read)
        self.is_new = self.is_new and is_new


class Replayer:
    """Reads the recorded inputs of a transaction again, step by step, and stages their rows."""

    def __init__(
        self,
        context: PipelineContext,
        reader: InputReader,
        attempts: RetryPolicy,
        result: RunResult,
        opened: OpenTransaction | None,
    ) -> None:
        """Create a replayer. `opened` is the open transaction that the previous run left."""
        self._context = context
        self._reader = reader
        self._attempts = attempts
        self._result = result
        self.opened = opened

    def paths(self) -> set[tuple[str, str]]:
        """Return source and path of each input in the open transaction."""
        return set() if self.opened is None else self.opened.paths()

    def steps(self) -> list[Step]:
        """Return the replayed steps of the open transaction. It must have at least one."""
        assert self.opened is not None
        return self.opened.steps

    def fed(self, steps: Sequence[Step]) -> int:
        """Return how many of these recorded steps are staged already. If the staged rows belong to other steps, delete
        them and return 0."""
        ours = [] if self.opened is None else self.opened.steps
        if ours and list(steps[: len(ours)]) == ours:
            return len(ours)
        self.discard()
        return 0

    def add(self, step: Step, read: ReadInput, *, is_new: bool) -> None:
        """Add a step whose rows are staged."""
        self.opened = self.opened or OpenTransaction()
        self.opened.add(step, read, is_new=is_new)

    def feed(self, step: Step) -> Replayed | Published | AttemptFailed:
        """Read the inputs of a recorded step again and stage their rows. If table `spans` has the rows of the
        transaction already, stage those instead."""
        fed = self._feed(step)
        # A peer has appended the rows since the state was read. They replace the input that cannot be read.
        return replace(fed, tries=0) if isinstance(fed, AttemptFailed) and fed.has_rows else fed

    def _feed(self, step: Step) -> Replayed | Published | AttemptFailed:
        t = step.transaction
        if t not in self._result.recovered and self._attempts.is_first(t):
            self._result.recovered.append(t)
        if step.number == 0:
            if (failed := self._attempts.begin_attempt(self.recorded(t))) is not None:
                return failed
        else:
            self._context.tries.begin(t)
        inputs = [
            Input(source, recorded_input.path, recorded_input.size_bytes)
            for source, ranges in step.sources.items()
            for recorded_input in inputs_of(ranges)
        ]
        try:
            read = self._reader.stage(inputs, t, self._context.prices.table_of(step.prices))
        except InputFaultError as fault:
            return self.undone(t, fault)
        differs = compare(step.sources, read.sources) is not None
        if differs and self._context.outputs.upper() > t:
            self._context.outputs.tally.rows_dropped += sum(piece.rows for piece in read.pieces)
            self._reader.discard(read)
            self.discard()
            return Published()  # a peer committed it and deleted its inbox segments
        if read.failed:
            self._reader.discard(read)
            undone = self._attempts.unread(step, read.failed)
            self.discard()
            return undone
        self._context.unread.was_read(t, str(step.number))
        self.add(step, read, is_new=False)
        return Replayed(read.sources)

    def restage(self, step: Step) -> Replayed | Published | AttemptFailed:
        """Stage the rows of a transaction from table `spans`, because its input may no longer exist."""
        t = step.transaction
        self.discard()
        if t not in self._result.recovered:
            self._result.recovered.append(t)
        requests = step.sources.get(DELETIONS, ())
        inputs = [Input(DELETIONS, each.path, each.size_bytes) for each in inputs_of(requests)]
        try:
            pieces = self._reader.restage(self._context.outputs.rows_of(t), t)
            if inputs:  # the table has the rows that arrived or were priced, not those to retract
                pieces += self._deletions(step, inputs)
        except InputFaultError as fault:
            return self.undone(t, fault)
        except TracelakeError:
            if self._context.outputs.upper() > t:
                return Published()  # a peer's parts may be compacted by now
            raise
        self.add(step, ReadInput({}, pieces, ()), is_new=False)
        return Replayed(step.sources)

    def _deletions(self, step: Step, inputs: Sequence[Input]) -> list[StagedSlice]:
        """Read and stage the requests of a step again. Raises DamageError if one is gone or unreadable."""
        read = self._reader.stage(inputs, step.transaction, self._context.prices.table_of(step.prices))
        if compare({DELETIONS: step.sources[DELETIONS]}, read.sources) is not None:
            self._reader.discard(read)
            raise DamageError(
                f"transaction {step.transaction}: request {inputs[0].path} is missing or altered. Restore it "
                "from a backup."
            )
        return read.pieces

    def recorded(self, t: int) -> Step:
        """Return all recorded steps of a transaction as one. Raises DamageError if the journal has no step of it."""
        step = self._context.journal.read(t).step
        if step is None:
            raise lost_records(t)
        return step

    def undone(self, t: int, fault: InputFaultError) -> AttemptFailed:
        """Discard the staged rows after a task failed on them, and count the failed attempt."""
        self.discard()
        return self._attempts.undone(self.recorded(t), fault)

    def discard(self) -> None:
        """Delete the staged rows."""
        if self.opened is not None:
            opened, self.opened = self.opened, None
            for read in opened.read:
                self._reader.discard(read)

    def clean_up(self) -> None:
        """Delete the staged rows, ignoring errors. The next run reads the input again."""
        with contextlib.suppress(TracelakeError, OSError):
            self.discard()


class StateReader:
    """Reads the recorded state of transactions during one run."""

    def __init__(self, context: PipelineContext, feeding: Replayer, result: RunResult) -> None:
        self._context = context
        self._feeding = feeding
        self._result = result
        self._settled = -1  # transaction whose inputs this run acknowledged last

    def settle(self, t: int) -> None:
        """Acknowledge the inputs of a committed transaction to their sources. Add the inputs that stay quarantined to
        the run's result."""
        self._result.note(self._context.acker.settle(t))
        self._settled = t

    def look(self, at_least: int) -> StateRead:
        """Return the state of the lowest transaction, from `at_least` on, that has no commit. First acknowledge the
        inputs of the transaction before it."""
        while True:
            t = max(at_least, self._context.outputs.upper())
            try:
                return self._read_state(t)
            except TrimmedError:  # peers are far ahead of this process
                self._context.outputs.require_committed(t)

    def _read_state(self, t: int) -> StateRead:
        if t > 0 and t - 1 != self._settled:
            # Before T opens, the inbox segments of T-1 must be deleted. Otherwise they could be recorded
            # twice.
            self.settle(t - 1)
        # Read the outputs first. A peer may seal and append between the two reads, and a seal is never
        # removed.
        is_started = self._context.outputs.is_started(t)
        recorded = self._context.journal.read(t)
        is_quarantined = recorded.step is not None and self._context.journal.quarantine_record(t) is not None
        if recorded.seal is None and is_started:
            raise DamageError(
                f"tables or index have transaction {t}, but the journal has no seal of it. Restore the "
                "metadata from a backup."
            )
        has_rows = recorded.step is not None and self._context.outputs.has_rows(t)
        only_commit_missing = recorded.seal is not None and self._context.outputs.only_commit_missing(t)
        if is_quarantined or only_commit_missing:
            self._feeding.discard()
        return StateRead(
            transaction=t,
            steps=recorded.steps,
            sealed=recorded.seal is not None,
            only_commit_missing=only_commit_missing,
            transform=TRANSFORM,
            fed=self._feeding.fed(recorded.steps),
            is_quarantined=is_quarantined and not has_rows,
            has_rows=has_rows,
        )

    def require_quarantined(self, t: int) -> None:
        """Raise DamageError if table `spans` has skipped a transaction that the journal does not record as
        quarantined."""
        if self._context.journal.quarantine_record(t) is None:
            raise DamageError(
                f"table spans has skipped transaction {t}, but the journal does not say that it is set aside. "
                "Restore the metadata from a backup."
            )
