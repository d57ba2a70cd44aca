"""What brings spans into a lake: files, and the pipeline that takes what servers received.

What a lake does with inputs that no task can do: they are set aside, and the user decides.
"""

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
    """Take what the patterns name into the transaction of a client, or with an empty `client` into new ones.

    Raises UsageError if the client's transaction is over, or if one of another client is open.
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
    opened: LakeContext, runner: TaskRunner, replica: str | None, watch: Sequence[str] | None
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


def mode_of(settings: Settings) -> CommitPolicy:
    """Return how many steps make a transaction of a pipeline that goes on."""
    rows, delay_s = settings.transaction_rows, settings.transaction_delay_s
    if rows is None and delay_s is None:
        return EACH_STEP
    return CommitPolicy(rows or TRANSACTION_ROWS_MAX, TRANSACTION_DELAY_S if delay_s is None else delay_s)


def replicas(opened: LakeContext) -> list[ReplicaInfo]:
    """Return the replicas that the records name."""
    upper = Outputs(opened.key_value, opened.objects, opened.config.buckets).table_upper()
    return describe_all(opened.key_value, upper)


class Quarantine:
    """The inputs of a lake that no task can do: `lake.quarantine`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened

    def all(self) -> list[SetAsideInput]:
        """Return the inputs that could not be taken, by transaction: set aside, offered again, or discarded."""
        suspects = QuarantineStore(self._opened.key_value, "main").all()
        return [shown(item) for item in sorted(suspects, key=lambda item: (item.transaction, item.path))]

    def paths(self) -> set[str]:
        """Return the paths of inputs that no pipeline takes until the user decides, or ever."""
        return {item.path for item in self.all() if item.state != "offered"}

    def retry(self, transaction: int) -> list[SetAsideInput]:
        """Offer the inputs of a transaction that was set aside again, to the next run of any pipeline.

        A transaction that is stuck, as where a file changed under the journal, is set aside first; a file is then
        taken as it is now.

        Raises UsageError where nothing of that transaction is set aside.
        """
        return self._decide(transaction, "retry")

    def discard(self, transaction: int) -> list[SetAsideInput]:
        """Give up the inputs of a transaction that are set aside: they are named for ever, and segments are deleted.

        A transaction that is stuck is set aside first; of its inputs those are given up that changed since the
        journal recorded them, or the only one. All others are offered again.

        Raises UsageError where nothing of that transaction is set aside.
        """
        return self._decide(transaction, "discard")

    def _decide(self, transaction: int, fate: Fate) -> list[SetAsideInput]:
        opened = self._opened
        fates = QuarantineActions(
            "main", opened.key_value, opened.objects, opened.config.buckets, first_index(opened.config)
        )
        return [shown(suspect) for suspect in fates.decide(transaction, fate)]
