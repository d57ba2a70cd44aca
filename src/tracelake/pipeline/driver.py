"""The driver loop of the pipeline. It executes the actions that `journal.protocol` decides, one after the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec import structs

from tracelake._errors import (
    DamageError,
    ExpiredError,
    NotFoundError,
    SourceChangedError,
    TaskError,
    TracelakeError,
    TrimmedError,
    UsageError,
)
from tracelake.journal import protocol
from tracelake.journal.explicit_transactions import (
    ClientTransaction,
    client_request,
    on_bound,
    on_over,
    on_poll,
    takes,
)
from tracelake.journal.model import QuarantinedInput, QuarantineRecord, Seal, Step, inputs_of
from tracelake.journal.protocol import Appended
from tracelake.journal.store import Journal
from tracelake.limits import TRANSACTION_STEPS_MAX
from tracelake.otlp.prices import PriceTable
from tracelake.pipeline.batch_sizing import BatchSizer
from tracelake.pipeline.context import MaintenanceScheduler, PipelineContext
from tracelake.pipeline.input_failures import Guarded, InputFaultError, RetryPolicy
from tracelake.pipeline.input_queue import InputQueue, Prefetcher, StartWork
from tracelake.pipeline.outputs.configured import AddedOutputs
from tracelake.pipeline.outputs.external import OvertakenError
from tracelake.pipeline.protocol import keeps
from tracelake.pipeline.publish import TRANSFORM
from tracelake.pipeline.replay import OpenTransaction, Replayer, StateReader, lost_records
from tracelake.pipeline.run_result import RunResult, now
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.staging import InputReader, Leftovers, ReadInput
from tracelake.replicas.replica import BatchCounts
from tracelake.search.vectors import PLAIN, IndexSettings
from tracelake.storage import KeyValueStore, ObjectStore, delete_all
from tracelake.tasks.backoff import is_damage
from tracelake.tasks.runners import OnProgress, Progress, TaskRunner, silent

_TRIES_BESIDE_ERASURE: Final = 4
"""Tries of a run whose parts an erasure deletes; an erasure begins three epochs of the collection."""


def seal(journal: Journal, t: int, steps: Sequence[Step]) -> protocol.Sealed | Appended:
    """Seal a transaction that consists of these steps. Return Appended if a peer has recorded another step first."""
    records, checksum = protocol.totals(protocol.merge_steps(steps).sources)
    ours = Seal(t, records, checksum, now().isoformat(timespec="microseconds"))
    recorded = journal.append_seal(ours, len(steps))
    return (
        protocol.Sealed()
        if isinstance(recorded, Seal)
        else Appended(recorded, ours=False, transform=TRANSFORM)
    )


def seal_recorded_steps(journal: Journal, t: int) -> None:
    """Seal a quarantined transaction with the steps that the journal has, if any. Without a seal, `verify` could not
    check its outputs."""
    for _ in range(TRANSACTION_STEPS_MAX + 1):
        recorded = journal.read(t)
        if recorded.seal is not None or isinstance(seal(journal, t, recorded.steps), protocol.Sealed):
            return
    raise AssertionError(f"transaction {t} has more than {TRANSACTION_STEPS_MAX} steps")


@dataclass(frozen=True, slots=True)
class ClientTransactionView:
    """A client's transaction request, read once at the start of a run, before any source is polled."""

    context: PipelineContext
    client: ClientTransaction | None
    only_client: str | None = None
    """The client whose transaction takes the new input. Empty: only a transaction without a client. None: any
    transaction."""

    @classmethod
    def now(
        cls, context: PipelineContext, only_client: str | None = None, *, defer_commit: bool = False
    ) -> ClientTransactionView:
        """Read the client's request. If the client timed out, apply the outcome that it chose for this case.

        Args:
            defer_commit: ignore a commit request in this run, because some acknowledged input was not seen. A later run
                handles it.
        """
        client = context.clients.change(partial(on_poll, now_s=now().timestamp()))
        if client is not None and cls(context, client).is_ending and client.transaction is not None:
            client = context.clients.change(partial(on_over, of=client.id, upper=context.outputs.upper()))
        if defer_commit and client is not None and client.wish == "commit":
            client = structs.replace(client, wish="open")
        return cls(context, client, only_client)

    @property
    def is_ending(self) -> bool:
        """Return whether the client has requested the commit or abort of its transaction."""
        return self.client is not None and self.client.wish != "open" and not self.client.is_over

    def takes(self, t: int) -> bool:
        """Return whether transaction T belongs to a client, according to the snapshot."""
        return takes(self.client, t) != ""

    def client_of(self, t: int, first_client: str | None) -> str:
        """Return the client that the next step of T belongs to, empty for none.

        The caller must record the step immediately. `first_client` is the client of T's first step, None if T has no
        steps. Raises UsageError if T must not take this run's input, because they belong to different clients.
        """
        client = takes(self.context.clients.read(), t) if first_client is None else first_client
        self.check_owner(client)
        return client

    def is_foreign(self, client: str) -> bool:
        """Return whether this run's input must not go into a transaction that belongs to `client` (empty for none)."""
        return self.only_client is not None and client != self.only_client

    def check_owner(self, client: str) -> None:
        """Raise UsageError if this run's input must not go into a transaction that belongs to `client`."""
        if not self.is_foreign(client):
            return
        if client:
            raise foreign_transaction(client)
        raise UsageError(
            f"transaction {self.only_client} has ended or is ending; this input was not ingested. See `tracelake "
            "transaction list`."
        )

    def check_waiting(self, t: int, steps_of: str | None) -> None:
        """Raise UsageError if T belongs to another client. This run's input must wait until T has ended."""
        client = takes(self.context.clients.read(), t) if steps_of is None else steps_of
        if client:
            self.check_owner(client)

    def begins_next(self, t: int, steps_of: str) -> bool:
        """Return whether a client has begun a transaction while T, which belongs to no client, is open. T then takes no
        more input, and T + 1 belongs to the client."""
        return steps_of == "" and takes(self.context.clients.read(), t + 1) != ""

    def request_of(self, steps_of: str, t: int) -> protocol.ClientRequest | None:
        """Return the request of the client that owns T's recorded steps, or None if they have no owner.

        A run for its own input only has not polled the other sources, so it leaves another client's transaction open.
        """
        if steps_of and self.is_foreign(steps_of):
            return client_request(steps_of, None, self.context.clients.read(), t)
        if not steps_of or (self.client is not None and self.client.id == steps_of):
            return client_request(steps_of, self.client, self.client, t)
        return client_request(steps_of, self.client, self.context.clients.read(), t)

    def bind(self, steps_of: str, t: int) -> None:
        """Record in the client's transaction that its number is T, before its outcome is final."""
        if steps_of:
            self.context.clients.change(partial(on_bound, of=steps_of, t=t))

    def quarantine_record(self, t: int) -> QuarantineRecord:
        """Return the record that quarantines T because its client discarded it or timed out."""
        client = self.context.clients.read()
        reason = "by its client"
        if client is not None and client.is_gone:
            reason = f"its client was silent for {client.timeout_s:g} s"
        at = now().isoformat(timespec="microseconds")
        return QuarantineRecord(t, f"discarded: {reason}", tries=0, by="client", set_aside_at=at, together=0)

    def over(self, waits: int | None, *, stopped: bool) -> None:
        """Mark the client's transaction as over, if the run took all input that was pending at its end."""
        if self.client is None or self.is_foreign(self.client.id):
            return
        if self.is_ending and waits is None and not stopped:
            of, upper = self.client.id, self.context.outputs.upper()
            self.context.clients.change(partial(on_over, of=of, upper=upper))


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
        sizer: BatchSizer | None = None,
        start_work: StartWork | None = None,
        initial_index: IndexSettings = PLAIN,
        added: AddedOutputs | None = None,
        mode: protocol.CommitPolicy = protocol.EACH_STEP,
    ) -> None:
        """Create a pipeline.

        Args:
            name: the pipeline's name, such as `main`.
            key_value, objects: the stores of the lake.
            buckets: hash buckets of the tables.
            runner: runs the tasks.
            tally: counts won and lost appends.
            sizer: limits each step to a few seconds of work.
            start_work: prefetches the next input while a transaction is published.
            initial_index: settings of the first index.
            added: outputs that users configured.
            mode: decides how many steps make a transaction.
        """
        self._start_work = start_work
        self._mode = mode
        self._open_transaction: OpenTransaction | None = None  # an open transaction that waits for more input
        self._client: ClientTransactionView | None = None
        self._leftovers = Leftovers(objects)
        self._context = PipelineContext(
            name, key_value, objects, buckets, runner, tally, sizer, initial_index, added
        )
        self._maintenance = MaintenanceScheduler(self._context, start_work)
        self.on_idle = self._maintenance.on_idle  # for continuous callers, when no input is pending

    def run(
        self,
        runs: Sequence[Sequence[Input]],
        progress: OnProgress = silent,
        stopping: Callable[[], bool] = lambda: False,
        *,
        continuous: bool = False,
    ) -> RunResult:
        """Finish the work that an earlier run left, then turn each group of inputs into a transaction.

        Files whose bytes are in a transaction already are not read again. An input that repeatedly fails alone is
        quarantined, and all others are taken. Once `stopping` returns True, no further transaction begins. With
        `continuous`, the caller runs the pipeline again, so a transaction may stay open for more input.

        Raises:
            SourceChangedError: the unfinished transaction cannot be replayed as recorded.
            DamageError: the journal contradicts the tables.
        """
        prices = self._context.prices.table()
        client, self._client = self._client or self.snapshot_client(), None
        self._leftovers.clean()
        open_transaction, self._open_transaction = self._open_transaction, None
        policy = partial(protocol.decide, self._mode, continuous=continuous)
        maintain = partial(self._maintenance.after_commit, progress, continuous=continuous)
        start = partial(_DriverRun, self._context, progress, stopping, self._start_work, policy)
        run = start(open_transaction, client, maintain, prices)
        for tries in range(1, _TRIES_BESIDE_ERASURE + 1):
            try:
                result = run.go(runs)
                break
            except (DamageError, ExpiredError, NotFoundError, TaskError) as error:
                is_missing = not isinstance(error, TaskError) or is_damage(error)
                is_last = tries == _TRIES_BESIDE_ERASURE
                if is_last or not is_missing or not self._context.outputs.erasures.ids_by_erasure():
                    raise
                # An erasure may have deleted parts that this run was reading, or begun an epoch of the collection.
                run = start(None, client, maintain, prices)
        self._open_transaction = run.opened()
        return result

    def close(self) -> None:
        """Finish maintenance, and delete the staged rows of an open transaction. Its input is read again later."""
        opened, self._open_transaction = self._open_transaction, None
        with contextlib.suppress(Exception):  # the next run meets the same error
            self._maintenance.stop()
        with contextlib.suppress(TracelakeError, OSError):  # garbage collection deletes them later
            delete_all(self._context.objects, [] if opened is None else opened.staged())

    def upper(self) -> int:
        """Return the lowest transaction that has no commit."""
        return self._context.outputs.upper()

    def snapshot_client(
        self, only_client: str | None = None, *, defer_commit: bool = False
    ) -> ClientTransactionView:
        """Read the client's transaction request, and keep it for the next `run`. Call this before polling the sources.

        In this order, a client's commit includes all input that was pending when it was requested. `only_client` is the
        client of all new input. See `ClientTransactionView` for it and for `defer_commit`.
        """
        self._client = ClientTransactionView.now(self._context, only_client, defer_commit=defer_commit)
        return self._client

    def has_open_transaction(self) -> bool:
        """Return whether this process keeps a transaction open that waits for more input. For transactions of other
        processes, see `unfinished`."""
        return self._open_transaction is not None

    def open_inputs(self) -> set[tuple[str, str]]:
        """Return source and path of each recorded input of the lowest uncommitted transaction, including inputs that a
        peer read."""
        try:
            recorded = self._context.journal.read(self.upper())
        except TrimmedError:
            return set()
        sources = recorded.step.sources if recorded.step is not None else {}
        return {
            (source, recorded_input.path)
            for source, ranges in sources.items()
            for recorded_input in inputs_of(ranges)
        }

    def unfinished(self) -> bool:
        """Return whether the journal has a transaction that this process or a peer began and that has no commit yet."""
        try:
            return self._context.journal.read(self.upper()).step is not None
        except TrimmedError:
            return True  # peers are far ahead; a run finds out how far

    def suspects(self) -> list[QuarantinedInput]:
        """Return the inputs of quarantined transactions with their states."""
        return self._context.suspects.all()


