"""Replicas that quarantine input that they cannot process, next to peers that can: the first decides, all follow.

A poison segment fails in the tasks of some replicas only, as on a machine with less memory. So one replica
quarantines its transaction while another holds its rows, and may append them at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks, is_read
from tests.simulation.scenarios import require
from tracelake._errors import TaskError
from tracelake.journal.quarantine import QuarantineStore
from tracelake.pipeline.decode_task import ReadReceipt, ReadTask
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.merge_task import ShapeReceipt, TransactionMergeTask
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore
from tracelake.testing import Process, Run
from tracelake.versions.repository import Repository

POISON = "0"
"""The segment that some replicas cannot process."""
WAITS_MAX = 200
"""Checks for a peer's append by a replica that holds rows, before it appends them."""


class PoisonedTasks(SimulatedTasks):
    """Tasks that fail on the poison segment, as they read it or as they merge it."""

    def __init__(self, process: Process, stage: str | None, waits: bool) -> None:
        super().__init__(process)
        self._waits = waits
        self._stage_of_failure = stage

    def _read(self, task: ReadTask) -> ReadReceipt:
        if is_read(task, f"inbox/{POISON}") and self._stage_of_failure == "read":
            raise OverflowError("the sum does not fit")
        return super()._read(task)

    def _shape(self, task: TransactionMergeTask) -> ShapeReceipt:
        if self._stage_of_failure == "merge" and any(piece.path.endswith(POISON) for piece in task.pieces):
            raise OverflowError("the sum does not fit")
        receipt = super()._shape(task)
        if self._stage_of_failure is None and self._waits:
            shard = Shard("spans", self._process.key_value, self._process.objects)
            for _ in range(WAITS_MAX):
                if shard.state().upper > task.transaction:
                    break
        return receipt


class SettingAsideScenario(PipelineScenario):
    """Replicas that empty an inbox in transactions of all pending input; the tasks of some fail on one segment."""

    name = "setting aside"
    steps_max = 12_000

    def __init__(
        self, stages: Sequence[str | None] = ("merge", None), segments: int = 2, *, waits: bool = False
    ) -> None:
        """Make each replica's tasks fail at a stage or never; those that never fail may wait for the others."""
        super().__init__(len(stages), segments)
        self._stages = stages
        self._waits = waits

    def key_value(self, process: Process) -> KeyValueStore:
        """Return the records as one replica sees them."""
        return process.key_value

    def _run(self, process: Process) -> None:
        tasks = PoisonedTasks(process, self._stages[int(process.name[-1])], self._waits)
        pipeline = Pipeline("main", self.key_value(process), process.objects, BUCKETS, tasks)
        for _ in range(2):  # the second round takes inputs that a peer has offered since
            inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
            while True:
                try:
                    pipeline.run([inputs])
                    break
                except TaskError:  # a peer that appended the rows finishes the transaction
                    process.sleep(60)

    def check(self, run: Run) -> None:
        """Each good segment is in the tables once; the poison one is too, or one record names it and it is kept."""
        repository = Repository(run.direct_key_value, run.direct_objects)
        head = repository.head()
        upper = 0 if head is None else repository.transaction_of(head) + 1
        suspects = QuarantineStore(run.direct_key_value, "main").all()
        named = [(suspect.path, suspect.state) for suspect in suspects]
        expected = {str(segment): 1 for segment in range(self._segments)}
        if named:
            require(named == [(f"inbox/{POISON}", "set aside")], f"the records name {named}")
            del expected[POISON]
        for table in ("spans", "traces"):
            shard = Shard(table, run.direct_key_value, run.direct_objects)
            require(shard.state().upper == upper, f"{table} is at {shard.state().upper}, the head at {upper}")
            parts = shard.snapshot(upper - 1).parts if upper else []
            rows = Counter(row for part in parts for row in run.objects.get(part.path).decode())
            require(rows == expected, f"{table} holds {dict(rows)}, the records name {named}")
        if head is not None:
            require(len(list(repository.log(head))) == upper, "a transaction has no commit of its own")
        left = [info.path for info in run.objects.list("inbox/")]
        require(left == [path for path, _ in named], f"the inbox holds {left}, the records name {named}")
