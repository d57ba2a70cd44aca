"""Dependencies of a pipeline, and the choice of where its tasks run.

Small tasks run in the pipeline's process. A task that crashes the process also ends the pipeline and a server that
hosts it. Such a task therefore runs there only once: after a restart, the crash markers (`input_failures.py`) show the
crash, and Spark runs the tasks, because its workers may crash. Spark also runs tasks of quarantined input, and
maintenance after a crash.

Maintenance on workers runs at low priority. In this process it runs at normal priority, because a thread that gets no
CPU would keep the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

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
from tracelake.tasks.runners import LowPriorityRunner, ReceiptT, SizedRunner, TaskRunner, TaskT


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

    def start(self) -> None:
        """See TaskRunner."""
        self._by_work.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks, in this process only if the crash markers allow it."""
        with self._new_try() as is_harmless:
            runner = self._by_work.of(tasks, may_run_in_process=is_harmless)
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


@dataclass(frozen=True, slots=True)
class PipelineContext:
    """Dependencies of a pipeline."""

    journal: Journal
    clients: ExplicitTransactions
    sources: SourceRegistry
    suspects: QuarantineStore
    outputs: Outputs
    acker: InputAcker
    objects: ObjectStore
    buckets: int
    runner: TaskRunner
    maintainer: Maintainer
    merger: IndexMerger
    tries: CrashMarkers
    maintenance_tries: CrashMarkers
    """Separate markers, because maintenance may run concurrently with transactions."""
    unread: UnreadableInputs
    prices: Prices
    sizer: BatchSizer | None
    """None: transactions take the groups of inputs as given."""

    @classmethod
    def of(
        cls,
        name: str,
        key_value: KeyValueStore,
        objects: ObjectStore,
        buckets: int,
        runner: TaskRunner,
        tally: BatchCounts | None,
        sizer: BatchSizer | None,
        initial_index: IndexSettings,
        added: AddedOutputs | None,
    ) -> PipelineContext:
        """Open the dependencies of a pipeline."""
        journal = Journal(key_value, name)
        sources = SourceRegistry(objects, IngestedFiles(key_value, name))
        suspects = QuarantineStore(key_value, name)
        outputs = Outputs(key_value, objects, buckets, tally, initial_index, added)
        acker = InputAcker(journal, sources, suspects, outputs)
        tries = CrashMarkers(key_value, name)
        maintenance_tries = tries.another()
        runner, maintaining = runners(runner, tries, maintenance_tries)
        window_s = find_window()
        maintainer = Maintainer(key_value, objects, maintaining, window_s=window_s)
        merger = IndexMerger(IndexBuilder(key_value, objects, buckets, maintaining), window_s)
        return cls(
            journal,
            ExplicitTransactions(key_value, name),
            sources,
            suspects,
            outputs,
            acker,
            objects,
            buckets,
            runner,
            maintainer,
            merger,
            tries,
            maintenance_tries,
            UnreadableInputs(key_value, name),
            Prices(key_value),
            sizer,
        )
