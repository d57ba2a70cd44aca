"""The pipelines of a lake, for files and for input that servers received, and its quarantine of inputs that failed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from tracelake._errors import UsageError
from tracelake._settings import Settings, find_watch, load_settings
from tracelake.journal.protocol import EACH_STEP, CommitPolicy
from tracelake.journal.quarantine import QuarantineStore
from tracelake.lake.context import LakeContext
from tracelake.lake.location import first_index
from tracelake.limits import TRANSACTION_DELAY_S, TRANSACTION_INPUT_MAX_BYTES, TRANSACTION_ROWS_MAX
from tracelake.pipeline.continuous import InboxPipeline, recording_receipts
from tracelake.pipeline.decode_task import group_inputs
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_queue import in_thread
from tracelake.pipeline.outputs.added import AddedOutputs
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.quarantine_actions import Fate, QuarantineActions
from tracelake.pipeline.run_result import report_of, shown
from tracelake.pipeline.sources.registry import find
from tracelake.replicas.replica import describe_all
from tracelake.results import IngestReport, ReplicaInfo, SetAsideInput
from tracelake.tasks.runners import OnProgress, TaskRunner


def ingest(
    opened: LakeContext,
    patterns: Iterable[str | os.PathLike[str]],
    transaction_bytes: int | None,
    runner: TaskRunner,
    progress: OnProgress,
    client: str = "",
) -> IngestReport:
    """Ingest the inputs that match patterns, into a client's transaction or, with an empty `client`, into new ones.

    Raises UsageError if the client's transaction is over, or if another client's is open.
    """
    if transaction_bytes is not None and transaction_bytes < 1:
        raise UsageError(f"transaction_bytes must be at least 1, not {transaction_bytes}.")
    inputs = find(opened.objects, (os.fspath(pattern) for pattern in patterns))
    started = time.monotonic()
    runs = group_inputs(inputs, transaction_bytes or TRANSACTION_INPUT_MAX_BYTES)
    pipeline = main_pipeline(opened, runner)
    pipeline.listen(client)
    result = pipeline.run(runs, recording_receipts(opened.key_value, None, progress))
    return report_of(result, time.monotonic() - started)


def main_pipeline(opened: LakeContext, runner: TaskRunner) -> Pipeline:
    """Return the pipeline of a lake for one run."""
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
    opened: LakeContext, runner: TaskRunner, replica: str | None, watch: Sequence[str] | None
) -> InboxPipeline:
    """Return the pipeline for input that servers received and for watched sources."""
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


def mode_of(settings: Settings) -> CommitPolicy:
    """Return the commit policy of a continuous pipeline from the settings."""
    rows, delay_s = settings.transaction_rows, settings.transaction_delay_s
    if rows is None and delay_s is None:
        return EACH_STEP
    return CommitPolicy(rows or TRANSACTION_ROWS_MAX, TRANSACTION_DELAY_S if delay_s is None else delay_s)


def replicas(opened: LakeContext) -> list[ReplicaInfo]:
    """Return the recorded replicas."""
    upper = Outputs(opened.key_value, opened.objects, opened.config.buckets).table_upper()
    return describe_all(opened.key_value, upper)


class Quarantine:
    """Quarantine of inputs that no task can process: `lake.quarantine`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened

    def all(self) -> list[SetAsideInput]:
        """Return the inputs that failed, by transaction: quarantined, offered again, or discarded."""
        suspects = QuarantineStore(self._opened.key_value, "main").all()
        return [shown(item) for item in sorted(suspects, key=lambda item: (item.transaction, item.path))]

    def paths(self) -> set[str]:
        """Return the paths of inputs that are discarded, or quarantined until the user decides. No pipeline takes
        them."""
        return {item.path for item in self.all() if item.state != "offered"}

    def retry(self, transaction: int) -> list[SetAsideInput]:
        """Offer a transaction's quarantined inputs again, to the next run of any pipeline.

        A stuck transaction, for example because a file changed after it was recorded, is quarantined first. Its files
        are then taken in their current state. Raises UsageError if nothing of that transaction is quarantined.
        """
        return self._decide(transaction, "retry")

    def discard(self, transaction: int) -> list[SetAsideInput]:
        """Discard a transaction's quarantined inputs: their names are kept forever, and segments are deleted.

        A stuck transaction is quarantined first. Its only input, or the inputs that changed since the journal
        recorded them, are discarded. All others are offered again. Raises UsageError if nothing of that transaction
        is quarantined.
        """
        return self._decide(transaction, "discard")

    def _decide(self, transaction: int, fate: Fate) -> list[SetAsideInput]:
        opened = self._opened
        fates = QuarantineActions(
            "main", opened.key_value, opened.objects, opened.config.buckets, first_index(opened.config)
        )
        return [shown(suspect) for suspect in fates.decide(transaction, fate)]
