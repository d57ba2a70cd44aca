"""The driver loop: it carries out what `journal.protocol` decides, one action after the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

from tracelake._errors import SourceChangedError, TracelakeError, TrimmedError
from tracelake.journal.actions import (
    Abort,
    Action,
    Append,
    Feed,
    GiveUp,
    Look,
    OpenInputs,
    Publish,
    PublishNothing,
    Restage,
    SealIt,
    SetAside,
    Stop,
    Weigh,
)
from tracelake.journal.model import Seal, Step, Suspect
from tracelake.journal.modes import EACH_STEP, OpenTransaction, StepMode, weigh
from tracelake.journal.protocol import (
    Appended,
    Decided,
    Event,
    NoInput,
    Overtaken,
    Published,
    Read,
    Sealed,
    State,
    Undone,
    Verdict,
    advance,
    together,
)
from tracelake.journal.runs import inputs_of
from tracelake.pipeline.ahead import Beside, ReadAhead
from tracelake.pipeline.attempts import Attempts
from tracelake.pipeline.faults import Guarded, InputFaultError
from tracelake.pipeline.feeding import Feeding, OpenSteps, lost_records
from tracelake.pipeline.fitting import Fitting
from tracelake.pipeline.hearing import Hearing
from tracelake.pipeline.looking import Looking
from tracelake.pipeline.maintaining import Maintaining
from tracelake.pipeline.outcome import RunResult, now
from tracelake.pipeline.outputs.added import AddedOutputs
from tracelake.pipeline.outputs.port import OvertakenError
from tracelake.pipeline.protocol import keeps
from tracelake.pipeline.publish import TRANSFORM
from tracelake.pipeline.rooms import Dependencies
from tracelake.pipeline.sealing import seal, seal_whatever_stands
from tracelake.pipeline.sources.port import Input
from tracelake.pipeline.staging import InputReader, Leftovers, ReadInput
from tracelake.pipeline.taking import Taking
from tracelake.replicas.account import BatchCounts
from tracelake.search.vectors import PLAIN, IndexSettings
from tracelake.storage import KeyValueStore, ObjectStore, delete_all
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
        first: IndexSettings = PLAIN,
        added: AddedOutputs | None = None,
        mode: StepMode = EACH_STEP,
    ) -> None:
        """With `fitting`, runs are cut into steps of some seconds. `text` is the analyzer of a first index.
        `added` are outputs of users. `beside` reads the input of a transaction while the one before is published.
        `mode` says how many steps make a transaction.
        """
        self._beside = beside
        self._mode = mode
        self._opened: OpenSteps | None = None  # of a transaction that waits for more
        self._heard: Hearing | None = None
        self._leftovers = Leftovers(objects)
        self._rooms = Dependencies.of(name, key_value, objects, buckets, runner, tally, fitting, first, added)
        self._maintaining = Maintaining(self._rooms, beside)
        self.rest = self._maintaining.rest  # for who goes on, where nothing waits

    def run(
        self,
        runs: Sequence[Sequence[Input]],
        progress: OnProgress = silent,
        stopping: Callable[[], bool] = lambda: False,
        *,
        goes_on: bool = False,
    ) -> RunResult:
        """Finish what an earlier run left, then make each run of inputs a transaction.

        Files whose bytes a transaction holds already are not read a second time. Once `stopping` answers
        True, no other transaction is begun. Who `goes_on` calls it again: a transaction may wait for more till then.

        What no task can do is set aside: an input that fails alone, again and again. All others are taken.

        Raises:
            SourceChangedError: the unfinished transaction cannot be replayed as it was recorded.
            DamageError: the journal contradicts the tables.
        """
        heard, self._heard = self._heard or self.listen(), None
        self._leftovers.clean()
        opened, self._opened = self._opened, None
        weighing = partial(weigh, self._mode, goes_on=goes_on)
        maintain = partial(self._maintaining.after_commit, progress, goes_on=goes_on)
        run = _DriverRun(self._rooms, progress, stopping, self._beside, weighing, opened, heard, maintain)
        result = run.go(runs)
        self._opened = run.opened()
        return result

    def close(self) -> None:
        """Finish maintenance, and delete rows of a transaction that waits: its input is read again."""
        opened, self._opened = self._opened, None
        with contextlib.suppress(Exception):  # whoever goes on meets it, too
            self._maintaining.stop()
        with contextlib.suppress(TracelakeError, OSError):  # they are deleted when they are old
            delete_all(self._rooms.objects, [] if opened is None else opened.staged())

    def upper(self) -> int:
        """Return the least transaction that has no commit."""
        return self._rooms.outputs.upper()

    def listen(self, only_for: str | None = None, *, put_off: bool = False) -> Hearing:
        """Look what a client wants of its transaction. Who looks for input does so before, and runs afterwards.

        So all is taken that waited then. `only_for`: the client of all new input; see `Hearing`, also for `put_off`.
        """
        self._heard = Hearing.now(self._rooms, only_for, put_off=put_off)
        return self._heard

    def waits(self) -> bool:
        """Whether a transaction waits for more here, or did so at the end of the last run."""
        return self._opened is not None

    def in_open(self) -> set[tuple[str, str]]:
        """Return sources and paths of what the transaction has that waits for more, whoever has read it."""
        try:
            recorded = self._rooms.journal.read(self.upper())
        except TrimmedError:
            return set()
        sources = recorded.step.sources if recorded.step is not None else {}
        return {(source, taken.path) for source, ranges in sources.items() for taken in inputs_of(ranges)}

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
        weighing: Callable[..., Verdict],
        opened: OpenSteps | None,
        heard: Hearing,
        maintain: Callable[..., None],
    ) -> None:
        self._weighing, self._heard, self._maintain = weighing, heard, maintain
        self._rooms = rooms
        self._progress = progress
        self._stopping = stopping
        self._result = RunResult()
        self._reader = InputReader(rooms.objects, rooms.buckets, rooms.runner, self._tell)
        self._ahead = ReadAhead(rooms, self._tell, beside)
        self._attempts = Attempts(rooms, self._reader, stopping)
        self._feeding = Feeding(rooms, self._reader, self._attempts, self._result, opened)
        self._looking = Looking(rooms, self._feeding, self._result)
        self._taking = Taking(self._reader, rooms, self._result, stopping, self._ahead, self._feeding.paths)
        self._read: ReadInput | None = None  # new input that is not recorded yet
        self._opened_s = 0.0

    def go(self, runs: Sequence[Sequence[Input]]) -> RunResult:
        self._taking.add(runs)
        try:
            self._result.note(self._rooms.settling.let_go_again())
            self._go()
            if not self._result.transactions and not self._stopping():
                self._maintain(committed=False)  # a run that was killed meanwhile may have left some
        except (Exception, KeyboardInterrupt, SystemExit):
            self._clean_up()
            raise
        self._rooms.tries.end()
        self._heard.over(self._result.waits, stopped=self._stopping())
        return self._result

    def opened(self) -> OpenSteps | None:
        """Return what is read of a transaction that waits for more."""
        return self._feeding.opened

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
        event: Event = self._looking.look(0)
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
                event = self._looking.look(t)
            case OpenInputs(t):
                event = self._open_inputs(t)
            case Feed(step):
                event = self._feeding.feed(step)
            case Restage(step):
                event = self._feeding.restage(step)
            case Append(t, number):
                event = self._append(t, number)
            case Weigh(t, exhausted=exhausted):
                event = self._weigh(t, exhausted=exhausted)
            case SealIt(t):
                steps = self._feeding.steps()
                self._heard.bind(steps[0].client, t)
                event = seal(self._rooms.journal, t, steps)
            case Abort(t):
                self._heard.bind(self._feeding.steps()[0].client, t)
                self._rooms.journal.set_aside(self._heard.aside(t))
                event = self._looking.look(t)
            case Publish(t):
                event = self._publish(t)
            case GiveUp(t):
                self._attempts.give_up(t)
            case SetAside(t):
                self._attempts.set_aside(self._feeding.recorded(t))
                event = self._looking.look(t)
            case PublishNothing(t):
                event = self._publish_nothing(t)
        return event

    def _passed(self) -> Published:
        """Drop what we have for a transaction that peers have published so long ago that it is trimmed."""
        self._put_back()
        self._feeding.discard()
        return Published()

    def _open_inputs(self, t: int) -> Read | NoInput:
        if self._read is None:
            if self._taking.waits() and not self._stopping():
                opened = self._feeding.opened
                self._heard.check_waiting(t, None if opened is None else opened.steps[0].client)
            self._opened_s = time.monotonic()
            goes_on = self._feeding.opened is not None or self._heard.takes(t)
            self._read = self._taking.open(t, goes_on=goes_on)
        return NoInput() if self._read is None else Read()

    def _append(self, t: int, number: int) -> Appended | Sealed | NoInput:
        assert self._read is not None
        opened = self._feeding.opened
        if opened is not None and self._heard.begins_next(t, opened.steps[0].client):
            self._put_back()
            return NoInput()
        assert number == (0 if opened is None else len(opened.steps)), "all that is recorded was fed before"
        client = self._heard.client_of(t, None if opened is None else opened.steps[0].client)
        began_at = "" if number else now().isoformat(timespec="milliseconds")
        step = Step(t, self._read.recorded, TRANSFORM, number, client, began_at)
        stands, ours = self._rooms.journal.append_step(step)
        if ours:
            self._feeding.add(step, self._read, is_new=True)
            self._result.note_step(self._read.inputs)
            self._read = None
            return Appended(step, ours, TRANSFORM)
        self._put_back()
        return Sealed() if isinstance(stands, Seal) else Appended(stands, ours, TRANSFORM)

    def _put_back(self) -> None:
        """Let new input wait again: a peer's step may hold some of it, and the rest is read again."""
        if self._read is not None:
            self._taking.put_back(self._read.inputs)
            self._reader.discard(self._read)
            self._read = None

    def _weigh(self, t: int, *, exhausted: bool) -> Decided:
        opened = self._feeding.opened
        assert opened is not None
        wish = self._heard.wish(opened.steps[0].client, t)
        facts = OpenTransaction(len(opened.steps), opened.rows, opened.age_s(), wish)
        is_foreign = self._heard.is_foreign(opened.steps[0].client)
        verdict = self._weighing(facts, exhausted=exhausted or self._stopping() or is_foreign)
        if verdict == "wait" and is_foreign and self._taking.waits():
            self._heard.check_owner(opened.steps[0].client)
        if wish is None and verdict != "seal":
            # What failed before is a transaction of its own, and so is what a client has begun.
            is_cut = self._heard.begins_next(t, "") or self._attempts.is_suspected(opened.paths())
            verdict = "seal" if is_cut else verdict
        if verdict == "wait":
            self._result.waits = t
        return Decided(verdict)

    def _publish(self, t: int) -> Published | Undone | Overtaken:
        if self._feeding.opened is None:  # only its commit is missing
            self._result.recovered.append(t)
        recorded, opened = self._rooms.journal.read(t), self._feeding.opened
        step = recorded.step if opened is None else together(opened.steps)
        if step is None or recorded.seal is None or recorded.step != step:
            raise lost_records(t)
        if not self._rooms.outputs.has_rows(t):  # else done it must be, however often a run dies of it
            self._rooms.tries.begin(t)
        is_new = opened is not None and opened.is_new
        self._taking.read_ahead(t + 1, is_new=is_new and self._attempts.is_first(t))
        try:
            commit, counts = self._rooms.outputs.publish(
                step,
                recorded.seal,
                None if opened is None else opened.pieces,
                Guarded(self._rooms.runner),
                self._tell,
            )
        except InputFaultError as fault:
            return self._feeding.undone(t, fault)
        except OvertakenError:
            return self._overtaken(t)
        self._looking.settle(t)
        self._rooms.tries.over(t)
        self._fit(opened)
        self._feeding.discard()
        result = self._result
        result.transactions.append(t)
        result.ranges += [taken for ranges in step.sources.values() for taken in ranges]
        result.counts.append(counts)
        result.commit = commit
        self._maintain()
        return Published()

    def _fit(self, opened: OpenSteps | None) -> None:
        """Note how long a transaction took, of one step: one of more has waited for some of them."""
        fitting = self._rooms.fitting
        if fitting is not None and opened is not None and opened.is_new and len(opened.steps) == 1:
            arrow_bytes = sum(piece.arrow_bytes for piece in opened.pieces)
            seconds = time.monotonic() - self._opened_s
            fitting.took(opened.inputs, arrow_bytes, seconds, was_cut=self._taking.waits())

    def _overtaken(self, t: int) -> Overtaken:
        """Say that a peer appended first."""
        self._looking.require_aside(t)
        self._feeding.discard()
        return Overtaken()

    def _publish_nothing(self, t: int) -> Published | Overtaken:
        aside = self._rooms.journal.aside(t)
        assert aside is not None
        self._feeding.discard()
        seal_whatever_stands(self._rooms.journal, t)
        try:
            self._result.commit = self._rooms.outputs.publish_nothing(aside)
        except OvertakenError:
            return Overtaken()
        self._result.note(self._rooms.settling.settle(t))
        return Published()

    def _clean_up(self) -> None:
        """Delete what this try has staged, as well as it goes: the next one reads its input again."""
        self._ahead.drop()
        self._feeding.clean_up()
        if self._read is not None:
            with contextlib.suppress(TracelakeError, OSError):
                self._reader.discard(self._read)
        self._rooms.tries.end()
