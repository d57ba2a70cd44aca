"""Continuous pipeline of a replica. It takes the inbox of the servers, watched files and configured sources.

It runs in a separate thread, shares the work with other replicas, and records receipts of published transactions. It
trims its journal in small portions, so that no lake depends on `gc` for it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

from tracelake import limits
from tracelake._errors import DamageError, StorageError, UnreadInputsError
from tracelake.journal.protocol import EACH_STEP, CommitPolicy
from tracelake.journal.store import IngestedFiles, Journal, PublishReceipt, PublishReceipts, trim
from tracelake.limits import STORED_EXPANDS, TRANSACTION_INPUT_MAX_BYTES
from tracelake.pipeline.batch_sizing import BatchSizer
from tracelake.pipeline.decode_task import group_inputs
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_queue import in_thread
from tracelake.pipeline.outputs.configured import AddedOutputs
from tracelake.pipeline.protocol import OUTBOX_WAIT_S
from tracelake.pipeline.registrations import AddedSources
from tracelake.pipeline.run_result import now, report_of
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.poller import PollResult, SourcePoller
from tracelake.pipeline.sources.registry import own_watches, watch_of
from tracelake.replicas.replica import (
    BacklogEntry,
    BatchCounts,
    Heartbeat,
    ReplicaProgress,
    default_name,
    describe,
)
from tracelake.results import IngestReport, ReplicaInfo
from tracelake.search.vectors import PLAIN, IndexSettings
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.storage.local import is_disk_full
from tracelake.tables.builtin import BUILT_IN
from tracelake.tasks.backoff import Backoff, PeriodicThread, backoff_s
from tracelake.tasks.runners import OnProgress, Progress, Stage, TaskRunner, is_warm, silent

JOURNAL_TRIM_EACH: Final = 100
"""Transactions after which a continuous pipeline trims its journal."""
JOURNAL_TRIM_MAX: Final = 2_000
"""Transactions whose records one trim erases."""
_DISK_FULL_TOLD_EACH_S: Final = 300.0
"""Interval at which a pipeline logs that a disk is full, while each attempt fails for that reason."""


def recording_receipts(key_value: KeyValueStore, name: str | None, progress: OnProgress) -> OnProgress:
    """Return a progress callback that passes progress on and records a receipt of each published transaction."""
    receipts, recorded_by = PublishReceipts(key_value, "main"), name or default_name()
    publish_times: dict[int, list[float]] = {}

    def note(step: Progress) -> None:
        progress(step)
        t = step.transaction
        if step.stage != "publishing" or t is None:
            return
        if step.done == 0:
            publish_times.clear()
            publish_times[t] = []
        if t not in publish_times:
            return
        at = now()
        publish_times[t].append(at.timestamp())
        if step.done == step.total:
            times = publish_times.pop(t)
            step_durations_s = tuple(round(max(0.0, after - before), 6) for before, after in pairwise(times))
            written_at = type(at).fromtimestamp(times[0], at.tzinfo).isoformat(timespec="microseconds")
            committed_at = at.isoformat(timespec="microseconds")
            receipts.note(
                PublishReceipt(t, written_at, committed_at, step_durations_s, recorded_by, step.commit)
            )

    return note


_NEVER: Final = -1


class JournalTrimmer:
    """Trims the journal of a pipeline to the last `retained` transactions. With None it does nothing, and only `gc`
    trims the journal."""

    def __init__(self, key_value: KeyValueStore, retained: int | None) -> None:
        self._journal = Journal(key_value, "main")
        self._retained = retained
        self._at = _NEVER

    def after(self, upper: int) -> None:
        """Trim the journal if enough transactions were committed since the last trim. All transactions below `upper`
        must be committed. A later call retries after a failure."""
        if self._retained is None or (self._at != _NEVER and upper - self._at < JOURNAL_TRIM_EACH):
            return
        self._at = upper
        with contextlib.suppress(StorageError, DamageError):  # `gc` and `verify` report damage
            old = upper - self._journal.floor() - self._retained
            if old >= JOURNAL_TRIM_EACH or (old > 0 and self._retained < JOURNAL_TRIM_EACH):
                trim(self._journal, upper, self._retained + max(0, old - JOURNAL_TRIM_MAX))


_STAGES: Final[dict[Stage, int]] = {
    "reading": 0,
    "recovering": 0,
    "writing": 1,
    "publishing": 2,
    "compacting": 3,
    "indexing": 3,
}
"""Stages of a transaction in order. New and recorded input share the first."""
_MAINTENANCE: Final = _STAGES["compacting"]


class InboxPipeline:
    """Pipeline that commits the pending input of the inbox, watched files and configured sources. One thread may use
    it.

    Any number of such pipelines, in any processes, may work on one lake. The fastest one commits a transaction, and the
    others continue with the next.
    """

    def __init__(
        self,
        key_value: KeyValueStore,
        objects: ObjectStore,
        buckets: int,
        runner: TaskRunner,
        *,
        replica: str | None = None,
        watch: Sequence[str] = (),
        first: IndexSettings = PLAIN,
        mode: CommitPolicy = EACH_STEP,
        journal_kept: int | None = None,
        outbox_wait_s: float = OUTBOX_WAIT_S,
    ) -> None:
        """Create a pipeline. It trims the journal to the last `journal_kept` transactions; with None, only `gc` trims
        the journal. Continuous runs let rows of the outbox wait up to `outbox_wait_s` seconds for more."""
        tally = BatchCounts()
        self._runner = runner
        ingested = IngestedFiles(key_value, "main")
        self._poller = SourcePoller(
            own_watches(objects, ingested, outbox_wait_s),
            watch,
            AddedSources(key_value),
            lambda address: watch_of(objects, ingested, address),
        )
        self._sizer = BatchSizer(is_warm=lambda: is_warm(runner))
        self._key_value = key_value
        self._trimmer = JournalTrimmer(key_value, journal_kept)
        self._pipeline = Pipeline(
            "main",
            key_value,
            objects,
            buckets,
            runner,
            tally,
            self._sizer,
            in_thread,
            first,
            AddedOutputs(key_value, objects, buckets),
            mode,
        )
        self._input_backoff = Backoff[tuple[str, str]]()
        self._arrived_bytes = 0
        self._account = ReplicaProgress(replica or default_name(), tally, len(BUILT_IN))
        self._heartbeat = Heartbeat(key_value, self._account)

    def start(self, *, warm: bool = False, on_namesake: Callable[[str], None] = lambda _: None) -> None:
        """Start the heartbeat of this replica, which ends with `close`.

        Args:
            warm: start Spark now. By default, Spark starts when a task first needs it.
            on_namesake: called once if another live process uses the same replica name.
        """
        if warm:
            self._runner.start()
        self._heartbeat.start(on_namesake)

    def replica(self) -> ReplicaInfo:
        """Return the status of this replica."""
        record = self._account.record()
        return describe(record, upper=record.frontier, now_s=time.time())

    def steps(self) -> int:
        """Return the number of steps so far, including retries."""
        return self._account.steps

    def run_once(
        self,
        progress: OnProgress | None = None,
        stopping: Callable[[], bool] = lambda: False,
        *,
        goes_on: bool = False,
    ) -> IngestReport | None:
        """Finish what an earlier run left, then take all pending input. Return None if there was nothing to do.

        With `goes_on`, the caller calls again and again, so a slow or very large bucket does not delay other sources: a
        later call takes the rest. Failed inputs are retried after a backoff. Once `stopping` returns True, the current
        transaction finishes and no other begins.

        Raises:
            UnreadInputsError: some inputs could not be read, after all others were taken. They stay pending. The
                error's `report` has the result of the run.
        """
        with self._accounted():
            started = time.monotonic()
            client = self._pipeline.snapshot_client()
            suspects = self._pipeline.suspects()
            # Exclude input of the open transaction too, because some sources list only the first inputs that
            # they find.
            open_paths = (
                {path for _, path in self._pipeline.open_inputs()}
                if self._pipeline.has_open_transaction()
                else set()
            )
            excluded_paths = {suspect.path for suspect in suspects} | open_paths
            polled = self._poll(excluded_paths, stopping, continuous=goes_on, ending=client.is_ending)
            unseen = polled.unseen
            if polled.is_own_unseen:
                client = self._pipeline.snapshot_client(defer_commit=True)
            waiting = [Input(source, item.path, item.size_bytes) for source, item in polled.waiting]
            failing = self._failing(waiting) if goes_on else {}
            inputs = [item for item in waiting if item.path not in failing]
            if goes_on and not client.is_ending:
                inputs = self._sizer.some(inputs)
                self._record_backlog(polled, inputs)
            offered = any(suspect.state == "offered" for suspect in suspects)
            if not inputs and not offered and not client.is_ending and not self._pipeline.unfinished():
                _raise_failures(unseen, failing)
                if goes_on:
                    self._pipeline.on_idle()
                return None
            self._account.begin("preparing")
            self._get_ready(inputs)
            runs = group_inputs(inputs, TRANSACTION_INPUT_MAX_BYTES)
            follow = recording_receipts(self._key_value, self._account.name, self._follow(progress or silent))
            result = self._pipeline.run(runs, follow, stopping, continuous=goes_on)
            taken_inputs: set[tuple[str, str]] = set()
            if not stopping():  # otherwise some may not have been taken
                still_open = (
                    self._pipeline.open_inputs()
                )  # read again, because the transaction may still be discarded
                taken_inputs = {
                    (item.source, item.path) for item in inputs if item.path not in result.failed
                } - still_open
            self._poller.took(taken_inputs, result.recorded)
            self._account.sources(self._poller.accounts())
            self._note_failures(inputs, result.failed)
            if goes_on and result.transactions:
                self._trimmer.after(result.transactions[-1] + 1)
            if result.open_transaction is not None and not result.steps and not result.transactions:
                _raise_failures(unseen, failing | result.failed)
                return None
            report = report_of(result, time.monotonic() - started)
            _raise_failures(unseen, failing | result.failed, report)
            return report

    def close(self) -> None:
        """Stop the heartbeat, the pipeline and Spark."""
        self._heartbeat.stop()
        self._pipeline.close()
        self._runner.stop()

    @contextmanager
    def _accounted(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._account.failed(error)
            self._heartbeat.soon()
            raise
        if self._account.succeeded():
            self._heartbeat.soon()

    def _poll(
        self, excluded_paths: Collection[str], stopping: Callable[[], bool], *, continuous: bool, ending: bool
    ) -> PollResult:
        """Return and record the pending input of all sources, taken in turn, and the errors of sources that failed."""
        self._account.begin("looking for input")
        polled = self._poller.look(excluded_paths, continuous=continuous, ending=ending, stopping=stopping)
        self._account.sources(self._poller.accounts())
        self._account.look(self._pipeline.upper(), _by_age(item for _, item in polled.waiting))
        return polled

    def _record_backlog(self, polled: PollResult, inputs: Sequence[Input]) -> None:
        """Record the backlog that remains for the next poll."""
        selected = {(item.source, item.path) for item in inputs}
        backlog = (item for source, item in polled.waiting if (source, item.path) not in selected)
        self._account.leave(_by_age(backlog))

    def _get_ready(self, inputs: Sequence[Input]) -> None:
        """Start the runner for large tasks once enough input has arrived to need it, because a large task would
        otherwise wait for the start. Many small transactions count too, because compaction makes large tasks of them.
        """
        new_bytes = sum(item.size_bytes for item in inputs)
        self._arrived_bytes += new_bytes
        is_large = new_bytes * STORED_EXPANDS > limits.SMALL_WORK_MAX_BYTES
        if is_large or self._arrived_bytes * STORED_EXPANDS > limits.NEAR_WORK_MAX_BYTES:
            self._runner.start()

    def _failing(self, waiting: Sequence[Input]) -> dict[str, str]:
        """Return the paths of failed inputs that are still in backoff, with the reasons."""
        reasons = ((item.path, self._input_backoff.failing((item.source, item.path))) for item in waiting)
        return {path: reason for path, reason in reasons if reason is not None}

    def _note_failures(self, inputs: Sequence[Input], failed: Mapping[str, str]) -> None:
        for item in inputs:
            if item.path in failed:
                self._input_backoff.failed((item.source, item.path), failed[item.path])
            else:
                self._input_backoff.succeeded((item.source, item.path))

    def _follow(self, progress: OnProgress) -> OnProgress:
        """Return a progress callback that updates the replica's status and passes the progress on."""

        maintained = 0  # maintenance tasks since the last transaction

        def note(step: Progress) -> None:
            nonlocal maintained
            at, completed = step.transaction, step.done
            if _STAGES[step.stage] == _MAINTENANCE:
                at, completed = self._account.frontier - 1, (maintained := maintained + (step.done != 0))
            which = "new input" if step.transaction is None else f"transaction {step.transaction}"
            where = f" ({step.engine})" if step.engine else ""
            doing = f"{step.stage} {which}{where}, {step.done} of {step.total} {step.unit} done"
            self._account.reach(at, _STAGES[step.stage], completed, doing)
            if step.stage == "publishing" and step.done == step.total and step.transaction is not None:
                self._account.committed(step.transaction)
                self._heartbeat.soon()
            progress(step)

        return note


