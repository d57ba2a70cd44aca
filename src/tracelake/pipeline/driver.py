"""The driver loop of the pipeline. It executes the actions that `journal.protocol` decides, one after the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from tracelake._errors import SourceChangedError, TracelakeError, TrimmedError, UsageError
from tracelake.journal.explicit_transactions import (
    ClientTransaction,
    client_request,
    on_bound,
    on_over,
    on_poll,
    takes,
)
from tracelake.journal.model import QuarantinedInput, QuarantineRecord, Seal, Step, inputs_of
from tracelake.journal.protocol import (
    EACH_STEP,
    Abandon,
    Abort,
    Action,
    Append,
    Appended,
    AttemptFailed,
    ClientRequest,
    CommitPolicy,
    Decide,
    Decided,
    Event,
    Feed,
    LostRace,
    NoInput,
    OpenInputs,
    OpenTransactionStats,
    Publish,
    Published,
    PublishEmpty,
    QuarantineInputs,
    Read,
    ReadState,
    Restage,
    Sealed,
    State,
    Stop,
    Verdict,
    WriteSeal,
    advance,
    decide,
    merge_steps,
    totals,
)
from tracelake.journal.store import Journal
from tracelake.limits import TRANSACTION_STEPS_MAX
from tracelake.pipeline.batch_sizing import BatchSizer
from tracelake.pipeline.context import PipelineContext
from tracelake.pipeline.input_failures import Guarded, InputFaultError
from tracelake.pipeline.input_queue import InputQueue, Prefetcher, StartWork
from tracelake.pipeline.maintenance import MaintenanceScheduler
from tracelake.pipeline.outputs.configured import AddedOutputs
from tracelake.pipeline.outputs.external import OvertakenError
from tracelake.pipeline.poison_input import RetryPolicy
from tracelake.pipeline.protocol import keeps
from tracelake.pipeline.publish import TRANSFORM
from tracelake.pipeline.replay import OpenSteps, Replayer, StateReader, lost_records
from tracelake.pipeline.run_result import RunResult, now
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.staging import InputReader, Leftovers, ReadInput
from tracelake.replicas.replica import BatchCounts
from tracelake.search.vectors import PLAIN, IndexSettings
from tracelake.storage import KeyValueStore, ObjectStore, delete_all
from tracelake.tasks.runners import OnProgress, Progress, TaskRunner, silent


def seal(journal: Journal, t: int, steps: Sequence[Step]) -> Sealed | Appended:
    """Seal a transaction that consists of these steps. Return Appended if a peer has recorded another step first."""
    records, checksum = totals(merge_steps(steps).sources)
    ours = Seal(t, records, checksum, now().isoformat(timespec="microseconds"))
    stands = journal.append_seal(ours, len(steps))
    return Sealed() if isinstance(stands, Seal) else Appended(stands, ours=False, transform=TRANSFORM)


def seal_whatever_stands(journal: Journal, t: int) -> None:
    """Seal a quarantined transaction with any steps it has. A transaction with an output needs a seal, so that
    `verify` can check it."""
    for _ in range(TRANSACTION_STEPS_MAX + 1):
        recorded = journal.read(t)
        if recorded.seal is not None or isinstance(seal(journal, t, recorded.steps), Sealed):
            return
    raise AssertionError(f"transaction {t} has more than {TRANSACTION_STEPS_MAX} steps")


@dataclass(frozen=True, slots=True)
class ClientTransactionView:
    """A client's transaction request, read once at the start of a run, before any source is polled."""

    rooms: PipelineContext
    heard: ClientTransaction | None
    only_for: str | None = None
    """The client whose transaction takes the new input. Empty: only a transaction without a client. None: any
    transaction."""

    @classmethod
    def now(
        cls, rooms: PipelineContext, only_for: str | None = None, *, put_off: bool = False
    ) -> ClientTransactionView:
        """Read the client's request. If the client timed out, apply the outcome that it chose for this case.

        Args:
            put_off: ignore a commit request in this run, because some acknowledged input was not seen. A later run
                handles it.
        """
        heard = rooms.clients.change(partial(on_poll, now_s=now().timestamp()))
        if heard is not None and cls(rooms, heard).is_ending and heard.transaction is not None:
            heard = rooms.clients.change(partial(on_over, of=heard.id, upper=rooms.outputs.upper()))
        if put_off and heard is not None and heard.wish == "commit":
            heard = structs.replace(heard, wish="open")
        return cls(rooms, heard, only_for)

    @property
    def is_ending(self) -> bool:
        """Return whether a client waits for its transaction to end."""
        return self.heard is not None and self.heard.wish != "open" and not self.heard.is_over

    def takes(self, t: int) -> bool:
        """Return whether transaction T belongs to a client, according to the snapshot."""
        return takes(self.heard, t) != ""

    def client_of(self, t: int, begun: str | None) -> str:
        """Return the client that the next step of T belongs to, empty for none. The step is recorded right after.

        `begun` is the client of T's first step, None if T has no steps. Raises UsageError if this run takes input for
        another client.
        """
        client = takes(self.rooms.clients.read(), t) if begun is None else begun
        self.check_owner(client)
        return client

    def is_foreign(self, client: str) -> bool:
        """Return whether a transaction of this client (empty for none) must not take this run's input."""
        return self.only_for is not None and client != self.only_for

    def check_owner(self, client: str) -> None:
        """Raise UsageError if a transaction of this client must not take this run's input."""
        if not self.is_foreign(client):
            return
        if client:
            raise foreign_transaction(client)
        raise UsageError(
            f"transaction {self.only_for} has ended or is ending; this input was not ingested. See `tracelake "
            "transaction list`."
        )

    def check_waiting(self, t: int, steps_of: str | None) -> None:
        """Raise UsageError if T belongs to another client. This run's input must wait until T is over.

        `steps_of` is the client of T's recorded steps, None if it has no steps.
        """
        client = takes(self.rooms.clients.read(), t) if steps_of is None else steps_of
        if client:
            self.check_owner(client)

    def begins_next(self, t: int, steps_of: str) -> bool:
        """Return whether a client has begun a transaction while T, which has no client, is open. Then T takes no more
        input, and T + 1 belongs to the client."""
        return steps_of == "" and takes(self.rooms.clients.read(), t + 1) != ""

    def wish(self, steps_of: str, t: int) -> ClientRequest | None:
        """Return the request of the client that owns T's recorded steps, or None if they have no owner.

        A run for its own input only has not polled the other sources, so it leaves another client's transaction open.
        """
        if steps_of and self.is_foreign(steps_of):
            return client_request(steps_of, None, self.rooms.clients.read(), t)
        if not steps_of or (self.heard is not None and self.heard.id == steps_of):
            return client_request(steps_of, self.heard, self.heard, t)
        return client_request(steps_of, self.heard, self.rooms.clients.read(), t)

    def bind(self, steps_of: str, t: int) -> None:
        """Record the number of the client's transaction before its outcome is decided for good."""
        if steps_of:
            self.rooms.clients.change(partial(on_bound, of=steps_of, t=t))

    def aside(self, t: int) -> QuarantineRecord:
        """Return the record that quarantines T because its client discarded it or timed out."""
        stands = self.rooms.clients.read()
        gone = "by its client"
        if stands is not None and stands.is_gone:
            gone = f"its client was silent for {stands.timeout_s:g} s"
        at = now().isoformat(timespec="microseconds")
        return QuarantineRecord(t, f"discarded: {gone}", tries=0, by="client", set_aside_at=at, together=0)

    def over(self, waits: int | None, *, stopped: bool) -> None:
        """Mark the client's transaction as over, if the run took all input that was pending at its end."""
        if self.heard is None or self.is_foreign(self.heard.id):
            return
        if self.is_ending and waits is None and not stopped:
            of, upper = self.heard.id, self.rooms.outputs.upper()
            self.rooms.clients.change(partial(on_over, of=of, upper=upper))


