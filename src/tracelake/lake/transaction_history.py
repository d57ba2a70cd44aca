"""What the journal of a lake tells: which input made which transaction, and what came of it. `lake.journal`.

What the journal of a lake tells of transactions. Times are ISO 8601, UTC; None where nobody knows.

How long a transaction took, by stage. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from tracelake._errors import DamageError, NotFoundError, TracelakeError, TrimmedError, UsageError
from tracelake.journal.model import OffsetRange, QuarantineRecord, RecordedRange, Segment, SegmentRange
from tracelake.journal.repair import repair
from tracelake.journal.store import (
    Journal,
    OutputReceipts,
    PublishReceipt,
    PublishReceipts,
    TransactionRecord,
)
from tracelake.lake.context import LakeContext
from tracelake.limits import EXPLAINED_MAX, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX
from tracelake.pipeline.outputs.added import AddedOutputs, OutputRecord
from tracelake.pipeline.outputs.builtin import SET_ASIDE
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
    """One transaction of the pipeline."""

    transaction: int
    state: str
    """open | sealed (and not committed yet) | committed | set aside | damaged (its record cannot be read)"""
    trimmed: bool
    """Whether the journal has let go of what it read: then its commit alone tells of it."""
    began_at: str | None
    sealed_at: str | None
    committed_at: str | None
    commit: str | None
    client: str
    """The explicit transaction that it is; empty where it is none."""
    steps: int | None
    inputs: int | None
    spans_read: int | None
    spans_new: int | None
    spans_replaced: int | None
    spans_repeated: int | None
    traces: int | None
    stages_s: dict[str, float]
    """Seconds by stage: open (first step to seal), writing, and each output, the commit last."""
    damaged: str = ""
    """Why what it read cannot be told: its record in the journal is damaged."""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """An input of a transaction, or a run of segments whose paths differ by a number."""

    source: str
    kind: str
    """file | segment | run | offsets"""
    path: str
    last_path: str | None
    """Of a run: the last; `path` is the first."""
    inputs: int
    size_bytes: int
    sha256: str | None
    records: int
    spans: int
    checksum: str
    problems: int
    offsets: dict[str, Any] | None = None
    """Of a log: topic, partition, and offsets from `start` to before `stop`."""


@dataclass(frozen=True, slots=True)
class TableParts:
    """The parts of a table, or of the index, that have rows of a transaction."""

    name: str
    lower: int
    upper: int
    """They hold the transactions from `lower` to before `upper`: more than one where they were put together since."""
    parts: tuple[tuple[str, int], ...]
    """Path, and rows or documents of each."""
    parts_total: int


@dataclass(frozen=True, slots=True)
class WrittenOffsets:
    """Where an output has messages of a transaction: in a partition, from `start` to before `stop`."""

    partition: int
    start: int
    stop: int
    messages: int
    """Fewer than the offsets where others wrote between them."""


@dataclass(frozen=True, slots=True)
class OutputAccount:
    """An output besides the tables that has a transaction."""

    name: str
    to: str
    messages: int | None = None
    """None where nobody has noted it: it had no rows for it, or does not say what it has."""
    offsets: tuple[WrittenOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionAccount:
    """Which input made a transaction, and what came of it."""

    info: TransactionInfo
    inputs: tuple[InputInfo, ...]
    inputs_total: int
    tables: tuple[TableParts, ...]
    index: TableParts | None
    outputs: tuple[OutputAccount, ...]
    """The outputs besides the tables that have it."""
    by: str | None
    """The replica that published it."""
    notes: tuple[str, ...] = field(default=())
    """Why it was set aside, what is no longer known, and why."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What the recorded input of a transaction gives when it is read again, beside what was recorded and written."""

    transaction: int
    sources: tuple[ReplayedSource, ...]
    difference: str | None
    """The first difference, by source or value; None where there is none."""

    @property
    def ok(self) -> bool:
        """Whether it gives what it gave."""
        return self.difference is None


