"""Sources, outputs, pipelines and the quarantine of a lake.

A source supplies spans to the pipelines. An output, which is a Kafka topic or a user's sink, receives new spans in
addition to the tables. Users may add and remove both at any time, and pause sources. The quarantine lists inputs that
failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tracelake._errors import StorageError, TaskError, UsageError
from tracelake._settings import Settings, find_watch, load_settings
from tracelake.context import LakeContext
from tracelake.journal.protocol import EACH_STEP, CommitPolicy
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import IngestedFiles
from tracelake.limits import TRANSACTION_DELAY_S, TRANSACTION_INPUT_MAX_BYTES, TRANSACTION_ROWS_MAX
from tracelake.pipeline.continuous import InboxPipeline, recording_receipts
from tracelake.pipeline.decode_task import group_inputs
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_queue import in_thread
from tracelake.pipeline.outputs.configured import AddedOutputs, OutputRecord
from tracelake.pipeline.outputs.external import OversizedRecord, OversizedRowStore
from tracelake.pipeline.protocol import OUTBOX_WAIT_S
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.quarantine_actions import QuarantineAction, QuarantineActions
from tracelake.pipeline.registrations import AddedSources, SourceRecords
from tracelake.pipeline.run_result import RunResult, report_of, shown
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.registry import find, source_of, watch_of
from tracelake.replicas.protocol import Replica, SourceAccount, status
from tracelake.replicas.replica import describe, replicas
from tracelake.results import IngestReport, ReplicaInfo, SetAsideInput
from tracelake.tasks.runners import OnProgress, Progress, TaskRunner

_OUTPUT_LEFT_OUT_TOLD: Final = 3
"""Omitted rows of an output that one line of `status` names."""


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """A row that an output did not send, because the row exceeds the target's message limit."""

    row: str
    transaction: int
    size_bytes: int
    max_bytes: int
    """The target's limit at that time."""


@dataclass(frozen=True, slots=True)
class OutputInfo:
    """An output that a user added to a lake."""

    name: str
    to: str
    since: int | None
    """Its first transaction; None briefly after it was added."""
    id: str
    """Random. In Kafka it is part of the transactional id and of the name of the marker topic."""
    changes: str = ""
    """The table whose changes it receives; empty for new spans as OTLP."""
    left_out_total: int = 0
    """Number of rows that were too large for it. They are in the tables but were not sent."""
    left_out: tuple[LeftOutRow, ...] = ()
    """The most recent of these rows."""
    damaged: str = ""
    """Error and remedy if its record is unreadable. Nothing is committed until it is repaired. All other fields are
    empty."""

    def explain(self) -> list[str]:
        """Return sentences about its damage or the rows that it skipped."""
        if self.damaged:
            return [f"Nothing is committed, because an output would miss it. {self.damaged}"]
        if not self.left_out_total:
            return []
        skipped = [
            f"{each.row} of transaction {each.transaction} ({each.size_bytes:,} bytes; it takes {each.max_bytes:,})"
            for each in self.left_out[-_OUTPUT_LEFT_OUT_TOLD:]
        ]
        return [
            f"output {self.name} has omitted {self.left_out_total:,} rows that are too large for it; they are "
            f"in the tables. The last: {', '.join(skipped)}. Raise its limit (max.message.bytes of a Kafka "
            "topic)."
        ]


