"""Replicas on separate machines, some of which die of an input: dead replicas are counted, slow ones are not.

No replica sees another's processes. A replica that dies comes back without its state, under another name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias, TypeVar

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks, is_read
from tests.simulation.scenarios import require
from tracelake.journal.quarantine import QuarantineStore
from tracelake.pipeline.decode_task import ReadTask
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.merge_task import TransactionMergeTask
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.shards.shard import Shard
from tracelake.testing import Process, Run

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
Stage: TypeAlias = Literal["read", "merge"]
DEADLY = "0"
"""The segment that kills every process that reads or merges it."""
TASK_S = 24
"""Duration of tasks: longer than any liveness check of their process."""


class DiedError(BaseException):
    """The process has died without a message."""


class SlowTasks(SimulatedTasks):
    """Slow tasks that kill their process at a stage."""

    def __init__(self, process: Process, deadly: Stage | None) -> None:
        super().__init__(process)
        self._deadly = deadly

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        for task in tasks:
            if self._kills(task):
                raise DiedError
        if self._deadly is None:
            for _ in range(TASK_S):
                self._process.sleep(1)
                on_done(0)
        return super().run(function, tasks, on_done)

    def _kills(self, task: object) -> bool:
        if isinstance(task, ReadTask):
            return self._deadly == "read" and is_read(task, f"inbox/{DEADLY}")
        return (
            self._deadly == "merge"
            and isinstance(task, TransactionMergeTask)
            and any(piece.path.endswith(DEADLY) for piece in task.pieces)
        )


class DeathsScenario(PipelineScenario):
    """Replicas that empty an inbox in transactions of all pending input; with a stage, all of them die of one
    segment."""

    name = "deaths"
    steps_max = 4_000

    def __init__(self, deadly: Stage | None = None, replicas: int = 2, segments: int = 3) -> None:
        super().__init__(replicas, segments)
        self._deadly = deadly

    def _run(self, process: Process) -> None:
        while True:
            tasks = SlowTasks(process, self._deadly)
            pipeline = Pipeline("main", process.key_value, process.objects, BUCKETS, tasks)
            inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
            try:
                pipeline.run([inputs])
                return
            except DiedError:
                process.sleep(1)

    def invariant(self, run: Run) -> None:
        """Without deaths, no input is ever suspected."""
        super().invariant(run)
        if self._deadly is None:
            require(not run.direct_key_value.scan("suspects/main"), "an input is suspected, and nobody died")

    def check(self, run: Run) -> None:
        """All harmless inputs are in the tables once; exactly the deadly ones are kept and named."""
        suspects = QuarantineStore(run.direct_key_value, "main").all()
        named = [(suspect.path, suspect.state) for suspect in suspects]
        expected = {str(segment): 1 for segment in range(self._segments)}
        if self._deadly is not None:
            require((f"inbox/{DEADLY}", "set aside") in named, f"the records name {named}")
        if self._deadly is None:
            require(
                not run.direct_key_value.scan("asides/main"), "a transaction is set aside, and nobody died"
            )
        # after as many kills from outside it may be any segment
        if not any(process.attempt for process in run.processes):
            require(len(named) == (self._deadly is not None), f"the records name {named}")
        for path, _ in named:
            del expected[path.removeprefix("inbox/")]
        for table in ("spans", "traces"):
            shard = Shard(table, run.direct_key_value, run.direct_objects)
            upper = shard.state().upper
            parts = shard.snapshot(upper - 1).parts if upper else []
            rows = Counter(row for part in parts for row in run.objects.get(part.path).decode())
            require(rows == expected, f"{table} holds {dict(rows)}, the records name {named}")
        left = [info.path for info in run.objects.list("inbox/")]
        require(
            left == sorted(path for path, _ in named), f"the inbox holds {left}, the records name {named}"
        )
