"""What brings spans into a lake: files, and the pipeline that takes what servers received."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from tracelake._errors import UsageError
from tracelake._settings import Settings, find_watch, load_settings
from tracelake.journal.modes import EACH_STEP, StepMode
from tracelake.lake.location import first_index
from tracelake.lake.opened import OpenLake
from tracelake.limits import TRANSACTION_DELAY_S, TRANSACTION_INPUT_MAX_BYTES, TRANSACTION_ROWS_MAX
from tracelake.pipeline.ahead import in_thread
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.inputs import into_transactions
from tracelake.pipeline.outputs.added import AddedOutputs
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.report import report_of
from tracelake.pipeline.sources.registry import find
from tracelake.pipeline.telling import with_receipts
from tracelake.replicas.info import describe_all
from tracelake.results import IngestReport, ReplicaInfo
from tracelake.tasks.progress import OnProgress
from tracelake.tasks.runners import TaskRunner


def ingest(
    opened: OpenLake,
    patterns: Iterable[str | os.PathLike[str]],
    transaction_bytes: int | None,
    runner: TaskRunner,
    progress: OnProgress,
    client: str = "",
) -> IngestReport:
    """Take what the patterns name into the transaction of a client, or with an empty `client` into new ones.

    Raises UsageError if the client's transaction is over, or if one of another client is open.
    """
    if transaction_bytes is not None and transaction_bytes < 1:
        raise UsageError(f"transaction_bytes must be at least 1, not {transaction_bytes}.")
    inputs = find(opened.objects, (os.fspath(pattern) for pattern in patterns))
    started = time.monotonic()
    runs = into_transactions(inputs, transaction_bytes or TRANSACTION_INPUT_MAX_BYTES)
    pipeline = main_pipeline(opened, runner)
    pipeline.listen(client)
    result = pipeline.run(runs, with_receipts(opened.key_value, None, progress))
    return report_of(result, time.monotonic() - started)


def main_pipeline(opened: OpenLake, runner: TaskRunner) -> Pipeline:
    """Return the pipeline of a lake, for one run."""
    buckets = opened.config.buckets
    return Pipeline(
        "main",
        opened.key_value,
        opened.objects,
        buckets,
        runner,
        beside=in_thread,
        first=first_index(opened.config),
        added=AddedOutputs(opened.key_value, opened.objects, buckets),
    )


def inbox_pipeline(
    opened: OpenLake, runner: TaskRunner, replica: str | None, watch: Sequence[str] | None
) -> InboxPipeline:
    """Return the pipeline of what servers received, and of what is watched."""
    stores, config, settings = opened.stores, opened.config, load_settings()
    return InboxPipeline(
        stores.key_value,
        stores.objects,
        config.buckets,
        runner,
        replica=replica,
        watch=find_watch(watch),
        first=first_index(config),
        mode=mode_of(settings),
        journal_kept=settings.journal_transactions,
    )


def mode_of(settings: Settings) -> StepMode:
    """Return how many steps make a transaction of a pipeline that goes on."""
    rows, delay_s = settings.transaction_rows, settings.transaction_delay_s
    if rows is None and delay_s is None:
        return EACH_STEP
    return StepMode(rows or TRANSACTION_ROWS_MAX, TRANSACTION_DELAY_S if delay_s is None else delay_s)


def replicas(opened: OpenLake) -> list[ReplicaInfo]:
    """Return the replicas that the records name."""
    upper = Outputs(opened.key_value, opened.objects, opened.config.buckets).table_upper()
    return describe_all(opened.key_value, upper)
