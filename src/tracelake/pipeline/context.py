"""Dependencies of a pipeline, the choice of where its tasks run, and the schedule of its maintenance.

Small tasks run in the pipeline's process. A task that crashes the process also ends the pipeline and a server that
hosts it. Such a task therefore runs there only once: after a restart, the crash markers (`input_failures.py`) show
the crash, and Spark runs the tasks, because its workers may crash. Spark also runs tasks of quarantined input, and
maintenance after a crash.

Maintenance on workers runs at low priority. In this process it runs at normal priority, because a thread that gets no
CPU would keep the interpreter lock.

Maintenance is compaction of tables, index merges, and garbage collection of replaced files. Correctness never depends
on maintenance, only latency does. Maintenance may take long, for example for a large merge or until Spark has
started. A continuous pipeline therefore runs it in the background, one pass at a time, while it commits transactions.
The pipeline waits for maintenance only after too many commits without it, because readers would have to open too many
small parts. A one-shot run executes maintenance inline.

If no input arrives for some time, index parts are merged further than is due, because a search opens each part.
Replicas delay this by a random factor of one to two, so that one of them does it for all.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from tracelake._settings import find_window
from tracelake.indexing.build import IndexBuilder
from tracelake.indexing.merge import IndexMerger
from tracelake.journal.explicit_transactions import ExplicitTransactions
from tracelake.journal.prices import Prices
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import IngestedFiles, Journal
from tracelake.pipeline.batch_sizing import BatchSizer
from tracelake.pipeline.input_failures import CrashMarkers, UnreadableInputs
from tracelake.pipeline.outputs.configured import AddedOutputs
from tracelake.pipeline.publish import InputAcker, Outputs
from tracelake.pipeline.sources.registry import SourceRegistry
from tracelake.replicas.replica import BatchCounts
from tracelake.search.vectors import IndexSettings
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks.runners import (
    LowPriorityRunner,
    OnProgress,
    Progress,
    ReceiptT,
    SizedRunner,
    TaskRunner,
    TaskT,
    engine_of,
)

if TYPE_CHECKING:
    from tracelake.pipeline.input_queue import StartWork


class CrashAwareRunner:
    """Task runner that runs small tasks in this process, unless the crash markers show that a process crashed on
    them."""

    def __init__(
        self,
        by_work: SizedRunner,
        new_try: Callable[[], AbstractContextManager[bool]],
        *,
        gives_way: bool = False,
    ) -> None:
        """Create a runner. With `gives_way`, tasks on workers run at low priority."""
        self._by_work = by_work
        self._new_try = new_try
        self._gives_way = gives_way
        self.engine = ""

    def start(self) -> None:
        """See TaskRunner."""
        self._by_work.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks, in this process only if the crash markers allow it."""
        with self._new_try() as is_harmless:
            runner = self._by_work.of(tasks, may_run_in_process=is_harmless)
            self.engine = engine_of(runner)
            return (low_priority(runner) if self._gives_way else runner).run(function, tasks, on_done)

    def stop(self) -> None:
        """See TaskRunner."""
        self._by_work.stop()


def low_priority(runner: TaskRunner) -> TaskRunner:
    """Return a runner that gives its tasks low priority, if they run in other processes."""
    return LowPriorityRunner(runner) if getattr(runner, "has_workers", False) else runner


def runners(
    runner: TaskRunner, tries: CrashMarkers, of_maintenance: CrashMarkers
) -> tuple[TaskRunner, TaskRunner]:
    """Return the runners for transactions and for maintenance. The driver writes the crash markers of transactions
    itself."""
    if isinstance(runner, SizedRunner):
        tried = CrashAwareRunner(runner, lambda: nullcontext(tries.is_harmless()))
        return tried, CrashAwareRunner(runner, of_maintenance.maintaining, gives_way=True)
    return runner, low_priority(runner)


class PipelineContext:
    """Dependencies of a pipeline."""

    def __init__(
        self,
        name: str,
        key_value: KeyValueStore,
        objects: ObjectStore,
        buckets: int,
        runner: TaskRunner,
        tally: BatchCounts | None,
        sizer: BatchSizer | None,
        initial_index: IndexSettings,
        added: AddedOutputs | None,
    ) -> None:
        """Open the dependencies of a pipeline. Without a sizer, transactions take the groups of inputs as given."""
        self.objects, self.buckets, self.sizer = objects, buckets, sizer
        self.journal = Journal(key_value, name)
        self.clients = ExplicitTransactions(key_value, name)
        self.sources = SourceRegistry(objects, IngestedFiles(key_value, name))
        self.suspects = QuarantineStore(key_value, name)
        self.unread = UnreadableInputs(key_value, name)
        self.prices = Prices(key_value)
        self.outputs = Outputs(key_value, objects, buckets, tally, initial_index, added)
        self.acker = InputAcker(self.journal, self.sources, self.suspects, self.outputs)
        self.tries = CrashMarkers(key_value, name)
        self.maintenance_tries = self.tries.another()
        """Separate markers, because maintenance may run concurrently with transactions."""
        self.runner, maintaining = runners(runner, self.tries, self.maintenance_tries)
        window_s = find_window()
        self.maintainer = Maintainer(key_value, objects, maintaining, window_s=window_s)
        self.merger = IndexMerger(IndexBuilder(key_value, objects, buckets, maintaining), window_s)


