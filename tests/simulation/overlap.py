"""Replicas that prefetch the next input while they publish: each segment once, whatever peers and later polls do."""

from __future__ import annotations

from typing import Final

from tests.simulation.replicas import BUCKETS, PipelineScenario, SimulatedTasks
from tests.simulation.scenarios import require
from tracelake.pipeline.batch_sizing import BatchSize, BatchSizer, Bounds
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_queue import run_inline
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.pipeline.staging import STAGING
from tracelake.testing import Process, Run

ONE: Final = Bounds(BatchSize(100, 1), BatchSize(100, 1), BatchSize(100, 2))


class OverlapScenario(PipelineScenario):
    """Each replica reads the input of T+1 before it publishes T, as early as possible."""

    name = "overlap"
    steps_max = 6_000

    def __init__(self, replicas: int = 2, segments: int = 4) -> None:
        super().__init__(replicas, segments)

    def _run(self, process: Process) -> None:
        inputs = [Input(INBOX, info.path, info.size_bytes) for info in process.objects.list("inbox/")]
        pipeline = Pipeline(
            "main",
            process.key_value,
            process.objects,
            BUCKETS,
            SimulatedTasks(process),
            sizer=BatchSizer(ONE),
            start_work=run_inline,
        )
        pipeline.run([inputs])

    def check(self, run: Run) -> None:
        """Without kills and lost replies, no uselessly prefetched rows remain."""
        super().check(run)
        if run.injected == 0:
            left = run.objects.list(STAGING)
            require(not left, f"{[info.path for info in left]} were read, and are in no table")