def _by_age(waiting: Iterable[BacklogEntry]) -> list[BacklogEntry]:
    """Return the backlog, oldest first."""
    return sorted(waiting, key=lambda item: item.since_s)


def _raise_failures(
    unseen: Sequence[str], failed: Mapping[str, str], report: IngestReport | None = None
) -> None:
    """Raise UnreadInputsError if some input could not be taken."""
    if failed:
        path, reason = next(iter(failed.items()))
        unseen = [
            *unseen,
            f"{len(failed)} of the inputs could not be read and are retried, including {path}: {reason}",
        ]
    if unseen:
        raise UnreadInputsError(f"{'; '.join(unseen)}. All others were ingested.", report)


logger = logging.getLogger("tracelake.pipeline")


class PipelineLoop(PeriodicThread):
    """Thread that calls a function until it is stopped. Each failure is logged, available as `problem`, and retried.

    Retrying is safe for every failure, because only data that agrees with the journal is published. The cause may
    disappear: a store recovers, a changed input is restored, or a lake is repaired. No supervisor therefore has to
    restart the pipeline.
    """

    def __init__(
        self,
        run_once: Callable[[], object | None],
        interval_s: float,
        on_failure: Callable[[Exception, float], None] | None = None,
    ) -> None:
        """Create a loop.

        Args:
            interval_s: the pause after a run that found nothing (None). It doubles with each consecutive failure.
            on_failure: called with the error and the seconds until the retry, instead of the log.

        Unreadable inputs do not slow others down: each has its own backoff and is reported once.
        """
        self._run_once = run_once
        self._interval_s = interval_s
        self._on_failure = on_failure or _log
        self._problem: str | None = None
        self._failures, self._disk_full_reported_s = 0, float("-inf")
        # A process that gets a second stop signal abandons a long transaction to the next process.
        super().__init__("tracelake-pipeline", self._step)

    def problem(self) -> str | None:
        """Return the error of the last run, None if it succeeded."""
        return self._problem

    def _step(self) -> float:
        try:
            report = self._run_once()
        except UnreadInputsError as error:
            is_news = self._problem != str(error)
            self._failures, self._problem = 0, str(error)
            if is_news:
                self._on_failure(error, self._interval_s)
            return self._interval_s
        except Exception as error:  # noqa: BLE001  after any failure, the inbox keeps its input
            self._failures += 1
            self._problem = f"the pipeline failed {self._failures} times, last: {error}; it will retry"
            pause_s = backoff_s(self._interval_s, self._failures, limits.PIPELINE_PAUSE_MAX_S)
            if not is_disk_full(error):
                self._on_failure(error, pause_s)
            elif time.monotonic() >= self._disk_full_reported_s + _DISK_FULL_TOLD_EACH_S:
                self._disk_full_reported_s = time.monotonic()
                self._on_failure(error, pause_s)
            return pause_s
        self._failures, self._problem, self._disk_full_reported_s = 0, None, float("-inf")
        return self._interval_s if report is None else 0.0


def _log(error: Exception, _pause_s: float) -> None:
    if isinstance(error, UnreadInputsError):
        logger.error("%s", error)  # the message says everything
    elif is_disk_full(error):
        logger.error(
            "the pipeline cannot continue, because a disk is full. The inbox keeps its input; the pipeline "
            "continues once there is space: %s",
            str(error)[: limits.PROBLEM_MAX_CHARS],
        )
    else:
        logger.error("the pipeline failed and will retry; the inbox keeps its input", exc_info=error)