MAINTENANCE_BEHIND_MAX: Final = 256
"""Transactions that a pipeline commits during one maintenance pass."""
INDEX_REST_AFTER_S: Final = 60.0
"""Idle time after which a pipeline merges index parts further; the actual time is one to two times as long."""


class MaintenanceScheduler:
    """Maintenance scheduler of one pipeline, called from one thread."""

    def __init__(self, context: PipelineContext, start_work: StartWork | None) -> None:
        """Create a scheduler. `start_work` runs maintenance in the background; with None, the scheduler runs it
        inline."""
        self._context = context
        self._start_work = start_work
        self._lock = threading.Lock()
        self._pending_commits = 0
        """Commits since the current pass began."""
        self._is_under_way = False
        self._is_idle = False
        """True if the index is merged further, or was, because no input arrived for long."""
        self._last_commit_s = time.monotonic()
        self._lateness = random.uniform(1.0, 2.0)  # noqa: S311  no secret
        self._wait: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        self._awaited_by: OnProgress | None = None

    def after_commit(self, progress: OnProgress, *, continuous: bool, committed: bool = True) -> None:
        """Run due maintenance: inline, or in the background with `continuous`.

        With `committed=False`, as while a client's transaction is open, never wait for background work. Expected
        failures are logged. Unexpected ones are raised, including those of earlier background work.
        """
        if committed:
            self._last_commit_s, self._is_idle = time.monotonic(), False
        if self._start_work is None or not continuous:
            self.end()
            self._maintain(progress)
            return
        with self._lock:
            if self._is_under_way and not committed:
                return
            is_far_behind = self._pending_commits >= MAINTENANCE_BEHIND_MAX
            self._pending_commits = 0 if is_far_behind else self._pending_commits + 1
        if is_far_behind:
            self._awaited_by = progress
            try:
                self.end()  # waits for this pass only; it starts no other
            finally:
                self._awaited_by = None
        with self._lock:
            self._pending_commits = max(self._pending_commits, 1)
            is_under_way, self._is_under_way = self._is_under_way, True
        if not is_under_way:
            self._begin(self._start_work)

    def on_idle(self) -> None:
        """Signal that no input is pending. After a long pause, merge the index further in the background, once.

        A failed merge is retried after a backoff. Never waits. Raises failures of earlier background work.
        """
        late_s = INDEX_REST_AFTER_S * self._lateness
        with self._lock:
            if (
                self._start_work is None
                or self._is_under_way
                or (self._is_idle and not self._tries_again())
                or time.monotonic() < self._last_commit_s + late_s
            ):
                return
            self._pending_commits, self._is_under_way, self._is_idle = 1, True, True
        self._begin(self._start_work)

    def stop(self) -> None:
        """Wait for the current pass, which may take long, and prevent further ones. Raises the failure of the pass."""
        with self._lock:
            self._pending_commits = 0
        self.end()

    def end(self) -> None:
        """Wait for background work. Raises the failure of that work."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _begin(self, start_work: StartWork) -> None:
        try:
            self.end()
            self._wait = start_work(self._work)
        except BaseException:  # for example, if no thread can start
            self._is_under_way = False
            raise

    def _work(self) -> None:
        """Run due maintenance, and repeat it if commits arrived in the meantime."""
        while True:
            with self._lock:
                if not self._pending_commits or self._failure is not None:
                    self._is_under_way = False
                    return
                self._pending_commits = 0
            try:
                self._maintain(self._tell)
            except BaseException as error:  # noqa: BLE001  the pipeline gets any failure
                self._failure = error

    def _tell(self, step: Progress) -> None:
        """Send the heartbeat of the crash marker. If a transaction waits for maintenance, also report the progress."""
        self._context.maintenance_tries.beat()
        if (awaited_by := self._awaited_by) is not None:
            awaited_by(step)

    def _tries_again(self) -> bool:
        return self._context.merger.tries_again() or self._context.maintainer.tries_again()

    def _maintain(self, progress: OnProgress) -> None:
        rooms = self._context
        for output in rooms.outputs.tables.values():
            rooms.maintainer.maintain(output.shard, output.table.sorted_by, progress)
        rooms.merger.maintain(progress, is_idle=self._is_idle)
        rooms.maintenance_tries.maintenance_over()
