"""History of a lake's transactions from its journal: `lake.journal`.

It reports which inputs each transaction read, which parts and commit it produced, and the seconds of each stage.
Times are ISO 8601 in UTC, or None if unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from tracelake._errors import DamageError, NotFoundError, TracelakeError, TrimmedError, UsageError
from tracelake.context import LakeContext
from tracelake.journal import store
from tracelake.journal.model import OffsetRange, QuarantineRecord, RecordedRange, Segment, SegmentRange
from tracelake.limits import EXPLAINED_MAX, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX
from tracelake.pipeline.outputs.builtin import SET_ASIDE
from tracelake.pipeline.outputs.configured import AddedOutputs, OutputRecord
from tracelake.pipeline.publish import TRANSFORM
from tracelake.pipeline.run_result import Counts
from tracelake.pipeline.staging import ReplayedSource, replay
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.tables.builtin import BUILT_IN
from tracelake.tables.view import INDEX_ENTRY, index_at
from tracelake.tasks.runners import TaskRunner
from tracelake.versions.model import TRANSACTION, Commit


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction of the pipeline."""

    transaction: int
    state: str
    """open | sealed (and not yet committed) | committed | set aside (quarantined) | damaged (its record is
    unreadable)"""
    trimmed: bool
    """Whether the journal has trimmed its inputs. Only its commit describes it then."""
    began_at: str | None
    sealed_at: str | None
    committed_at: str | None
    commit: str | None
    client: str
    """The id of its explicit transaction; otherwise empty."""
    steps: int | None
    inputs: int | None
    spans_read: int | None
    spans_new: int | None
    spans_replaced: int | None
    spans_repeated: int | None
    traces: int | None
    stages_s: dict[str, float]
    """Seconds per stage: open (first step to seal), writing, and each output, with the commit last."""
    damaged: str = ""
    """The error if its journal record is damaged, so that its inputs are unknown."""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """An input of a transaction, or a range of segments whose paths differ only by a number."""

    source: str
    kind: str
    """file | segment | run (a range of segments) | offsets"""
    path: str
    last_path: str | None
    """The last path of a range; `path` is the first."""
    inputs: int
    size_bytes: int
    sha256: str | None
    records: int
    spans: int
    checksum: str
    problems: int
    offsets: dict[str, Any] | None = None
    """For offsets of a log: topic, partition, and `start` to `stop`, exclusive."""


@dataclass(frozen=True, slots=True)
class TableParts:
    """The parts of a table or the index that contain a transaction's rows."""

    name: str
    lower: int
    upper: int
    """They contain transactions from `lower` to `upper`, exclusive; several if they were compacted."""
    parts: tuple[tuple[str, int], ...]
    """The path and row or document count of each part."""
    parts_total: int


@dataclass(frozen=True, slots=True)
class WrittenOffsets:
    """The offsets of a transaction's messages in a partition, from `start` to `stop`, exclusive."""

    partition: int
    start: int
    stop: int
    messages: int
    """Fewer than the offsets if other producers wrote between them."""


