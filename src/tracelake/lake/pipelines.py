"""What brings spans into a lake: files, and the pipeline that takes what servers received."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from tracelake._errors import UsageError
from tracelake.lake.opened import OpenLake
from tracelake.lake.quarantine import Quarantine
from tracelake.limits import TRANSACTION_INPUT_MAX_BYTES
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.inputs import into_transactions
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.report import report_of
from tracelake.pipeline.sources.registry import find
from tracelake.replicas.info import describe_all
from tracelake.results import InboxInfo, IngestReport, ReplicaInfo
from tracelake.tasks.progress import OnProgress, silent
from tracelake.tasks.runners import TaskRunner
from tracelake.tracking.inbox import inbox_info


class Pipelines:
    """Ingest and pipelines of a lake. The methods of `Lake` of the same names say what each does."""

    def __init__(self, opened: OpenLake) -> None:
        self._opened = opened

    def ingest(
        self,
        patterns: Sequence[str | os.PathLike[str]],
        transaction_bytes: int | None,
        master: str | None,
        runner: TaskRunner | None,
        progress: OnProgress | None,
    ) -> IngestReport:
        """See `Lake.ingest`."""
        if transaction_bytes is not None and transaction_bytes < 1:
            raise UsageError(f"transaction_bytes must be at least 1, not {transaction_bytes}.")
        inputs = find(self._opened.objects, (os.fspath(pattern) for pattern in patterns))
        pipeline = self._main(self._opened.runner(runner, master))
        started = time.monotonic()
        runs = into_transactions(inputs, transaction_bytes or TRANSACTION_INPUT_MAX_BYTES)
        result = pipeline.run(runs, progress or silent)
        return report_of(result, time.monotonic() - started)

    def pipeline(
        self, replica: str | None, watch: Sequence[str], master: str | None, runner: TaskRunner | None
    ) -> InboxPipeline:
        """See `Lake.pipeline`."""
        opened = self._opened
        runner = opened.lasting_runner(runner, master)
        return InboxPipeline(
            opened.key_value, opened.objects, opened.config.buckets, runner, replica=replica, watch=watch
        )

    def _main(self, runner: TaskRunner) -> Pipeline:
        opened = self._opened
        return Pipeline("main", opened.key_value, opened.objects, opened.config.buckets, runner)

    def replicas(self) -> list[ReplicaInfo]:
        """See `Lake.replicas`."""
        opened = self._opened
        upper = Outputs(opened.key_value, opened.objects, opened.config.buckets).table_upper()
        return describe_all(opened.key_value, upper)

    def inbox(self) -> InboxInfo:
        """See `Lake.inbox`."""
        return inbox_info(self._opened.objects, Quarantine(self._opened).paths())