def foreign_transaction(client: str) -> UsageError:
    """Return the error for input that another client's transaction must not take."""
    return UsageError(
        f"another client's transaction {client} is open. Input that is not part of it must wait until it ends. "
        f"Run this again after its commit or abort, or pass --transaction {client} (Python: transaction=) to make "
        "the input part of it. See `tracelake transaction list`."
    )


class Pipeline:
    """Pipeline that reads inputs and turns each group of them into one transaction."""

    def __init__(
        self,
        name: str,
        key_value: KeyValueStore,
        objects: ObjectStore,
        buckets: int,
        runner: TaskRunner,
        tally: BatchCounts | None = None,
        fitting: BatchSizer | None = None,
        beside: StartWork | None = None,
        first: IndexSettings = PLAIN,
        added: AddedOutputs | None = None,
        mode: CommitPolicy = EACH_STEP,
    ) -> None:
        """Create a pipeline.

        The sizer `fitting` limits each step to a few seconds of work. The runner `beside` prefetches the next input
        while a transaction is published. The settings `first` are those of the first index. Users configured the
        outputs `added`. The policy `mode` decides how many steps make a transaction.
        """
        self._beside = beside
        self._mode = mode
        self._opened: OpenSteps | None = None  # an open transaction that waits for more input
        self._heard: ClientTransactionView | None = None
        self._leftovers = Leftovers(objects)
        self._rooms = PipelineContext.of(
            name, key_value, objects, buckets, runner, tally, fitting, first, added
        )
        self._maintaining = MaintenanceScheduler(self._rooms, beside)
        self.rest = self._maintaining.rest  # for continuous callers, when no input is pending

    def run(
        self,
        runs: Sequence[Sequence[Input]],
        progress: OnProgress = silent,
        stopping: Callable[[], bool] = lambda: False,
        *,
        goes_on: bool = False,
    ) -> RunResult:
        """Finish the work that an earlier run left, then turn each group of inputs into a transaction.

        Files whose bytes are in a transaction already are not read again. An input that repeatedly fails alone is
        quarantined, and all others are taken. Once `stopping` returns True, no further transaction begins. With
        `goes_on`, the caller runs the pipeline again, so a transaction may stay open for more input.

        Raises:
            SourceChangedError: the unfinished transaction cannot be replayed as recorded.
            DamageError: the journal contradicts the tables.
        """
        heard, self._heard = self._heard or self.listen(), None
        self._leftovers.clean()
        opened, self._opened = self._opened, None
        weighing = partial(decide, self._mode, goes_on=goes_on)
        maintain = partial(self._maintaining.after_commit, progress, goes_on=goes_on)
        run = _DriverRun(self._rooms, progress, stopping, self._beside, weighing, opened, heard, maintain)
        result = run.go(runs)
        self._opened = run.opened()
        return result

    def close(self) -> None:
        """Finish maintenance, and delete the staged rows of an open transaction. Its input is read again later."""
        opened, self._opened = self._opened, None
        with contextlib.suppress(Exception):  # the next run meets the same error
            self._maintaining.stop()
        with contextlib.suppress(TracelakeError, OSError):  # garbage collection deletes them later
            delete_all(self._rooms.objects, [] if opened is None else opened.staged())

    def upper(self) -> int:
        """Return the lowest transaction that has no commit."""
        return self._rooms.outputs.upper()

    def listen(self, only_for: str | None = None, *, put_off: bool = False) -> ClientTransactionView:
        """Read the client's request. Call this before polling the sources, and `run` after it.

        In this order, a client's commit includes all input that was pending when it was requested. `only_for` is the
        client of all new input. See `ClientTransactionView` for it and for `put_off`.
        """
        self._heard = ClientTransactionView.now(self._rooms, only_for, put_off=put_off)
        return self._heard

    def waits(self) -> bool:
        """Return whether this pipeline has an open transaction that waits for more input."""
        return self._opened is not None

    def in_open(self) -> set[tuple[str, str]]:
        """Return source and path of each input in the open transaction, including inputs that a peer read."""
        try:
            recorded = self._rooms.journal.read(self.upper())
        except TrimmedError:
            return set()
        sources = recorded.step.sources if recorded.step is not None else {}
        return {(source, taken.path) for source, ranges in sources.items() for taken in inputs_of(ranges)}

    def unfinished(self) -> bool:
        """Return whether a transaction was begun, by an earlier run or a peer, and has no commit yet."""
        try:
            return self._rooms.journal.read(self.upper()).step is not None
        except TrimmedError:
            return True  # peers are far ahead; a run finds out how far

    def suspects(self) -> list[QuarantinedInput]:
        """Return the inputs of quarantined transactions with their states."""
        return self._rooms.suspects.all()


