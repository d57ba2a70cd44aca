"""Staging of decoded rows until their transaction is committed, restaging from table `spans`, and dry-run replay.

Once `spans` has the rows of transaction T, T can be finished without its input, which may have changed or disappeared.
The rows are staged from the table as if the input had been read again. Merged with the tables as of T-1, they give the
missing trace rows and index part. `replay` only reads recorded input again and compares it; it writes nothing.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import pyarrow.parquet as pq

from tracelake import limits
from tracelake._errors import NotFoundError, TracelakeError
from tracelake.journal.model import ReadRange, Recorded, RecordedRange, Sources, Step, compress, inputs_of
from tracelake.journal.protocol import compare
from tracelake.otlp.prices import SHIPPED, PriceTable
from tracelake.otlp.schema import SPANS
from tracelake.pipeline.decode_task import (
    STAGED_PIECE_MAX_BYTES,
    StagedSlice,
    gather,
    read_tasks,
    run_read_task,
    slice_of,
    stage,
    staged_bytes,
)
from tracelake.pipeline.input_failures import Guarded, tasks_work
from tracelake.pipeline.sources.base import Input
from tracelake.scratch import scratch_directory
from tracelake.shards.model import Part
from tracelake.shards.parts import check_part, cut, is_all
from tracelake.shards.rows import read_group
from tracelake.storage import LocalFiles, ObjectStore, delete_all, open_objects, put_temporary
from tracelake.tasks.runners import OnProgress, Progress, ReceiptT, Stage, TaskRunner, TaskT, engine_of

STAGED_ROWS_LOOK_EACH_S: Final = 3600.0
"""Interval at which a pipeline lists expired staged rows."""


@dataclass(frozen=True, slots=True)
class RestageTask:
    """Task that stages the rows of one part of table `spans`."""

    objects_url: str
    part: Part
    staging: str
    """Path prefix of the staged objects."""


def run_restage_task(task: RestageTask) -> list[StagedSlice]:
    """Run one task, a row group at a time. Raises DamageError if the part is damaged."""
    objects = open_objects(task.objects_url)
    pieces: list[StagedSlice] = []
    with scratch_directory("restage") as folder:
        file = LocalFiles(objects, folder).file(task.part.path)
        check_part(file, task.part)
        with pq.ParquetFile(file) as part:
            for group in range(part.num_row_groups):
                rows = read_group(part, group, SPANS)
                if is_all(task.part.bucket):
                    pieces += stage(rows, objects, task.staging, -task.part.bucket)
                    continue
                for few in cut(rows, STAGED_PIECE_MAX_BYTES):
                    path, data = f"{task.staging}{uuid.uuid4().hex}.arrow", staged_bytes(few)
                    put_temporary(objects, path, data.to_pybytes())
                    pieces.append(slice_of(path, 0, data, task.part.bucket, few))
    return pieces


STAGING: Final = "staging/pipeline/"


@dataclass(frozen=True)
class ReadInput:
    """Input that was read: its journal record and its staged rows."""

    sources: Sources
    pieces: list[StagedSlice]
    inputs: tuple[Input, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """Path and reason of inputs that could not be read."""

    @cached_property
    def recorded(self) -> Recorded:
        """The sources as a step records them."""
        return compress(self.sources)

    def ranges(self) -> list[ReadRange]:
        """Return the ranges of all inputs."""
        return [read_range for ranges in self.sources.values() for read_range in ranges]

    def is_complete(self) -> bool:
        """Return whether every input was read completely."""
        return all(read_range.sha256 for read_range in self.ranges())


class InputReader:
    """Runs read tasks, and deletes the rows that they staged when asked."""

    def __init__(
        self,
        objects: ObjectStore,
        buckets: int,
        runner: TaskRunner,
        progress: OnProgress,
        prices: PriceTable = SHIPPED,
    ) -> None:
        self._prices = prices
        self._objects = objects
        self._buckets = buckets
        self._runner = runner
        self._progress = progress

    def stage(
        self, inputs: Sequence[Input], transaction: int | None = None, prices: PriceTable | None = None
    ) -> ReadInput:
        """Run tasks that read inputs and stage their rows. On failure, delete the rows staged so far. Raises
        InputFaultError if a task failed in a way that may be due to its input.

        `prices` are those of a recorded step; by default those of the reader.
        """
        staging = (
            f"{STAGING}{uuid.uuid4().hex}-"  # no directory, because deleting files would leave it behind
        )
        tasks = read_tasks(inputs, self._objects.url, self._buckets, staging, prices or self._prices)
        stage: Stage = "reading" if transaction is None else "recovering"
        receipts = self._run(run_read_task, tasks, staging, stage, transaction)
        gathered = gather(inputs, receipts)
        self._delete(gathered.dropped)
        return ReadInput(gathered.sources, gathered.pieces, tuple(inputs), gathered.failed)

    def restage(self, parts: Sequence[Part], transaction: int) -> list[StagedSlice]:
        """Stage the rows of parts of table `spans` again. Raises InputFaultError if a task failed in a way that may be
        due to its input."""
        staging = (
            f"{STAGING}{uuid.uuid4().hex}-"  # no directory, because deleting files would leave it behind
        )
        tasks = [RestageTask(self._objects.url, part, staging) for part in parts]
        pieces = self._run(run_restage_task, tasks, staging, "recovering", transaction)
        return [
            piece if is_all(part.bucket) else replace(piece, part=number)
            for number, (part, of_part) in enumerate(zip(parts, pieces, strict=True))
            for piece in of_part
        ]

    def _run(
        self,
        function: Callable[[TaskT], ReceiptT],
        tasks: Sequence[TaskT],
        staging: str,
        stage: Stage,
        transaction: int | None,
    ) -> list[ReceiptT]:
        try:
            return Guarded(self._runner).run(
                function,
                tasks,
                lambda finished_tasks: self._progress(
                    Progress(
                        stage,
                        finished_tasks,
                        len(tasks),
                        "tasks",
                        transaction,
                        engine=engine_of(self._runner),
                    )
                ),
            )
        except Exception:
            _delete_below(self._objects, staging)
            raise

    def discard(self, staged: ReadInput) -> None:
        """Delete staged rows."""
        self._delete(staged.pieces)

    def tasks_work(self) -> bool:
        """Return whether tasks succeed on a known good input."""
        return tasks_work(self._runner, self._objects, self._buckets)

    def _delete(self, pieces: Sequence[StagedSlice]) -> None:
        delete_all(self._objects, sorted({piece.path for piece in pieces}))


class Leftovers:
    """Deletes staged rows that crashed runs left behind."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._looks_next_s = float("-inf")

    def clean(self) -> None:
        """Delete old staged rows, at most once per STAGED_ROWS_LOOK_EACH_S, because listing includes current ones."""
        if time.monotonic() >= self._looks_next_s:
            self._looks_next_s = time.monotonic() + STAGED_ROWS_LOOK_EACH_S
            _delete_below(self._objects, STAGING, time.time() - limits.STAGED_ROWS_AGE_MAX_S)


