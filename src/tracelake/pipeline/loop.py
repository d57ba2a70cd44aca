"""The driver loop: it carries out what `journal.protocol` decides, one action after the other."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Final

from msgspec.structs import replace

from tracelake._errors import DamageError, NotFoundError, SourceChangedError, StorageError, TracelakeError
from tracelake.journal.known import KnownInputs
from tracelake.journal.model import ReadRange, Seal, Sources, Step
from tracelake.journal.protocol import (
    Append,
    Appended,
    Event,
    Fed,
    Feed,
    Look,
    NoInput,
    OpenInputs,
    Publish,
    Published,
    Read,
    Sealed,
    SealIt,
    Started,
    State,
    Stop,
    advance,
    compare,
    totals,
)
from tracelake.journal.store import Journal
from tracelake.otlp.whole import fingerprint
from tracelake.pipeline.executors import Executor
from tracelake.pipeline.inputs import INBOX, Input, gather, read_tasks
from tracelake.pipeline.maintenance import ORDERS, Maintainer
from tracelake.pipeline.names import to_path
from tracelake.pipeline.progress import OnProgress, Progress, Stage, silent
from tracelake.pipeline.publish import TRANSFORM, Counts, Outputs
from tracelake.pipeline.reading import Piece, run_read_task
from tracelake.replicas.account import Tally
from tracelake.storage import KeyValueStore, ObjectStore

STAGING: Final = "staging/pipeline/"
QUARANTINE: Final = "quarantine/"
"""Segments that were acknowledged and could not be read whole: for a person to look at, never deleted here."""
STAGING_MAX_AGE_S: Final = 24 * 3600.0
"""Staged rows of a run that was killed are deleted after a day: longer than any transaction takes."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Input that was read: what the journal records of it, and its rows as staged."""

    sources: Sources
    pieces: list[Piece]
    inputs: tuple[Input, ...]
    failed: dict[str, str]
    """Inputs that could not be read this time, as path and reason."""


@dataclass(slots=True)
class RunResult:
    """What one run did."""

    transactions: list[int] = field(default_factory=list)
    recovered: list[int] = field(default_factory=list)
    ranges: list[ReadRange] = field(default_factory=list)
    """Every input that was read, of recovered transactions and of new ones, in order."""
    known: list[ReadRange] = field(default_factory=list)
    """Inputs whose bytes an earlier transaction holds, as they were read then: they are not read again."""
    failed: dict[str, str] = field(default_factory=dict)
    """Inputs that could not be read this time, as path and reason: nothing was taken, and the next run tries again."""
    counts: list[Counts] = field(default_factory=list)
    commit: str | None = None


class Pipeline:
    """Reads inputs, and turns each run of them into one transaction."""

    def __init__(
        self,
        name: str,
        key_value: KeyValueStore,
        objects: ObjectStore,
        buckets: int,
        executor: Executor,
        tally: Tally | None = None,
    ) -> None:
        self._rooms = _Rooms(
            Journal(key_value, name),
            KnownInputs(key_value, name),
            Outputs(key_value, objects, buckets, tally),
            objects,
            buckets,
            executor,
            Maintainer(key_value, objects, executor),
        )

    def run(
        self,
        runs: Sequence[Sequence[Input]],
        progress: OnProgress = silent,
        stopping: Callable[[], bool] = lambda: False,
    ) -> RunResult:
        """Finish what an earlier run left, then make each run of inputs a transaction.

        Files whose bytes a transaction holds already are not read a second time. Once `stopping` answers
        True, no other transaction is begun.

        Raises:
            SourceChangedError: the unfinished transaction cannot be replayed as it was recorded.
            DamageError: the journal contradicts the tables.
        """
        return _Run(self._rooms, progress, stopping).go(runs)

    def upper(self) -> int:
        """Return the least transaction that has no commit."""
        return self._rooms.outputs.upper()

    def unfinished(self) -> bool:
        """Whether an earlier run, or a peer, has begun a transaction that has no commit yet."""
        return self._rooms.journal.read(self.upper()).step is not None


@dataclass(frozen=True, slots=True)
class _Rooms:
    """What a pipeline works with."""

    journal: Journal
    known: KnownInputs
    outputs: Outputs
    objects: ObjectStore
    buckets: int
    executor: Executor
    maintainer: Maintainer


