"""The pipeline that goes on: it takes what servers received and files that appear, as one of several replicas."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from tracelake import limits
from tracelake._errors import UnreadInputsError
from tracelake.journal.known import KnownInputs
from tracelake.journal.modes import EACH_STEP, StepMode
from tracelake.limits import STORED_EXPANDS, TRANSACTION_INPUT_MAX_BYTES
from tracelake.pipeline.ahead import in_thread
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.fitting import Fitting
from tracelake.pipeline.forgetting import Forgetting
from tracelake.pipeline.inputs import into_transactions
from tracelake.pipeline.outputs.added import AddedOutputs
from tracelake.pipeline.report import report_of
from tracelake.pipeline.sources.added import AddedSources
from tracelake.pipeline.sources.looks import Looks, Seen
from tracelake.pipeline.sources.port import Input
from tracelake.pipeline.sources.registry import own_watches, watch_of
from tracelake.pipeline.telling import with_receipts
from tracelake.replicas.account import BatchCounts, ReplicaProgress, Waiting, default_name
from tracelake.replicas.heartbeat import Heartbeat
from tracelake.replicas.info import describe
from tracelake.results import IngestReport, ReplicaInfo
from tracelake.search.vectors import PLAIN, IndexSettings
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.built_in import BUILT_IN
from tracelake.tasks.pauses import Pauses
from tracelake.tasks.progress import OnProgress, Progress, Stage, silent
from tracelake.tasks.runners import TaskRunner, is_warm

_STAGES: Final[dict[Stage, int]] = {
    "reading": 0,
    "recovering": 0,
    "writing": 1,
    "publishing": 2,
    "compacting": 3,
    "indexing": 3,
}
"""Stages of a transaction in their order; new input and recorded input are read in the same one."""
_MAINTENANCE: Final = _STAGES["compacting"]


class InboxPipeline:
    """Makes transactions of what waits in the inbox and in watched files. One thread uses it.

    Any number of them may work on one lake, in any processes: whichever is first writes a transaction, and
    the others go on behind it.
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
        mode: StepMode = EACH_STEP,
        journal_kept: int | None = None,
    ) -> None:
        """`journal_kept`: of so many transactions the journal keeps what they read; None: it is left to `gc`."""
        tally = BatchCounts()
        self._runner = runner
        known = KnownInputs(key_value, "main")
        self._looks = Looks(
            own_watches(objects, known),
            watch,
            AddedSources(key_value),
            lambda address: watch_of(objects, known, address),
        )
        self._fitting = Fitting(is_warm=lambda: is_warm(runner))
        self._key_value = key_value
        self._forgetting = Forgetting(key_value, journal_kept)
        self._pipeline = Pipeline(
            "main",
            key_value,
            objects,
            buckets,
            runner,
            tally,
            self._fitting,
            in_thread,
            first,
            AddedOutputs(key_value, objects, buckets),
            mode,
        )
        self._pauses_of_inputs = Pauses[tuple[str, str]]()
        self._came_bytes = 0
        self._account = ReplicaProgress(replica or default_name(), tally, len(BUILT_IN))
        self._heartbeat = Heartbeat(key_value, self._account)

    def start(self, *, warm: bool = False, on_namesake: Callable[[str], None] = lambda _: None) -> None:
        """Tell others of this replica from now on, until it is closed.

        Args:
            warm: start Spark now, and not once there is work that needs it.
            on_namesake: is told, once, of another live process that uses the same name.
        """
        if warm:
            self._runner.start()
        self._heartbeat.start(on_namesake)

    def replica(self) -> ReplicaInfo:
        """Return what this replica tells of itself."""
        record = self._account.record()
        return describe(record, upper=record.frontier, now_s=time.time())

    def steps(self) -> int:
        """Return how often it went on to something else; trying again counts, too."""
        return self._account.steps

    def run_once(
        self,
        progress: OnProgress | None = None,
        stopping: Callable[[], bool] = lambda: False,
        *,
        goes_on: bool = False,
    ) -> IngestReport | None:
        """Take all that waits, and finish what an earlier run left; None where there was neither.

        Who `goes_on` calls it again and again: then a bucket that is slow, or has very much, holds nobody up, and
        some of it will be taken by a later call. What failed is tried again after a pause of its own.

        Once `stopping` answers True, the transaction under way is finished and no other is begun.

        Raises:
            UnreadInputsError: some of the inputs could not be read, after all others were taken. They wait;
                its `report` says what was taken.
        """
        with self._accounted():
            started = time.monotonic()
            heard = self._pipeline.listen()
            suspects = self._pipeline.suspects()
            # What a transaction that waits has is left out, too: some looks give no more than the first that they see.
            in_open = {path for _, path in self._pipeline.in_open()} if self._pipeline.waits() else set()
            held = {suspect.path for suspect in suspects} | in_open
            seen = self._look(held, stopping, goes_on=goes_on, ending=heard.is_ending)
            unseen = seen.unseen
            if seen.is_own_unseen:
                heard = self._pipeline.listen(put_off=True)
            waiting = [Input(source, item.path, item.size_bytes) for source, item in seen.waiting]
            failing = self._failing(waiting) if goes_on else {}
            inputs = [item for item in waiting if item.path not in failing]
            if goes_on and not heard.is_ending:
                inputs = self._fitting.some(inputs)
                self._leave(seen, inputs)
            offered = any(suspect.state == "offered" for suspect in suspects)
            if not inputs and not offered and not heard.is_ending and not self._pipeline.unfinished():
                _raise_failures(unseen, failing)
                if goes_on:
                    self._pipeline.rest()
                return None
            self._account.begin("preparing")
            self._get_ready(inputs)
            runs = into_transactions(inputs, TRANSACTION_INPUT_MAX_BYTES)
            follow = with_receipts(self._key_value, self._account.name, self._follow(progress or silent))
            result = self._pipeline.run(runs, follow, stopping, goes_on=goes_on)
            took: set[tuple[str, str]] = set()
            if not stopping():  # else some of them may have been left
                left = self._pipeline.in_open()  # looked for again, since it may be discarded yet
                took = {(item.source, item.path) for item in inputs if item.path not in result.failed} - left
            self._looks.took(took, result.recorded)
            self._account.sources(self._looks.accounts())
            self._note_failures(inputs, result.failed)
            if goes_on and result.transactions:
                self._forgetting.after(result.transactions[-1] + 1)
            if result.waits is not None and not result.steps and not result.transactions:
                _raise_failures(unseen, failing | result.failed)
                return None
            report = report_of(result, time.monotonic() - started)
            _raise_failures(unseen, failing | result.failed, report)
            return report

    def close(self) -> None:
        """End Spark, and say no more of this replica."""
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
        if self._account.went_well():
            self._heartbeat.soon()

    def _look(
        self, held: Collection[str], stopping: Callable[[], bool], *, goes_on: bool, ending: bool
    ) -> Seen:
        """Return what waits, each source in its turn, and why some source saw nothing; note it."""
        self._account.begin("looking for input")
        seen = self._looks.look(held, goes_on=goes_on, ending=ending, stopping=stopping)
        self._account.sources(self._looks.accounts())
        self._account.look(self._pipeline.upper(), _by_age(item for _, item in seen.waiting))
        return seen

    def _leave(self, seen: Seen, inputs: Sequence[Input]) -> None:
        """Note what waits on for the next look."""
        taken = {(item.source, item.path) for item in inputs}
        left = (item for source, item in seen.waiting if (source, item.path) not in taken)
        self._account.leave(_by_age(left))

    def _get_ready(self, inputs: Sequence[Input]) -> None:
        """Start what does large work once as much has come as makes some: else the first would wait for it.

        Of what comes in small transactions compaction makes large ones.
        """
        self._came_bytes += sum(item.size_bytes for item in inputs)
        if self._came_bytes * STORED_EXPANDS > limits.NEAR_WORK_MAX_BYTES:
            self._runner.start()

    def _failing(self, waiting: Sequence[Input]) -> dict[str, str]:
        """Return the paths of inputs that failed and are not to be tried yet, with the reason."""
        reasons = ((item.path, self._pauses_of_inputs.failing((item.source, item.path))) for item in waiting)
        return {path: reason for path, reason in reasons if reason is not None}

    def _note_failures(self, inputs: Sequence[Input], failed: Mapping[str, str]) -> None:
        for item in inputs:
            if item.path in failed:
                self._pauses_of_inputs.failed((item.source, item.path), failed[item.path])
            else:
                self._pauses_of_inputs.went_well((item.source, item.path))

    def _follow(self, progress: OnProgress) -> OnProgress:
        """Return what notes progress in the account, and passes it on."""

        maintained = 0  # tasks, after a transaction, before the next

        def note(step: Progress) -> None:
            nonlocal maintained
            at, done = step.transaction, step.done
            if _STAGES[step.stage] == _MAINTENANCE:
                at, done = self._account.frontier - 1, (maintained := maintained + (step.done != 0))
            which = "new input" if step.transaction is None else f"transaction {step.transaction}"
            doing = f"{step.stage} {which}, {step.done} of {step.total} {step.unit} done"
            self._account.reach(at, _STAGES[step.stage], done, doing)
            if step.stage == "publishing" and step.done == step.total and step.transaction is not None:
                self._account.committed(step.transaction)
                self._heartbeat.soon()
            progress(step)

        return note


def _by_age(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Return the oldest first."""
    return sorted(waiting, key=lambda item: item.since_s)


def _raise_failures(
    unseen: Sequence[str], failed: Mapping[str, str], report: IngestReport | None = None
) -> None:
    """Say what could not be taken this time, once all else is in. Raises UnreadInputsError."""
    if failed:
        path, reason = next(iter(failed.items()))
        unseen = [
            *unseen,
            f"{len(failed)} of the inputs could not be read and are tried again, {path} among them: {reason}",
        ]
    if unseen:
        raise UnreadInputsError(f"{'; '.join(unseen)}. All others are in.", report)