class LakeOutputs:
    """Outputs that users added to a lake: `lake.outputs`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened

    def all(self) -> list[OutputInfo]:
        """Return the outputs by name."""
        left_out = OversizedRowStore(self._opened.key_value).all()
        records = self._added().records()
        damaged = [OutputInfo(name, "", None, "", damaged=reason) for name, reason in records.damaged.items()]
        shown = [_shown(record, left_out.get(record.id)) for record in records.readable]
        return sorted([*shown, *damaged], key=lambda info: info.name)

    def add(self, name: str, to: str, changes: str = "") -> OutputInfo:
        """Add an output. From the next transaction on, each transaction's new spans are sent to it exactly once.

        Args:
            name: the output's name.
            to: `kafka://broker:9092/topic`, or `module:name` of a factory of sinks.
            changes: `spans` or `traces`: send this table's changes instead of new spans, as JSON with a sign for each
                row.

        Raises UsageError if the name is taken, or if `to` cannot be opened.
        """
        outputs = Outputs(self._opened.key_value, self._opened.objects, self._opened.config.buckets)
        return _shown(self._added().add(name, to, outputs.upper, changes))

    def remove(self, name: str) -> None:
        """Remove an output; later transactions are not sent to it. Raises UsageError if it does not exist."""
        self._added().remove(name)

    def _added(self) -> AddedOutputs:
        return AddedOutputs(self._opened.key_value, self._opened.objects, self._opened.config.buckets)


def _shown(record: OutputRecord, left_out: OversizedRecord | None = None) -> OutputInfo:
    rows = (
        []
        if left_out is None
        else [
            LeftOutRow(each.row, of.transaction, each.size_bytes, of.max_bytes)
            for of in left_out.newest
            for each in of.first
        ]
    )
    total = 0 if left_out is None else left_out.total
    return OutputInfo(record.name, record.to, record.since, record.id, record.changes, total, tuple(rows))


STATES: Final = ("active", "paused", "failing", "unwatched", "damaged")


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source of a lake's pipelines, from its record and the latest reports of live replicas."""

    name: str
    address: str
    """A pattern of files or objects, or a topic; empty for the built-in `inbox` and `outbox`."""
    kind: str
    """files | buckets | kafka | inbox | outbox; empty if unknown."""
    state: str
    """active | paused | failing (a replica could not poll it) | unwatched (no replica polls it) | damaged (its record
    is)"""
    reason: str
    """The reason if it is failing or damaged; otherwise empty."""
    added: bool
    """Whether a user added it. Otherwise a replica's settings name it, or it is built in."""
    waiting: int | None
    """Its lag at the last poll, counted in `unit`; None if unknown."""
    unit: str
    """Unit of the lag: files, objects, segments, rows, messages."""
    waiting_bytes: int | None
    oldest_waiting_s: float | None
    """Age of the oldest pending input in seconds; None if nothing is pending, or if unknown."""
    taken_inputs: int
    """Number of its inputs that live replicas have recorded since each started."""
    taken_bytes: int
    bytes_per_s: float
    """Their throughput over roughly the last minute."""
    replicas: tuple[str, ...]
    """Names of the live replicas that poll it."""


class LakeSources:
    """Sources of a lake: `lake.sources`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened

    def all(self) -> list[SourceInfo]:
        """Return the sources by name: built in, from replicas' settings, and added by users."""
        return merged(self._added().records(), replicas(self._opened.key_value), time.time())

    def add(self, name: str, address: str) -> SourceInfo:
        """Add a source. Each pipeline of the lake takes inputs from it, beginning with the pipeline's next poll.

        Args:
            name: the source's name.
            address: a glob pattern of files or objects (`s3://bucket/otlp/*.gz`), a directory or prefix that contains
                an MLflow archive repository, or a topic (`kafka://broker:9092/topic`).

        Raises UsageError if the name is taken, or if `address` cannot be watched; LimitError if there are too many
        sources.
        """
        ingested = IngestedFiles(self._opened.key_value, "main")
        self._added().add(name, address, lambda each: watch_of(self._opened.objects, ingested, each))
        return self._one(name)

    def pause(self, name: str) -> SourceInfo:
        """Pause a source: pipelines take none of the inputs that appear after this call. Raises UsageError if users
        added no source of this name."""
        self._added().pause(name, on=True)
        return self._one(name)

    def resume(self, name: str) -> SourceInfo:
        """Resume a paused source: pipelines take its pending and new inputs again. Raises UsageError if users added no
        source of this name."""
        self._added().pause(name, on=False)
        return self._one(name)

    def remove(self, name: str) -> None:
        """Remove a source. Pipelines finish its recorded inputs and take no more. Raises UsageError if users added no
        source of this name."""
        self._added().remove(name)

    def _one(self, name: str) -> SourceInfo:
        return next(info for info in self.all() if info.added and info.name == name)

    def _added(self) -> AddedSources:
        return AddedSources(self._opened.key_value)