def _delete_below(objects: ObjectStore, prefix: str, oldest_s: float | None = None) -> None:
    """Delete objects, ignoring errors. Remaining ones are deleted when they are old."""
    with contextlib.suppress(TracelakeError, OSError):
        old = (info.path for info in objects.list(prefix) if oldest_s is None or info.modified_s < oldest_s)
        delete_all(objects, list(old))


def delete_staged(
    objects: ObjectStore, until_s: float, find_erased: Callable[[bytes], Collection[str]]
) -> None:
    """Delete staged rows that were written up to a time, and newer ones in which `find_erased` finds a value.

    A process that needs deleted rows nevertheless reads its input again.
    """
    doomed: list[str] = []
    for info in objects.list(STAGING):
        with contextlib.suppress(NotFoundError):  # its pipeline has ended the transaction
            if info.modified_s <= until_s or find_erased(objects.get(info.path)):
                doomed.append(info.path)
    delete_all(objects, doomed)


@dataclass(frozen=True, slots=True)
class ReplayedSource:
    """Result of replaying one source."""

    source: str
    inputs: int
    records: int
    """As recorded."""
    spans: int
    read_records: int
    """As read now."""
    read_spans: int
    gone: int
    """Inputs that no longer exist, because a source deletes committed input."""
    difference: str | None
    """Name of the first difference, None if all is as recorded."""


def replay(step: Step, objects: ObjectStore, buckets: int, runner: TaskRunner) -> list[ReplayedSource]:
    """Read the inputs of a step again and compare them with the record: sizes and checksums of the inputs, then the
    decoded rows."""
    inputs = [
        Input(source, recorded_input.path, recorded_input.size_bytes)
        for source, ranges in step.sources.items()
        for recorded_input in inputs_of(ranges)
    ]
    receipts = runner.run(run_read_task, read_tasks(inputs, objects.url, buckets, ""), lambda _: None)
    read = gather(inputs, receipts).sources
    return [_compared(source, ranges, read) for source, ranges in step.sources.items()]


def _compared(
    source: str, recorded: Sequence[RecordedRange], read: Mapping[str, Sequence[ReadRange]]
) -> ReplayedSource:
    again = read.get(source, ())
    reread = {source: again} if again else {}
    return ReplayedSource(
        source,
        inputs=sum(recorded_range.inputs for recorded_range in recorded),
        records=sum(recorded_range.records for recorded_range in recorded),
        spans=sum(recorded_range.spans for recorded_range in recorded),
        read_records=sum(recorded_range.records for recorded_range in again),
        read_spans=sum(recorded_range.spans for recorded_range in again),
        gone=sum(not recorded_range.sha256 for recorded_range in again),
        difference=compare({source: recorded}, reread),
    )
