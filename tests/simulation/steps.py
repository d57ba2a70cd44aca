"""Transactions of many steps: replicas add steps to each other's, seal them, and die in between (J9)."""

from __future__ import annotations

from typing import Final

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tracelake.journal.protocol import CommitPolicy
from tracelake.journal.store import Journal
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.testing import Process, Run
from tracelake.versions.repository import Repository

TWO_ROWS: Final = CommitPolicy(max_rows=2, max_delay_s=1e9)
WAITS: Final = CommitPolicy(max_rows=3, max_delay_s=20.0)
ROUNDS_MAX: Final = 60


class StepsScenario(PipelineScenario):
    """Replicas whose transactions take steps of one segment each, until they have their mode's rows."""

    name = "steps"
    steps_max = 8_000

    def __init__(self, mode: CommitPolicy = TWO_ROWS, segments: int = 4, replicas: int = 2) -> None:
        super().__init__(replicas, segments)
        self._mode = mode

    def _run(self, process: Process) -> None:
        tasks = SimulatedTasks(process)
        pipeline = Pipeline("main", process.key_value, process.objects, BUCKETS, tasks, mode=self._mode)
        for _ in range(ROUNDS_MAX):
            inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
            result = pipeline.run([[item] for item in inputs], continuous=self._mode is WAITS)
            if result.open_transaction is None:
                return
            process.sleep(1)
        raise AssertionError("a transaction waits for ever")

    def check(self, run: Run) -> None:
        """All inputs are in once; no transaction has more rows than its mode allows, and only the last has fewer.

        Inputs of a quarantined transaction are taken in smaller ones.
        """
        super().check(run)
        repository = Repository(run.direct_key_value, run.direct_objects)
        head = repository.head()
        assert head is not None
        last = repository.transaction_of(head)
        journal = Journal(run.direct_key_value, "main")
        is_set_aside = any(True for _ in run.direct_key_value.scan("asides/main"))
        for t in range(last + 1):
            recorded = journal.read(t)
            rows = [sum(each.records for each in step.sources[INBOX]) for step in recorded.steps]
            require(recorded.seal is not None, f"transaction {t} is committed, and not sealed")
            require(sum(rows[:-1]) < self._mode.max_rows, f"transaction {t} took the steps {rows}")
            full = t == last or sum(rows) >= self._mode.max_rows or is_set_aside
            require(full, f"transaction {t} of {last} was sealed with the steps {rows}")