class _DriverRun:
    """State of one run of the loop."""

    def __init__(
        self,
        rooms: PipelineContext,
        progress: OnProgress,
        stopping: Callable[[], bool],
        beside: StartWork | None,
        weighing: Callable[..., Verdict],
        opened: OpenSteps | None,
        heard: ClientTransactionView,
        maintain: Callable[..., None],
    ) -> None:
        self._weighing, self._heard, self._maintain = weighing, heard, maintain
        self._rooms = rooms
        self._progress = progress
        self._stopping = stopping
        self._result = RunResult()
        self._reader = InputReader(rooms.objects, rooms.buckets, rooms.runner, self._tell)
        self._ahead = Prefetcher(rooms, self._tell, beside)
        self._attempts = RetryPolicy(rooms, self._reader, stopping)
        self._feeding = Replayer(rooms, self._reader, self._attempts, self._result, opened)
        self._looking = StateReader(rooms, self._feeding, self._result)
        self._taking = InputQueue(
            self._reader, rooms, self._result, stopping, self._ahead, self._feeding.paths
        )
        self._read: ReadInput | None = None  # new input, not recorded yet
        self._opened_s = 0.0

    def go(self, runs: Sequence[Sequence[Input]]) -> RunResult:
        self._taking.add(runs)
        try:
            self._result.note(self._rooms.settling.let_go_again())
            self._go()
            if not self._result.transactions and not self._stopping():
                self._maintain(committed=False)  # a run killed in the meantime may have left maintenance due
        except (Exception, KeyboardInterrupt, SystemExit):
            self._clean_up()
            raise
        self._rooms.tries.end()
        self._heard.over(self._result.waits, stopped=self._stopping())
        return self._result

    def opened(self) -> OpenSteps | None:
        """Return the staged input of the open transaction."""
        return self._feeding.opened

    def _tell(self, step: Progress) -> None:
        """Report progress, and beat the crash marker's heartbeat."""
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
            case ReadState(t):
                event = self._looking.look(t)
            case OpenInputs(t):
                event = self._open_inputs(t)
            case Feed(step):
                event = self._feeding.feed(step)
            case Restage(step):
                event = self._feeding.restage(step)
            case Append(t, number):
                event = self._append(t, number)
            case Decide(t, exhausted=exhausted):
                event = self._weigh(t, exhausted=exhausted)
            case WriteSeal(t):
                steps = self._feeding.steps()
                self._heard.bind(steps[0].client, t)
                event = seal(self._rooms.journal, t, steps)
            case Abort(t):
                self._heard.bind(self._feeding.steps()[0].client, t)
                self._rooms.journal.set_aside(self._heard.aside(t))
                event = self._looking.look(t)
            case Publish(t):
                event = self._publish(t)
            case Abandon(t):
                self._attempts.give_up(t)
            case QuarantineInputs(t):
                self._attempts.set_aside(self._feeding.recorded(t))
                event = self._looking.look(t)
            case PublishEmpty(t):
                event = self._publish_nothing(t)
        return event

    def _passed(self) -> Published:
        """Drop staged work of a transaction that peers published so long ago that the journal has trimmed it."""
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
        """Put new input back in the queue. A peer's step may contain some of it; the rest is read again."""
        if self._read is not None:
            self._taking.put_back(self._read.inputs)
            self._reader.discard(self._read)
            self._read = None

    def _weigh(self, t: int, *, exhausted: bool) -> Decided:
        opened = self._feeding.opened
        assert opened is not None
        wish = self._heard.wish(opened.steps[0].client, t)
        facts = OpenTransactionStats(len(opened.steps), opened.rows, opened.age_s(), wish)
        is_foreign = self._heard.is_foreign(opened.steps[0].client)
        verdict = self._weighing(facts, exhausted=exhausted or self._stopping() or is_foreign)
        if verdict == "wait" and is_foreign and self._taking.waits():
            self._heard.check_owner(opened.steps[0].client)
        if wish is None and verdict != "seal":
            # Input that failed before gets a separate transaction, and so does a client's transaction.
            is_cut = self._heard.begins_next(t, "") or self._attempts.is_suspected(opened.paths())
            verdict = "seal" if is_cut else verdict
        if verdict == "wait":
            self._result.waits = t
        return Decided(verdict)

    def _publish(self, t: int) -> Published | AttemptFailed | LostRace:
        if self._feeding.opened is None:  # only the commit is missing
            self._result.recovered.append(t)
        recorded, opened = self._rooms.journal.read(t), self._feeding.opened
        step = recorded.step if opened is None else merge_steps(opened.steps)
        if step is None or recorded.seal is None or recorded.step != step:
            raise lost_records(t)
        # with rows published, it must finish however often a run crashes on it
        if not self._rooms.outputs.has_rows(t):
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
        """Record the duration of a one-step transaction. The duration of others includes waiting for input."""
        fitting = self._rooms.fitting
        if fitting is not None and opened is not None and opened.is_new and len(opened.steps) == 1:
            arrow_bytes = sum(piece.arrow_bytes for piece in opened.pieces)
            seconds = time.monotonic() - self._opened_s
            fitting.took(opened.inputs, arrow_bytes, seconds, was_cut=self._taking.waits())

    def _overtaken(self, t: int) -> LostRace:
        """Return LostRace because a peer appended first, after checking that the transaction is quarantined."""
        self._looking.require_aside(t)
        self._feeding.discard()
        return LostRace()

    def _publish_nothing(self, t: int) -> Published | LostRace:
        aside = self._rooms.journal.aside(t)
        assert aside is not None
        self._feeding.discard()
        seal_whatever_stands(self._rooms.journal, t)
        try:
            self._result.commit = self._rooms.outputs.publish_nothing(aside)
        except OvertakenError:
            return LostRace()
        self._result.note(self._rooms.settling.settle(t))
        return Published()

    def _clean_up(self) -> None:
        """Delete what this attempt staged, ignoring errors. The next attempt reads the input again."""
        self._ahead.drop()
        self._feeding.clean_up()
        if self._read is not None:
            with contextlib.suppress(TracelakeError, OSError):
                self._reader.discard(self._read)
        self._rooms.tries.end()