class _DriverRun:
    """State of one run of the loop."""

    def __init__(
        self,
        context: PipelineContext,
        progress: OnProgress,
        stopping: Callable[[], bool],
        start_work: StartWork | None,
        policy: Callable[..., protocol.Verdict],
        open_transaction: OpenTransaction | None,
        client: ClientTransactionView,
        maintain: Callable[..., None],
        prices: PriceTable,
    ) -> None:
        self._policy, self._client, self._maintain = policy, client, maintain
        self._context = context
        self._progress = progress
        self._stopping = stopping
        self._result = RunResult()
        self._prices = prices
        self._reader = InputReader(context.objects, context.buckets, context.runner, self._tell, prices)
        self._prefetcher = Prefetcher(context, self._tell, start_work, prices)
        self._retries = RetryPolicy(context, self._reader, stopping)
        self._replayer = Replayer(context, self._reader, self._retries, self._result, open_transaction)
        self._state_reader = StateReader(context, self._replayer, self._result)
        self._queue = InputQueue(
            self._reader, context, self._result, stopping, self._prefetcher, self._replayer.paths
        )
        self._read: ReadInput | None = None  # new input, not recorded yet
        self._opened_s = 0.0

    def go(self, runs: Sequence[Sequence[Input]]) -> RunResult:
        self._queue.add(runs)
        try:
            self._result.note(self._context.acker.retry_acks())
            self._go()
            if not self._result.transactions and not self._stopping():
                self._maintain(committed=False)  # a run killed in the meantime may have left maintenance due
        except (Exception, KeyboardInterrupt, SystemExit):
            self._clean_up()
            raise
        self._context.tries.end()
        self._client.over(self._result.open_transaction, stopped=self._stopping())
        return self._result

    def opened(self) -> OpenTransaction | None:
        """Return the staged input of the open transaction."""
        return self._replayer.opened

    def _tell(self, step: Progress) -> None:
        """Report progress, and beat the crash marker's heartbeat."""
        self._context.tries.beat()
        self._progress(step)

    def _advance(
        self, state: protocol.State | None, event: protocol.Event
    ) -> tuple[protocol.State, protocol.Action]:
        state, action = protocol.advance(state, event)
        if not keeps(action):
            self._prefetcher.drop()
        return state, action

    def _go(self) -> None:
        state: protocol.State | None = None
        event: protocol.Event = self._state_reader.look(0)
        while True:
            state, action = self._advance(state, event)
            if isinstance(action, protocol.Stop):
                if action.reason is not None:
                    raise SourceChangedError(f"{action.reason}. Nothing was published.")
                return
            try:
                event = self._carry_out(action, event)
            except TrimmedError:
                event = self._passed()

    def _carry_out(self, action: protocol.Action, event: protocol.Event) -> protocol.Event:
        match action:
            case protocol.ReadState(t):
                event = self._state_reader.look(t)
            case protocol.OpenInputs(t):
                event = self._open_inputs(t)
            case protocol.Feed(step):
                event = self._replayer.feed(step)
            case protocol.Restage(step):
                event = self._replayer.restage(step)
            case protocol.Append(t, number):
                event = self._append(t, number)
            case protocol.Decide(t, exhausted=exhausted):
                event = self._weigh(t, exhausted=exhausted)
            case protocol.WriteSeal(t):
                steps = self._replayer.steps()
                self._client.bind(steps[0].client, t)
                event = seal(self._context.journal, t, steps)
            case protocol.Abort(t):
                self._client.bind(self._replayer.steps()[0].client, t)
                self._context.journal.quarantine(self._client.quarantine_record(t))
                event = self._state_reader.look(t)
            case protocol.Publish(t):
                event = self._publish(t)
            case protocol.Abandon(t):
                self._retries.give_up(t)
            case protocol.QuarantineInputs(t):
                self._retries.quarantine(self._replayer.recorded(t))
                event = self._state_reader.look(t)
            case protocol.PublishEmpty(t):
                event = self._publish_nothing(t)
        return event

    def _passed(self) -> protocol.Published:
        """Delete staged rows of a transaction that peers published so long ago that the journal has trimmed it."""
        self._put_back()
        self._replayer.discard()
        return protocol.Published()

    def _open_inputs(self, t: int) -> protocol.Read | protocol.NoInput:
        if self._read is None:
            if self._queue.waits() and not self._stopping():
                opened = self._replayer.opened
                self._client.check_waiting(t, None if opened is None else opened.steps[0].client)
            self._opened_s = time.monotonic()
            goes_on = self._replayer.opened is not None or self._client.takes(t)
            self._read = self._queue.open(t, continuous=goes_on)
        return protocol.NoInput() if self._read is None else protocol.Read()

    def _append(self, t: int, number: int) -> Appended | protocol.Sealed | protocol.NoInput:
        assert self._read is not None
        opened = self._replayer.opened
        if opened is not None and self._client.begins_next(t, opened.steps[0].client):
            self._put_back()
            return protocol.NoInput()
        assert number == (0 if opened is None else len(opened.steps)), "all that is recorded was fed before"
        client = self._client.client_of(t, None if opened is None else opened.steps[0].client)
        began_at = "" if number else now().isoformat(timespec="milliseconds")
        step = Step(t, self._read.recorded, TRANSFORM, number, client, began_at, self._prices.version)
        current, ours = self._context.journal.append_step(step)
        if ours:
            self._replayer.add(step, self._read, is_new=True)
            self._result.note_step(self._read.inputs)
            self._read = None
            return Appended(step, ours, TRANSFORM)
        self._put_back()
        return protocol.Sealed() if isinstance(current, Seal) else Appended(current, ours, TRANSFORM)

    def _put_back(self) -> None:
        """Put the inputs of an unrecorded step back into the queue. A peer's step may contain some of them; this run
        reads the rest again."""
        if self._read is not None:
            self._queue.put_back(self._read.inputs)
            self._reader.discard(self._read)
            self._read = None

    def _weigh(self, t: int, *, exhausted: bool) -> protocol.Decided:
        opened = self._replayer.opened
        assert opened is not None
        request = self._client.request_of(opened.steps[0].client, t)
        facts = protocol.OpenTransactionStats(len(opened.steps), opened.rows, opened.age_s(), request)
        is_foreign = self._client.is_foreign(opened.steps[0].client)
        verdict = self._policy(facts, exhausted=exhausted or self._stopping() or is_foreign)
        if verdict == "wait" and is_foreign and self._queue.waits():
            self._client.check_owner(opened.steps[0].client)
        if request is None and verdict != "seal":
            # Input that failed before gets a separate transaction, and so does a client's transaction.
            is_cut = self._client.begins_next(t, "") or self._retries.is_suspected(opened.paths())
            verdict = "seal" if is_cut else verdict
        if verdict == "wait":
            self._result.open_transaction = t
        return protocol.Decided(verdict)

    def _publish(self, t: int) -> protocol.Published | protocol.AttemptFailed | protocol.LostRace:
        if self._replayer.opened is None:  # only the commit is missing
            self._result.recovered.append(t)
        recorded, opened = self._context.journal.read(t), self._replayer.opened
        step = recorded.step if opened is None else protocol.merge_steps(opened.steps)
        if step is None or recorded.seal is None or recorded.step != step:
            raise lost_records(t)
        # with rows published, it must finish however often a run crashes on it
        if not self._context.outputs.has_rows(t):
            self._context.tries.begin(t)
        is_new = opened is not None and opened.is_new
        self._queue.prefetch(t + 1, is_new=is_new and self._retries.is_first(t))
        try:
            commit, counts = self._context.outputs.publish(
                step,
                recorded.seal,
                None if opened is None else opened.pieces,
                Guarded(self._context.runner),
                self._tell,
            )
        except InputFaultError as fault:
            return self._replayer.undone(t, fault)
        except OvertakenError:
            return self._overtaken(t)
        self._state_reader.settle(t)
        self._context.tries.over(t)
        self._fit(opened)
        self._replayer.discard()
        result = self._result
        result.transactions.append(t)
        result.ranges += [recorded_range for ranges in step.sources.values() for recorded_range in ranges]
        result.counts.append(counts)
        result.commit = commit
        self._maintain()
        return protocol.Published()

    def _fit(self, opened: OpenTransaction | None) -> None:
        """Record the duration of a one-step transaction in the batch sizer. The duration of other transactions includes
        waiting for input."""
        fitting = self._context.sizer
        if fitting is not None and opened is not None and opened.is_new and len(opened.steps) == 1:
            arrow_bytes = sum(piece.arrow_bytes for piece in opened.pieces)
            seconds = time.monotonic() - self._opened_s
            fitting.record(opened.inputs, arrow_bytes, seconds, was_cut=self._queue.waits())

    def _overtaken(self, t: int) -> protocol.LostRace:
        """Check that transaction T is quarantined, and return LostRace: a peer has appended to table `spans` first."""
        self._state_reader.require_quarantined(t)
        self._replayer.discard()
        return protocol.LostRace()

    def _publish_nothing(self, t: int) -> protocol.Published | protocol.LostRace:
        record = self._context.journal.quarantine_record(t)
        assert record is not None
        self._replayer.discard()
        seal_recorded_steps(self._context.journal, t)
        try:
            self._result.commit = self._context.outputs.publish_nothing(record)
        except OvertakenError:
            return protocol.LostRace()
        self._result.note(self._context.acker.settle(t))
        return protocol.Published()

    def _clean_up(self) -> None:
        """Delete the rows that this attempt staged, ignoring errors. The next attempt reads the input again."""
        self._prefetcher.drop()
        self._replayer.clean_up()
        if self._read is not None:
            with contextlib.suppress(TracelakeError, OSError):
                self._reader.discard(self._read)
        self._context.tries.end()