_GONE: Final = "gone"


def merged(records: SourceRecords, replicas: Iterable[Replica], now_s: float) -> list[SourceInfo]:
    """Return the state of each source, from its record and the reports of live replicas."""
    live = [replica for replica in replicas if status(replica, now_s).word != _GONE]
    by_key: dict[tuple[str, str], list[tuple[str, SourceAccount]]] = {}
    for replica in live:
        for account in replica.sources:
            by_key.setdefault((account.name, account.id), []).append((replica.name, account))
    added = {(record.name, record.id): record for record in records.readable}
    infos = [
        _info(name, of[0][1].address, of, now_s) for (name, id_), of in sorted(by_key.items()) if not id_
    ]
    for key, record in added.items():
        infos.append(
            _info(
                record.name,
                record.address,
                by_key.get(key, ()),
                now_s,
                added=True,
                state="paused" if record.is_paused else None,
            )
        )
    for name, reason in records.damaged.items():
        infos.append(_info(name, "", (), now_s, added=True, state="damaged", reason=reason))
    return infos


def _info(
    name: str,
    address: str,
    reports: Sequence[tuple[str, SourceAccount]],
    now_s: float,
    *,
    added: bool = False,
    state: str | None = None,
    reason: str = "",
) -> SourceInfo:
    """Return the state of one source: counts from the newest poll, and failures of any replica."""
    accounts = [account for _, account in reports]
    newest = max(accounts, key=lambda account: account.looked_s or 0.0, default=None)
    failing = [f"replica {replica}: {each.reason}" for replica, each in reports if each.state == "failing"]
    if state is None:
        state = "failing" if failing else "active" if accounts else "unwatched"
        reason = "; ".join(failing)
    oldest_s = None if newest is None else newest.oldest_waiting_s
    is_current = newest is not None and state != "paused"
    return SourceInfo(
        name=name,
        address=address,
        kind=source_of(address) if address else "" if newest is None else newest.kind,
        state=state,
        reason=reason,
        added=added,
        waiting=newest.waiting if newest is not None and is_current else None,
        unit="" if newest is None else newest.unit,
        waiting_bytes=newest.waiting_bytes if newest is not None and is_current else None,
        oldest_waiting_s=None if oldest_s is None or not is_current else max(0.0, now_s - oldest_s),
        taken_inputs=sum(account.taken_inputs for account in accounts),
        taken_bytes=sum(account.taken_bytes for account in accounts),
        bytes_per_s=sum(account.bytes_per_s for account in accounts),
        replicas=tuple(replica for replica, _ in reports),
    )


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
    pipeline.snapshot_client(client)
    engines = dict[str, None]()

    def note(step: Progress) -> None:
        if step.engine:
            engines[step.engine] = None
        progress(step)

    result = pipeline.run(runs, recording_receipts(opened.key_value, None, note))
    return replace(report_of(result, time.monotonic() - started), engine=" and ".join(engines))


def main_pipeline(opened: LakeContext, runner: TaskRunner) -> Pipeline:
    """Return a pipeline without sources of its own, which finishes the open transaction and takes given inputs."""
    buckets = opened.config.buckets
    return Pipeline(
        "main",
        opened.key_value,
        opened.objects,
        buckets,
        runner,
        start_work=in_thread,
        initial_index=opened.first_index,
        added=AddedOutputs(opened.key_value, opened.objects, buckets),
    )