def stages(
    began_at: str | None, sealed_at: str | None, receipt: PublishReceipt | None, names: Sequence[str]
) -> dict[str, float]:
    """Return seconds by stage, as far as they are known; clocks of several machines may have given the times.

    `names` are those of the outputs; where an output was added or removed since, they go by number.
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
    """The transactions of a lake's pipeline: `lake.journal`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened
        self._journal = Journal(opened.key_value, "main")
        self._receipts = PublishReceipts(opened.key_value, "main")
        self._written = OutputReceipts(opened.key_value, "main")

    def transactions(
        self, limit: int = PAGE_ROWS_DEFAULT, before: int | None = None
    ) -> list[TransactionInfo]:
        """Return the newest transactions, what is not committed yet first; or a page of those before one."""
        if not 0 < limit <= PAGE_ROWS_MAX:
            raise UsageError(f"a page has from 1 to {PAGE_ROWS_MAX} transactions, not {limit}.")
        upper, infos = self._upper(), list[TransactionInfo]()
        if before is None or before > upper:
            begun, damaged = self._readable(upper)
            if damaged or (begun is not None and begun.steps):
                infos.append(self._info(upper, begun, None, damaged))
        stop = upper if before is None else before
        for t, commit in islice(self._commits(stop), limit - len(infos)):
            recorded, damaged = self._readable(t)
            infos.append(self._info(t, recorded, commit, damaged))
        return infos

    def explain(self, transaction: int) -> TransactionAccount:
        """Say which input made a transaction, and which parts, index parts, outputs and commit came of it.

        Raises NotFoundError where no such transaction was begun.
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
            notes.append(f"What it read cannot be told: {damaged}")
        elif recorded is None:
            notes.append(
                "The journal has let go of it: which inputs it read, and when it was committed, is no longer known. "
                "What its commit and the tables say is below. Setting journal_transactions says how many are kept."
            )
        aside = None if damaged else self._aside(t)
        if aside is not None:
            notes.append(f"Set aside by the {aside.by} after {aside.tries} tries: {aside.reason}.")
        receipt = None if recorded is None else self._receipt(t)
        if commit is not None and recorded is not None and receipt is None:
            notes.append("When it was committed, and how long its outputs took, nobody has noted.")
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
        """Read the recorded input of a transaction again, and compare it with what was recorded and written.

        Nothing is written. First the sources are compared, then what each gave, by checksum.

        Raises UsageError where the journal does not tell of it any more, NotFoundError where it was never begun.
        """
        account = self.explain(transaction)
        recorded = self._recorded(transaction)
        if recorded is None or recorded.step is None:
            raise UsageError(
                f"the journal has let go of transaction {transaction}: nothing tells what to read again."
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

        A torn seal is written again from the steps and the commit. If a step is torn, the journal forgets the
        transaction and all before it: they stay committed, and which inputs they read is no longer known.

        Raises UsageError if the records are whole; DamageError if no commit proves what they said.
        """
        damaged = self._readable(transaction)[1] or "its records are not whole."
        stop = self._upper()
        commits = self._commits(transaction + 1) if 0 <= transaction < stop else iter(())
        commit = next((commit for t, (_, commit) in commits if t == transaction), None)
        if commit is None:
            raise DamageError(
                f"transaction {transaction} has no commit, so nothing proves what its records said: {damaged} "
                "Nothing was changed."
            )
        if SET_ASIDE in commit.metadata:
            raise DamageError(
                f"transaction {transaction} was set aside, and its commit does not say which inputs must be offered "
                f"again: {damaged} Nothing was changed."
            )
        counts = Counts.from_metadata(commit.metadata)
        spans = counts.new + counts.replaced + counts.repeated
        if repair(self._journal, transaction, commit.created_at, spans) == "seal":
            return f"The seal of transaction {transaction} was written again from its steps and its commit."
        return (
            f"The journal has forgotten transaction {transaction} and all before it. They stay committed; which inputs "
            "they read is no longer known. Inputs that still exist may be read again, as repeats."
        )

    def _upper(self) -> int:
        head = self._opened.repository.head()
        return 0 if head is None else self._opened.repository.transaction_of(head) + 1

    def _commits(self, before: int) -> Iterator[tuple[int, tuple[str, Commit]]]:
        """Yield commits of transactions below one, the newest first."""
        head = self._known(before - 1) or self._opened.repository.head()
        for commit_id, commit in self._opened.repository.log(head) if head is not None else ():
            t = commit.metadata.get(TRANSACTION)
            if t is not None and int(t) < before:
                yield int(t), (commit_id, commit)

    def _known(self, t: int) -> str | None:
        """Return a commit near a transaction, at it or behind, so that an old one takes no longer than a new one."""
        try:
            receipt = self._receipts.first_from(t) if t >= 0 else None
            if receipt is None or not receipt.commit:
                return None
            is_it = self._opened.repository.transaction_of(receipt.commit) == receipt.transaction
        except DamageError:
            return None  # then the walk begins with the newest
        return receipt.commit if is_it else None

    def _recorded(self, t: int) -> TransactionRecord | None:
        """Return what the journal has of a transaction; None where it has let go of it."""
        try:
            return self._journal.read(t)
        except TrimmedError:
            return None

    def _readable(self, t: int) -> tuple[TransactionRecord | None, str]:
        """Return what the journal has of a transaction, or why nobody can read it: that hides no other."""
        try:
            self._aside(t)
            return self._recorded(t), ""
        except DamageError as error:
            return None, str(error)

    def _aside(self, t: int) -> QuarantineRecord | None:
        try:
            return self._journal.aside(t)
        except TrimmedError:
            return None

    def _receipt(self, t: int) -> PublishReceipt | None:
        try:
            return self._receipts.read(t)
        except DamageError:
            return None  # `verify` names it

    def _output(self, t: int, output: OutputRecord) -> OutputAccount:
        try:
            receipt = self._written.read(t, output.id)
        except DamageError:
            receipt = None  # `verify` names it
        if receipt is None:
            return OutputAccount(output.name, output.to)
        offsets = (WrittenOffsets(at.partition, at.start, at.stop, at.messages) for at in receipt.partitions)
        return OutputAccount(output.name, output.to, receipt.messages, tuple(offsets))

    def _outputs(self) -> list[OutputRecord]:
        opened = self._opened
        return AddedOutputs(opened.key_value, opened.objects, opened.config.buckets).records().whole

    def _info(
        self, t: int, recorded: TransactionRecord | None, commit: tuple[str, Commit] | None, damaged: str
    ) -> TransactionInfo:
        step = None if recorded is None else recorded.step
        seal = None if recorded is None else recorded.seal
        receipt = None if recorded is None or commit is None else self._receipt(t)
        counts = None if commit is None else Counts.from_metadata(commit[1].metadata)
        began_at = recorded.steps[0].began_at or None if recorded is not None and recorded.steps else None
        is_aside = commit is not None and SET_ASIDE in commit[1].metadata
        state = "sealed" if seal else "damaged" if damaged else "open"
        state = "set aside" if is_aside else "committed" if commit else state
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
        """Return the index parts with the spans of a transaction, as its own commit names them."""
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


def _input(source: str, taken: RecordedRange) -> InputInfo:
    if isinstance(taken, SegmentRange):
        first, last = taken.numbers[0][0], taken.numbers[-1][1]
        path, last_path = (f"{taken.head}{number:0{taken.digits}}{taken.tail}" for number in (first, last))
        return InputInfo(
            source,
            "run",
            path,
            last_path,
            taken.inputs,
            taken.size_bytes,
            None,
            taken.records,
            taken.spans,
            taken.checksum,
            0,
        )
    offsets = None
    if isinstance(taken, OffsetRange):
        offsets = {
            "topic": taken.topic,
            "partition": taken.partition,
            "start": taken.start,
            "stop": taken.stop,
        }
    kind = "offsets" if offsets else "segment" if isinstance(taken, Segment) else "file"
    return InputInfo(
        source, kind, taken.path, None, 1, taken.size_bytes, taken.sha256 or None, taken.records, taken.spans,
        taken.checksum, taken.problems_total, offsets,
    )  # fmt: skip