@dataclass(frozen=True, slots=True)
class OutputAccount:
    """An output, besides the tables, that received a transaction."""

    name: str
    to: str
    messages: int | None = None
    """None if unrecorded: the transaction had no rows for it, or the output does not report offsets."""
    offsets: tuple[WrittenOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionAccount:
    """The inputs and results of a transaction."""

    info: TransactionInfo
    inputs: tuple[InputInfo, ...]
    inputs_total: int
    tables: tuple[TableParts, ...]
    index: TableParts | None
    outputs: tuple[OutputAccount, ...]
    """Outputs besides the tables that received it."""
    by: str | None
    """The replica that published it."""
    notes: tuple[str, ...] = field(default=())
    """Why it was quarantined, and which facts are no longer known and why."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Comparison of a transaction's replayed input with its record and its written rows."""

    transaction: int
    sources: tuple[ReplayedSource, ...]
    difference: str | None
    """The first difference, by source or value, or None."""

    @property
    def ok(self) -> bool:
        """Whether the replay gives the same result."""
        return self.difference is None


def stages(
    began_at: str | None, sealed_at: str | None, receipt: store.PublishReceipt | None, names: Sequence[str]
) -> dict[str, float]:
    """Return the duration of each stage in seconds, as far as known. The times may come from clocks of several
    machines.

    `names` are the current outputs. If outputs were added or removed since, the stages of outputs have numbers instead
    of names.
    """
    times: dict[str, float] = {}
    if began_at and sealed_at:
        times["open"] = _between(began_at, sealed_at)
    if sealed_at and receipt is not None:
        times["writing"] = _between(sealed_at, receipt.written_at)
    if receipt is not None:
        own = (
            names
            if len(names) == len(receipt.outputs_s)
            else [f"output {n}" for n in range(len(receipt.outputs_s))]
        )
        times |= dict(zip(own, receipt.outputs_s, strict=True))
    return times


def _between(before: str, after: str) -> float:
    return max(
        0.0, round((datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds(), 6)
    )


class LakeJournal:
    """Transactions of a lake's pipeline: `lake.journal`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self._journal = store.Journal(opened.key_value, "main")
        self._receipts = store.PublishReceipts(opened.key_value, "main")
        self._written = store.OutputReceipts(opened.key_value, "main")

    def transactions(
        self, limit: int = PAGE_ROWS_DEFAULT, before: int | None = None
    ) -> list[TransactionInfo]:
        """Return transactions, the newest first, including one that is not committed yet. With `before`, return the
        page of transactions that are older than `before`."""
        if not 0 < limit <= PAGE_ROWS_MAX:
            raise UsageError(f"a page must have from 1 to {PAGE_ROWS_MAX} transactions, not {limit}.")
        upper, infos = self._upper(), list[TransactionInfo]()
        if before is None or before > upper:
            current, damaged = self._readable(upper)
            if damaged or (current is not None and current.steps):
                infos.append(self._info(upper, current, None, damaged))
        stop = upper if before is None else before
        for t, commit in islice(self._commits(stop), limit - len(infos)):
            recorded, damaged = self._readable(t)
            infos.append(self._info(t, recorded, commit, damaged))
        return infos

    def explain(self, transaction: int) -> TransactionAccount:
        """Return a transaction's inputs, and the parts, index parts, outputs and commit that it produced.

        Raises NotFoundError if the transaction was never begun.
        """
        t, upper = transaction, self._upper()
        recorded, damaged = self._readable(t) if 0 <= t <= upper else (None, "")
        commit = (
            next(((i, c) for at, (i, c) in self._commits(t + 1) if at == t), None) if 0 <= t < upper else None
        )
        if commit is None and not damaged and (recorded is None or not recorded.steps):
            raise NotFoundError(
                f"no transaction {t}: the newest is {upper - 1}. See `tracelake pipeline transactions`."
            )
        info, notes = self._info(t, recorded, commit, damaged), list[str]()
        step = None if recorded is None else recorded.step
        inputs = (
            [] if step is None else [_input(s, each) for s, ranges in step.sources.items() for each in ranges]
        )
        if damaged:
            notes.append(f"Its input is unknown: {damaged}")
        elif recorded is None:
            notes.append(
                "The journal no longer has its records: its inputs and its commit time are unknown. The data "
                "of its commit and the tables follows. Setting journal_transactions sets how many "
                "transactions the journal keeps."
            )
        quarantine = None if damaged else self._quarantine_record(t)
        if quarantine is not None:
            notes.append(
                f"Set aside by the {quarantine.by} after {quarantine.tries} tries: {quarantine.reason}."
            )
        receipt = None if recorded is None else self._receipt(t)
        if commit is not None and recorded is not None and receipt is None:
            notes.append("Its commit time and the time of its outputs were not recorded.")
        return TransactionAccount(
            info,
            tuple(inputs[:EXPLAINED_MAX]),
            len(inputs),
            tuple(self._tables(t, notes)),
            self._index(t, commit, notes),
            tuple(
                self._output(t, each)
                for each in self._outputs()
                if commit is not None and (each.since or 0) <= t
            ),
            None if receipt is None else receipt.by,
            tuple(notes),
        )

    def replay(
        self, transaction: int, runner: TaskRunner | None = None, master: str | None = None
    ) -> ReplayReport:
        """Read a transaction's recorded input again, and compare it with the record and the written rows.

        Nothing is written. It compares the input with the record, then the resulting rows with the written rows by
        checksum. Raises UsageError if the journal has trimmed the transaction, and NotFoundError if it was never begun.
        """
        account = self.explain(transaction)
        recorded = self._recorded(transaction)
        if recorded is None or recorded.step is None:
            raise UsageError(
                f"the journal no longer has the records of transaction {transaction}, so there is nothing "
                "to replay."
            )
        step, opened = recorded.step, self._opened
        sources = replay(step, opened.objects, opened.config.buckets, opened.runner(runner, master))
        difference = next((each.difference for each in sources if each.difference is not None), None)
        info = account.info
        if difference is None and info.state == "committed" and info.spans_new is not None:
            written = info.spans_new + (info.spans_replaced or 0) + (info.spans_repeated or 0)
            read = sum(each.read_spans for each in sources)
            if read != written:
                difference = (
                    f"the tables: {written} spans were written or found there, and {read} are read now"
                )
        if difference is not None and step.transform != TRANSFORM:
            difference += f" (shaped by version {step.transform} of the code, and this is {TRANSFORM})"
        return ReplayReport(transaction, tuple(sources), difference)

    def repair(self, transaction: int) -> str:
        """Repair damaged journal records of a committed transaction; return what was done.

        If the record of the end of a transaction (its seal) is damaged, it is written again from the steps and the
        commit. If a step is damaged, the journal deletes its records of this and all earlier transactions. They stay
        committed, but their inputs are no longer known.

        Raises UsageError if the records are intact, and DamageError if no commit has the missing information.
        """
        damaged = self._readable(transaction)[1] or "its records are incomplete."
        stop = self._upper()
        commits = self._commits(transaction + 1) if 0 <= transaction < stop else iter(())
        commit = next((commit for t, (_, commit) in commits if t == transaction), None)
        if commit is None:
            raise DamageError(
                f"transaction {transaction} has no commit that proves its records: {damaged} Nothing was "
                "changed."
            )
        if SET_ASIDE in commit.metadata:
            raise DamageError(
                f"transaction {transaction} was set aside, and its commit does not list the inputs to retry: "
                f"{damaged} Nothing was changed."
            )
        counts = Counts.from_metadata(commit.metadata)
        spans = counts.new + counts.replaced + counts.repeated
        if store.repair(self._journal, transaction, commit.created_at, spans) == "seal":
            return f"The seal of transaction {transaction} was written again from its steps and its commit."
        return (
            f"The journal has dropped the records of transaction {transaction} and all earlier ones. They "
            "stay committed; their inputs are no longer known. Inputs that still exist may be read again, as "
            "repeats."
        )

    def _upper(self) -> int:
        head = self._opened.repository.head()
        return 0 if head is None else self._opened.repository.transaction_of(head) + 1

    def _commits(self, before: int) -> Iterator[tuple[int, tuple[str, Commit]]]:
        """Yield the commits of transactions below `before`, the newest first."""
        head = self._recorded_commit(before - 1) or self._opened.repository.head()
        for commit_id, commit in self._opened.repository.log(head) if head is not None else ():
            t = commit.metadata.get(TRANSACTION)
            if t is not None and int(t) < before:
                yield int(t), (commit_id, commit)

    def _recorded_commit(self, t: int) -> str | None:
        """Return the id of a commit that the journal recorded for this transaction or a later one. A search for an old
        transaction can begin there."""
        try:
            receipt = self._receipts.first_from(t) if t >= 0 else None
            if receipt is None or not receipt.commit:
                return None
            is_it = self._opened.repository.transaction_of(receipt.commit) == receipt.transaction
        except DamageError:
            return None  # the walk then starts at the head
        return receipt.commit if is_it else None

    def _recorded(self, t: int) -> store.TransactionRecord | None:
        """Return the journal's record of a transaction; None if it was trimmed."""
        try:
            return self._journal.read(t)
        except TrimmedError:
            return None

    def _readable(self, t: int) -> tuple[store.TransactionRecord | None, str]:
        """Return the journal's record of a transaction and an empty text, or None and the error text if the record is
        damaged. Other transactions stay visible."""
        try:
            self._quarantine_record(t)
            return self._recorded(t), ""
        except DamageError as error:
            return None, str(error)

    def _quarantine_record(self, t: int) -> QuarantineRecord | None:
        try:
            return self._journal.quarantine_record(t)
        except TrimmedError:
            return None

    def _receipt(self, t: int) -> store.PublishReceipt | None:
        try:
            return self._receipts.read(t)
        except DamageError:
            return None  # `verify` reports it

    def _output(self, t: int, output: OutputRecord) -> OutputAccount:
        try:
            receipt = self._written.read(t, output.id)
        except DamageError:
            receipt = None  # `verify` reports it
        if receipt is None:
            return OutputAccount(output.name, output.to)
        offsets = (WrittenOffsets(at.partition, at.start, at.stop, at.messages) for at in receipt.partitions)
        return OutputAccount(output.name, output.to, receipt.messages, tuple(offsets))

    def _outputs(self) -> list[OutputRecord]:
        opened = self._opened
        return AddedOutputs(opened.key_value, opened.objects, opened.config.buckets).records().readable

    def _info(
        self,
        t: int,
        recorded: store.TransactionRecord | None,
        commit: tuple[str, Commit] | None,
        damaged: str,
    ) -> TransactionInfo:
        step = None if recorded is None else recorded.step
        seal = None if recorded is None else recorded.seal
        receipt = None if recorded is None or commit is None else self._receipt(t)
        counts = None if commit is None else Counts.from_metadata(commit[1].metadata)
        began_at = recorded.steps[0].began_at or None if recorded is not None and recorded.steps else None
        is_quarantined = commit is not None and SET_ASIDE in commit[1].metadata
        state = "sealed" if seal else "damaged" if damaged else "open"
        state = "set aside" if is_quarantined else "committed" if commit else state
        sealed_at = None if seal is None else seal.sealed_at
        names = [*BUILT_IN, "index", *(each.name for each in self._outputs()), "commit"] if receipt else []
        ranges = [] if step is None else [each for ranges in step.sources.values() for each in ranges]
        return TransactionInfo(
            transaction=t,
            state=state,
            trimmed=recorded is None and not damaged,
            began_at=began_at,
            sealed_at=sealed_at if sealed_at is not None or commit is None else commit[1].created_at,
            committed_at=None if receipt is None else receipt.committed_at,
            commit=None if commit is None else commit[0],
            client="" if step is None else step.client,
            steps=None if recorded is None else len(recorded.steps),
            inputs=None if step is None else sum(each.inputs for each in ranges),
            spans_read=None if step is None else sum(each.spans for each in ranges),
            spans_new=None if counts is None else counts.new,
            spans_replaced=None if counts is None else counts.replaced,
            spans_repeated=None if counts is None else counts.repeated,
            traces=None if counts is None else counts.traces,
            stages_s=stages(began_at, sealed_at, receipt, names),
            damaged=damaged,
        )

    def _tables(self, t: int, notes: list[str]) -> Iterator[TableParts]:
        for name in BUILT_IN:
            try:
                batch = self._opened.shard(name).batch_at(t)
            except TracelakeError as error:
                notes.append(f"Parts of table {name}: {error}")
                continue
            if batch is not None:
                parts = [(part.path, part.rows) for part in batch.objects()]
                yield TableParts(name, batch.lower, batch.upper, tuple(parts[:EXPLAINED_MAX]), len(parts))

    def _index(self, t: int, commit: tuple[str, Commit] | None, notes: list[str]) -> TableParts | None:
        """Return the index parts with a transaction's spans at the transaction's commit."""
        if commit is None:
            return None
        try:
            path = index_at(self._opened.repository, commit[0])
            parts = (
                []
                if path is None
                else read_parts(self._opened.objects, read_manifest(self._opened.objects, path))
            )
        except TracelakeError as error:
            notes.append(f"Parts of {INDEX_ENTRY}: {error}")
            return None
        own = [part for part in parts if part.lower <= t < part.upper]
        if not own:
            return None
        lower, upper = min(part.lower for part in own), max(part.upper for part in own)
        shown = tuple((part.path, part.documents) for part in own[:EXPLAINED_MAX])
        return TableParts("index", lower, upper, shown, len(own))


def _input(source: str, recorded: RecordedRange) -> InputInfo:
    if isinstance(recorded, SegmentRange):
        first, last = recorded.numbers[0][0], recorded.numbers[-1][1]
        path, last_path = (
            f"{recorded.head}{number:0{recorded.digits}}{recorded.tail}" for number in (first, last)
        )
        return InputInfo(
            source,
            "run",
            path,
            last_path,
            recorded.inputs,
            recorded.size_bytes,
            None,
            recorded.records,
            recorded.spans,
            recorded.checksum,
            0,
        )
    offsets = None
    if isinstance(recorded, OffsetRange):
        offsets = {
            "topic": recorded.topic,
            "partition": recorded.partition,
            "start": recorded.start,
            "stop": recorded.stop,
        }
    kind = "offsets" if offsets else "segment" if isinstance(recorded, Segment) else "file"
    return InputInfo(
        source, kind, recorded.path, None, 1, recorded.size_bytes, recorded.sha256 or None, recorded.records,
        recorded.spans, recorded.checksum, recorded.problems_total, offsets,
    )  # fmt: skip
