"""Adaptive batch sizes with clocks that jump and tasks that fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Final, TypeVar

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tracelake.journal.model import inputs_of
from tracelake.journal.store import Journal
from tracelake.limits import TRANSACTION_TRIES_MAX
from tracelake.pipeline.batch_sizing import BatchSize, BatchSizer, Bounds
from tracelake.pipeline.decode_task import ReadTask
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.merge_task import TransactionMergeTask
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.testing import Process, Run
from tracelake.versions.repository import Repository

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
BOUNDS: Final = Bounds(first=BatchSize(4, 2), least=BatchSize(1, 1), greatest=BatchSize(8, 3))
ROWS: Final = ("0", "1", "2abcdefgh", "3", "4", "5", "6")
"""Contents of segments, a row a character; one is larger than a transaction with other segments may be."""
FAILING: Final = {ReadTask: 2, TransactionMergeTask: 3}
"""The job of each kind that fails in each process, as if out of memory; the next attempt succeeds."""
DURATIONS_S: Final = (0.0, 1e-9, 1e18, -1e18, -1.0, 1.0)


class JumpingClock(BatchSizer):
    """Batch sizes of a pipeline with unreliable clocks."""

    def __init__(self) -> None:
        super().__init__(BOUNDS)
        self._durations_s = cycle(DURATIONS_S)

    def record(self, inputs: Sequence[Input], arrow_bytes: int, seconds: float, *, was_cut: bool) -> None:
        del seconds
        super().record(inputs, arrow_bytes, next(self._durations_s), was_cut=was_cut)


class MoodyTasks(SimulatedTasks):
    """Tasks that fail once as they read and once as they merge."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._jobs: Counter[type] = Counter()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        kind = type(tasks[0])
        self._jobs[kind] += 1
        if FAILING.get(kind) == self._jobs[kind]:
            raise OverflowError("the sum does not fit")
        return super().run(function, tasks, on_done)


class FittingScenario(PipelineScenario):
    """Replicas that drain a backlog in order: at least one input each time, the oldest first, never too much."""

    name = "fitting"
    steps_max = 8_000

    def __init__(self, replicas: int = 2) -> None:
        super().__init__(replicas, len(ROWS))

    def prepare(self, run: Run) -> None:
        for number, rows in enumerate(ROWS):
            run.objects.put(f"inbox/{number}", rows.encode())

    def rows(self) -> str:
        return "".join(ROWS)

    def _run(self, process: Process) -> None:
        inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
        Pipeline(
            "main",
            process.key_value,
            process.objects,
            BUCKETS,
            MoodyTasks(process),
            sizer=JumpingClock(),
        ).run([inputs])

    def check(self, run: Run) -> None:
        """All inputs are in once, in their order; no transaction is empty or beyond the bounds."""
        super().check(run)
        repository = Repository(run.direct_key_value, run.direct_objects)
        head = repository.head()
        assert head is not None
        journal, paths = Journal(run.direct_key_value, "main"), []
        for t in range(repository.transaction_of(head) + 1):
            step = journal.read(t).step
            assert step is not None
            taken = list(inputs_of(step.sources.get(INBOX, ())))
            size = BatchSize(sum(each.size_bytes for each in taken), len(taken))
            require(size.inputs > 0, f"transaction {t} takes nothing")
            within = size.inputs <= BOUNDS.greatest.inputs and size.input_bytes <= BOUNDS.greatest.input_bytes
            require(size.inputs == 1 or within, f"transaction {t} takes {size}")
            paths += [each.path for each in taken]
        # otherwise, it may be bisected
        if sum(process.attempt for process in run.processes) < TRANSACTION_TRIES_MAX:
            require(paths == sorted(paths), f"what came first is not taken first: {paths}")
