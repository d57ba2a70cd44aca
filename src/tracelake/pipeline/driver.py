"""The driver loop: it carries out what `journal.protocol` decides, one action after the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from tracelake._errors import DamageError, SourceChangedError, StorageError, TracelakeError, TrimmedError
from tracelake.journal.model import Seal, Step, Suspect
from tracelake.journal.protocol import (
    Action,
    Append,
    Appended,
    Event,
    Fed,
    Feed,
    GiveUp,
    Look,
    NoInput,
    OpenInputs,
    Overtaken,
    Publish,
    Published,
    PublishNothing,
    Read,
    Restage,
    Sealed,
    SealIt,
    SetAside,
    Started,
    State,
    Stop,
    Undone,
    advance,
    compare,
    totals,
)
from tracelake.journal.runs import folded, inputs_of
from tracelake.limits import STAGED_ROWS_AGE_MAX_S
from tracelake.pipeline.ahead import Beside, ReadAhead
from tracelake.pipeline.attempts import Attempts
from tracelake.pipeline.faults import Guarded, InputFaultError
from tracelake.pipeline.fitting import Fitting
from tracelake.pipeline.outcome import RunResult, now
from tracelake.pipeline.outputs.added import AddedOutputs
from tracelake.pipeline.outputs.port import OvertakenError
from tracelake.pipeline.protocol import keeps
from tracelake.pipeline.publish import TRANSFORM
from tracelake.pipeline.rooms import Dependencies
from tracelake.pipeline.sources.port import Input
from tracelake.pipeline.staging import InputReader, ReadInput
from tracelake.pipeline.taking import Taking
from tracelake.replicas.account import BatchCounts
from tracelake.search.analyzers import ENGLISH
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tasks.progress import OnProgress, Progress, silent
from tracelake.tasks.runners import TaskRunner


class Pipeline:
    """Reads inputs, and turns each run of them into one transaction."""

    def __init__(
        self,
        name: str,
        key_value: KeyValueStore,
        objects: ObjectStore,
        buckets: int,
        runner: TaskRunner,
        tally: BatchCounts | None = None,
        fitting: Fitting | None = None,
        beside: Beside | None = None,
        text: str = ENGLISH.name,
        added: AddedOutputs | None = None,
    ) -> None:
        """With `fitting`, runs are cut into transactions of some seconds. `text` is the analyzer of a first index.
        `added` are outputs of users. `beside` reads the input of a transaction while the one before is published.
        """
        self._beside = beside
        self._rooms = Dependencies.of(name, key_value, objects, buckets, runner, tally, fitting, text, added)

    def run(
        self,
        runs: Sequence[Sequence[Input]],
        progress: OnProgress = silent,
        stopping: Callable[[], bool] = lambda: False,
    ) -> RunResult:
        """Finish what an earlier run left, then make each run of inputs a transaction.

        Files whose bytes a transaction holds already are not read a second time. Once `stopping` answers
        True, no other transaction is begun.

        What no task can do is set aside: an input that fails alone, again and again. All others are taken.

        Raises:
            SourceChangedError: the unfinished transaction cannot be replayed as it was recorded.
            DamageError: the journal contradicts the tables.
        """
        return _DriverRun(self._rooms, progress, stopping, self._beside).go(runs)

    def upper(self) -> int:
        """Return the least transaction that has no commit."""
        return self._rooms.outputs.upper()

    def unfinished(self) -> bool:
        """Whether an earlier run, or a peer, has begun a transaction that has no commit yet."""
        try:
            return self._rooms.journal.read(self.upper()).step is not None
        except TrimmedError:
            return True  # peers have gone on, far: a run sees how far

    def suspects(self) -> list[Suspect]:
        """Return the inputs of transactions that were set aside, and what is to become of them."""
        return self._rooms.suspects.all()


class _DriverRun:
    """One run of the loop, with its state."""

    def __init__(
        self,
        rooms: Dependencies,
        progress: OnProgress,
        stopping: Callable[[], bool],
        beside: Beside | None,
    ) -> None:
        self._rooms = rooms
        self._progress = progress
        self._stopping = stopping
        self._result = RunResult()
        self._reader = InputReader(rooms.objects, rooms.buckets, rooms.runner, self._tell)
        self._ahead = ReadAhead(rooms, self._tell, beside)
        self._taking = Taking(self._reader, rooms, self._result, stopping, self._ahead)
        self._attempts = Attempts(rooms, self._reader, stopping)
        self._read: ReadInput | None = None  # new input that is not recorded yet
        self._fed: ReadInput | None = None  # the staged rows of the transaction under way
        self._new: ReadInput | None = None  # the same, where they are read for the first time
        self._opened_s = 0.0
        self._settled = -1  # the transaction of which this run has let the inputs go

    def go(self, runs: Sequence[Sequence[Input]]) -> RunResult:
        self._taking.add(runs)
        self._reader.clean(now().timestamp() - STAGED_ROWS_AGE_MAX_S)
        try:
            self._note(self._rooms.settling.let_go_again())
            self._go()
            if not self._result.transactions and not self._stopping():
                self._maintain()  # a run that was killed meanwhile may have left some
        except (Exception, KeyboardInterrupt, SystemExit):
            self._clean_up()
            raise
        self._rooms.tries.end()
        return self._result

    def _tell(self, step: Progress) -> None:
        """Tell what is going on, those included who look whether we live."""
        self._rooms.tries.beat()
        self._progress(step)

    def _advance(self, state: State | None, event: Event) -> tuple[State, Action]:
        state, action = advance(state, event)
        if not keeps(action):
            self._ahead.drop()
        return state, action

    def _go(self) -> None:
        state: State | None = None
        event: Event = self._look(0)
        while True:
            state, action = self._advance(state, event)
            if isinstance(action, Stop):
                if action.reason is not None:
                    raise SourceChangedError(f"{action.reason}. Nothing was published.")
                return
            try:
                event = self._carry_out(action, event)
            except TrimmedError:
                event = self._passed()

    def _carry_out(self, action: Action, event: Event) -> Event:
        match action:
            case Look(t):
                event = self._look(t)
            case OpenInputs(t):
                event = self._open_inputs(t)
            case Feed(step) | Restage(step):
                event = self._restage(step) if isinstance(action, Restage) else self._feed(step)
            case Append(t):
                event = self._append(t)
            case SealIt(t):
                self._seal(t)
                event = Sealed()
            case Publish(t):
                event = self._publish(t, only_commit_missing=isinstance(event, Started))
            case GiveUp(t):
                self._attempts.give_up(t)
            case SetAside(t):
                self._attempts.set_aside(self._recorded(t))
                event = self._look(t)
            case PublishNothing(t):
                event = self._publish_nothing(t)
        return event

    def _passed(self) -> Published:
        """Drop what we have for a transaction that peers have published so long ago that it is trimmed."""
        self._put_back()
        self._discard_fed()
        return Published()

    def _look(self, at_least: int) -> Started:
        while True:
            t = max(at_least, self._rooms.outputs.upper())
            try:
                return self._look_at(t)
            except TrimmedError:  # we were late: peers have gone on
                self._rooms.outputs.require_committed(t)

    def _look_at(self, t: int) -> Started:
        if t > 0 and t - 1 != self._settled:
            # Before T is open, the segments that T-1 holds are gone: none can be recorded a second time.
            self._note(self._rooms.settling.settle(t - 1))
            self._settled = t - 1
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
        return Started(
            transaction=t,
            step=recorded.step,
            sealed=recorded.seal is not None,
            only_commit_missing=recorded.seal is not None and self._rooms.outputs.only_commit_missing(t),
            transform=TRANSFORM,
            aside=aside and not held,
            held=held,
        )

    def _open_inputs(self, t: int) -> Read | NoInput:
        if self._read is None:
            self._opened_s = time.monotonic()
            self._read = self._taking.open(t)
        return NoInput() if self._read is None else Read()

    def _feed(self, step: Step) -> Fed | Published | Undone:
        if step.transaction not in self._result.recovered and self._attempts.is_first(step.transaction):
            self._result.recovered.append(step.transaction)
        if (died := self._attempts.died(step)) is not None:
            return died
        inputs = [
            Input(source, taken.path, taken.size_bytes)
            for source, ranges in step.sources.items()
            for taken in inputs_of(ranges)
        ]
        try:
            fed = self._reader.stage(inputs, step.transaction)
        except InputFaultError as fault:
            return self._undone(step, fault)
        differs = compare(step.sources, fed.sources) is not None
        if differs and self._rooms.outputs.upper() > step.transaction:
            self._rooms.outputs.tally.rows_dropped += sum(piece.rows for piece in fed.pieces)
            self._reader.discard(fed)
            return Published()  # a peer was faster, and has deleted what it took from the inbox
        for path, reason in fed.failed.items():
            self._reader.discard(fed)
            raise StorageError(
                f"transaction {step.transaction}: {path} {reason}. Nothing was published; the next run reads it again."
            )
        self._fed = fed  # and not before: these rows must not be taken for those of the next transaction
        return Fed(fed.sources)

    def _restage(self, step: Step) -> Fed | Published | Undone:
        t = step.transaction
        if t not in self._result.recovered:
            self._result.recovered.append(t)
        try:
            pieces = self._reader.restage(self._rooms.outputs.rows_of(t), t)
        except InputFaultError as fault:
            return self._undone(step, fault)
        except TracelakeError:
            if self._rooms.outputs.upper() > t:
                return Published()  # and what a peer has published may be compacted by now
            raise
        self._fed = ReadInput({}, pieces, ())
        return Fed(step.sources)

    def _append(self, t: int) -> Appended:
        assert self._read is not None
        step, ours = self._rooms.journal.append_step(Step(t, folded(self._read.sources), TRANSFORM))
        if ours:
            self._fed = self._new = self._read
            self._read = None
            return Appended(step, ours, sealed=False)
        self._put_back()
        return Appended(step, ours, sealed=self._rooms.journal.read(t).seal is not None)

    def _put_back(self) -> None:
        """Let new input wait again: a peer's step may hold some of it, and the rest is read again."""
        if self._read is not None:
            self._taking.put_back(self._read.inputs)
            self._reader.discard(self._read)
            self._read = None

    def _seal(self, t: int) -> None:
        records, checksum = totals(self._recorded(t).sources)
        self._rooms.journal.append_seal(Seal(t, records, checksum, now().isoformat(timespec="microseconds")))

    def _recorded(self, t: int) -> Step:
        step = self._rooms.journal.read(t).step
        assert step is not None
        return step

    def _publish(self, t: int, *, only_commit_missing: bool) -> Published | Undone | Overtaken:
        if only_commit_missing:
            self._result.recovered.append(t)
        recorded = self._rooms.journal.read(t)
        assert recorded.step is not None
        assert recorded.seal is not None
        pieces = self._fed.pieces if self._fed is not None else None
        if not self._rooms.outputs.has_rows(t):  # else done it must be, however often a run dies of it
            self._rooms.tries.begin(t)
        is_new = self._fed is not None and self._fed is self._new
        self._taking.read_ahead(t + 1, is_new=is_new and self._attempts.is_first(t))
        try:
            commit, counts = self._rooms.outputs.publish(
                recorded.step, recorded.seal, pieces, Guarded(self._rooms.runner), self._tell
            )
        except InputFaultError as fault:
            return self._undone(recorded.step, fault)
        except OvertakenError:
            return self._overtaken(t)
        self._note(self._rooms.settling.settle(t))
        self._settled = t
        self._rooms.tries.over(t)
        fitting = self._rooms.fitting
        if fitting is not None and self._fed is not None and is_new:
            arrow_bytes = sum(piece.arrow_bytes for piece in self._fed.pieces)
            seconds = time.monotonic() - self._opened_s
            fitting.took(self._fed.inputs, arrow_bytes, seconds, was_cut=self._taking.waits())
        self._discard_fed()
        self._result.transactions.append(t)
        self._result.ranges += [taken for ranges in recorded.step.sources.values() for taken in ranges]
        self._result.counts.append(counts)
        self._result.commit = commit
        self._maintain()
        return Published()

    def _maintain(self) -> None:
        for output in self._rooms.outputs.tables.values():
            self._rooms.maintainer.maintain(output.shard, output.table.sorted_by, self._progress)
        self._rooms.merger.maintain(self._progress)
        self._rooms.tries.maintenance_over()

    def _overtaken(self, t: int) -> Overtaken:
        """Say that a peer appended first."""
        if self._rooms.journal.aside(t) is None:
            raise DamageError(
                f"table spans has passed transaction {t} without its rows, and the journal does not say that it "
                "is set aside. Restore the metadata from a backup."
            )
        self._discard_fed()
        return Overtaken()

    def _publish_nothing(self, t: int) -> Published | Overtaken:
        aside = self._rooms.journal.aside(t)
        assert aside is not None
        self._seal(t)  # whatever has an output is sealed, and so a seal that is gone is missed
        try:
            self._result.commit = self._rooms.outputs.publish_nothing(aside)
        except OvertakenError:
            return Overtaken()
        self._note(self._rooms.settling.settle(t))
        return Published()

    def _note(self, kept: Sequence[Suspect]) -> None:
        for suspect in kept:
            self._result.note_aside(suspect)

    def _undone(self, step: Step, fault: InputFaultError) -> Undone:
        self._discard_fed()
        return self._attempts.undone(step, fault)

    def _discard_fed(self) -> None:
        if self._fed is not None:
            self._reader.discard(self._fed)
            self._fed = self._new = None

    def _clean_up(self) -> None:
        """Delete what this try has staged, as well as it goes: the next one reads its input again."""
        self._ahead.drop()
        for staged in (self._read, self._fed):
            if staged is not None:
                with contextlib.suppress(TracelakeError, OSError):
                    self._reader.discard(staged)
        self._rooms.tries.end()