class _Run:
    """One run of the loop, with its state."""

    def __init__(self, rooms: _Rooms, progress: OnProgress, stopping: Callable[[], bool]) -> None:
        self._rooms = rooms
        self._progress = progress
        self._stopping = stopping
        self._waiting: deque[list[Input]] = deque()
        self._read: Staged | None = None  # new input that is not recorded yet
        self._fed: Staged | None = None  # the staged rows of the transaction under way
        self._result = RunResult()

    def go(self, runs: Sequence[Sequence[Input]]) -> RunResult:
        self._waiting.extend(list(run) for run in runs)
        self._clean_staging()
        state: State | None = None
        event: Event = self._look(0)
        while True:
            state, action = advance(state, event)
            match action:
                case Stop(None):
                    return self._result
                case Stop(reason):
                    raise SourceChangedError(f"{reason}. Nothing was published.")
                case Look(t):
                    event = self._look(t)
                case OpenInputs():
                    event = self._open_inputs()
                case Feed(step):
                    self._result.recovered.append(step.transaction)
                    event = self._feed(step)
                case Append(t):
                    event = self._append(t)
                case SealIt(t):
                    self._seal(t)
                    event = Sealed()
                case Publish(t):
                    if isinstance(event, Started):  # only the commit was missing
                        self._result.recovered.append(t)
                    self._publish(t)
                    event = Published()

    def _look(self, at_least: int) -> Started:
        t = max(at_least, self._rooms.outputs.upper())  # peers may have gone on
        if t > 0:
            # Before T is open, the segments that T-1 holds are gone: none can be recorded a second time.
            self._settle_inputs(t - 1)
        # Outputs first: a peer may seal and append between the two looks, and a seal is never taken back.
        begun = self._rooms.outputs.table_upper() > t or self._rooms.outputs.is_indexed(t)
        recorded = self._rooms.journal.read(t)
        if recorded.seal is None and begun:
            raise DamageError(
                f"tables or index hold transaction {t}, and the journal has no seal of it. "
                "Restore the metadata from a backup."
            )
        return Started(
            transaction=t,
            step=recorded.step,
            sealed=recorded.seal is not None,
            only_commit_missing=recorded.seal is not None and self._rooms.outputs.only_commit_missing(t),
            transform=TRANSFORM,
        )

    def _open_inputs(self) -> Read | NoInput:
        while self._read is None:
            if not self._waiting or self._stopping():
                return NoInput()
            inputs = self._without_taken(self._waiting.popleft())
            if not inputs:
                continue
            staged = self._stage(inputs)
            self._result.failed |= staged.failed
            kept = {}
            for source, ranges in staged.sources.items():
                for taken in ranges:
                    # What gave no span is reported and not recorded, so that a later run may read it, mended.
                    if not taken.spans:
                        self._leave(source, taken)
                if some := tuple(taken for taken in ranges if taken.spans):
                    kept[source] = some
            if kept:
                paths = {(source, taken.path) for source, ranges in kept.items() for taken in ranges}
                left = tuple(item for item in inputs if (item.source, item.path) in paths)
                self._read = Staged(kept, staged.pieces, left, {})
        return Read()

    def _leave(self, source: str, taken: ReadRange) -> None:
        """Report an input that gave no span. A segment goes, unless it could not be read whole: it was acknowledged."""
        if source == INBOX:
            if not taken.sha256:
                if self._rooms.objects.head(taken.path) is None:
                    self._result.failed.pop(taken.path, None)
                    return  # a peer has taken it
                self._result.failed.setdefault(taken.path, taken.problems[0][2])
            else:
                self._delete_segments([taken])
        self._result.ranges.append(taken)

    def _without_taken(self, inputs: list[Input]) -> list[Input]:
        """Leave out segments that a peer took, and files whose bytes an earlier transaction holds."""
        taken_now = {(taken.path, taken.sha256) for taken in self._result.ranges}
        left = []
        for item in inputs:
            if item.source == INBOX:
                if self._rooms.objects.head(item.path) is not None:
                    left.append(item)
                continue
            before = self._rooms.known.find(item.size_bytes, partial(_sha256, item))
            if before is None:
                left.append(item)
            elif (item.path, before.sha256) not in taken_now:
                self._result.known.append(replace(before, path=item.path))
        return left

    def _stage(self, inputs: Sequence[Input], transaction: int | None = None) -> Staged:
        tasks = read_tasks(
            inputs, self._rooms.objects.url, self._rooms.buckets, f"{STAGING}{uuid.uuid4().hex}/"
        )
        stage: Stage = "reading" if transaction is None else "recovering"
        receipts = self._rooms.executor.run(
            run_read_task,
            tasks,
            lambda done: self._progress(Progress(stage, done, len(tasks), "tasks", transaction)),
        )
        gathered = gather(inputs, receipts)
        self._delete_pieces(gathered.dropped)
        return Staged(gathered.sources, gathered.pieces, tuple(inputs), gathered.failed)

    def _feed(self, step: Step) -> Fed | Published:
        inputs = [
            Input(source, taken.path, taken.size_bytes)
            for source, ranges in step.sources.items()
            for taken in ranges
        ]
        fed = self._stage(inputs, step.transaction)
        differs = compare(step.sources, fed.sources) is not None
        if differs and self._rooms.outputs.upper() > step.transaction:
            self._rooms.outputs.tally.rows_dropped += sum(piece.rows for piece in fed.pieces)
            self._discard(fed)
            return Published()  # a peer was faster, and has deleted what it took from the inbox
        for path, reason in fed.failed.items():
            self._discard(fed)
            raise StorageError(
                f"transaction {step.transaction}: {path} {reason}. Nothing was published; the next run reads it again."
            )
        self._fed = fed  # and not before: these rows must not be taken for those of the next transaction
        return Fed(fed.sources)

    def _append(self, t: int) -> Appended:
        assert self._read is not None
        step, ours = self._rooms.journal.append_step(Step(t, self._read.sources, TRANSFORM))
        if ours:
            self._fed = self._read
        else:  # the peer's step may hold some of these inputs: read again what it left
            self._waiting.appendleft(list(self._read.inputs))
            self._discard(self._read)
        self._read = None
        return Appended(step, ours, sealed=not ours and self._rooms.journal.read(t).seal is not None)

    def _seal(self, t: int) -> None:
        step = self._rooms.journal.read(t).step
        assert step is not None
        records, checksum = totals(step.sources)
        self._rooms.journal.append_seal(Seal(t, records, checksum, _now().isoformat(timespec="microseconds")))

    def _publish(self, t: int) -> None:
        recorded = self._rooms.journal.read(t)
        assert recorded.step is not None
        assert recorded.seal is not None
        pieces = self._fed.pieces if self._fed is not None else None
        commit, counts = self._rooms.outputs.publish(
            recorded.step, recorded.seal, pieces, self._rooms.executor, self._progress
        )
        self._settle_inputs(t)
        if self._fed is not None:
            self._discard(self._fed)
            self._fed = None
        result = self._result
        result.transactions.append(t)
        result.ranges += [taken for ranges in recorded.step.sources.values() for taken in ranges]
        result.counts.append(counts)
        result.commit = commit
        for name, shard in self._rooms.outputs.shards().items():
            self._rooms.maintainer.maintain(shard, ORDERS[name], self._progress)

    def _settle_inputs(self, t: int) -> None:
        """Remember the files of a committed transaction, and delete its segments; again after a crash."""
        step = self._rooms.journal.read(t).step
        if step is None:
            raise DamageError(
                f"transaction {t} is committed, and the journal has no record of it. Restore the journal."
            )
        for source, ranges in step.sources.items():
            for taken in ranges:
                if source != INBOX:
                    self._rooms.known.remember(taken)
        self._delete_segments(step.sources.get(INBOX, ()))

    def _delete_segments(self, segments: Sequence[ReadRange]) -> None:
        """Delete segments that were taken; one that could not be read whole is kept in quarantine."""
        for taken in segments:
            if taken.damaged:
                with contextlib.suppress(NotFoundError):  # done before, or by a peer
                    self._rooms.objects.copy(taken.path, QUARANTINE + taken.path)
            self._rooms.objects.delete(taken.path)

    def _discard(self, staged: Staged) -> None:
        self._delete_pieces(staged.pieces)

    def _delete_pieces(self, pieces: Sequence[Piece]) -> None:
        for path in {piece.path for piece in pieces}:
            self._rooms.objects.delete(path)

    def _clean_staging(self) -> None:
        oldest = _now().timestamp() - STAGING_MAX_AGE_S
        for info in list(self._rooms.objects.list(STAGING)):
            if info.modified_s < oldest:
                with contextlib.suppress(TracelakeError):
                    self._rooms.objects.delete(info.path)


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)  # by `time`, so that a simulation can answer


def _sha256(item: Input) -> str:
    return fingerprint(to_path(item.path), item.size_bytes)[1]