def commit_request(opened: LakeContext, item: Input, runner: TaskRunner, progress: OnProgress) -> RunResult:
    """Commit the transaction of a request about stored traces. Raises UsageError while another client's explicit
    transaction is open, TaskError or StorageError if the request was not applied."""
    pipeline = main_pipeline(opened, runner)
    pipeline.snapshot_client("")
    result = pipeline.run([[item]], recording_receipts(opened.key_value, None, progress))
    for each in result.quarantined:
        if each.path == item.path:
            raise TaskError(f"request {item.path} was set aside: {each.reason}. Run it again.")
    if (failure := result.failed.get(item.path)) is not None:
        raise StorageError(f"request {item.path} was not applied: {failure}. Run it again.")
    opened.forget_view()
    return result


def inbox_pipeline(
    opened: LakeContext, runner: TaskRunner, replica: str | None, watch: Sequence[str] | None
) -> InboxPipeline:
    """Return the pipeline for input that servers received and for watched sources."""
    stores, config, settings = opened.stores, opened.config, load_settings()
    mode = mode_of(settings)
    return InboxPipeline(
        stores.key_value,
        stores.objects,
        config.buckets,
        runner,
        replica=replica,
        watch=find_watch(watch),
        first=opened.first_index,
        mode=mode,
        journal_kept=settings.journal_transactions,
        # With a policy of the user, an open transaction waits, and not its input.
        outbox_wait_s=OUTBOX_WAIT_S if mode == EACH_STEP else 0.0,
    )


def mode_of(settings: Settings) -> CommitPolicy:
    """Return the commit policy of a continuous pipeline from the settings."""
    rows, delay_s = settings.transaction_rows, settings.transaction_delay_s
    if rows is None and delay_s is None:
        return EACH_STEP
    return CommitPolicy(rows or TRANSACTION_ROWS_MAX, TRANSACTION_DELAY_S if delay_s is None else delay_s)


def describe_replicas(opened: LakeContext) -> list[ReplicaInfo]:
    """Return the recorded replicas."""
    upper = Outputs(opened.key_value, opened.objects, opened.config.buckets).table_upper()
    return [describe(replica, upper, time.time()) for replica in replicas(opened.key_value)]


class Quarantine:
    """Quarantine of inputs that no task can process: `lake.quarantine`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened

    def all(self) -> list[SetAsideInput]:
        """Return the inputs that failed, by transaction: quarantined, offered again, or discarded."""
        suspects = QuarantineStore(self._opened.key_value, "main").all()
        return [shown(item) for item in sorted(suspects, key=lambda item: (item.transaction, item.path))]

    def paths(self) -> set[str]:
        """Return the paths of quarantined and discarded inputs, which pipelines do not take."""
        return {item.path for item in self.all() if item.state != "offered"}

    def retry(self, transaction: int) -> list[SetAsideInput]:
        """Return a transaction's quarantined inputs to the pipelines: the next run of any pipeline takes them again.

        If the transaction is stuck, for example because a file changed after the journal recorded it, it is quarantined
        first. Its files are then taken in their current state. Raises UsageError if nothing of the transaction is
        quarantined.
        """
        return self._decide(transaction, "retry")

    def discard(self, transaction: int) -> list[SetAsideInput]:
        """Discard a transaction's quarantined inputs. Their names are kept forever, so that no pipeline takes them
        again; segments are deleted.

        A stuck transaction is quarantined first. Then only its single input, or the inputs that changed since the
        journal recorded them, are discarded; all others are offered again. Raises UsageError if nothing of the
        transaction is quarantined.
        """
        return self._decide(transaction, "discard")

    def _decide(self, transaction: int, decision: QuarantineAction) -> list[SetAsideInput]:
        opened = self._opened
        actions = QuarantineActions(
            "main", opened.key_value, opened.objects, opened.config.buckets, opened.first_index
        )
        return [shown(suspect) for suspect in actions.decide(transaction, decision)]
