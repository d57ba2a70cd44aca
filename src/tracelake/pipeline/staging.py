"""Staging of rows: what tasks read of inputs, or of a table, until its transaction is committed."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tracelake import limits
from tracelake._errors import TracelakeError
from tracelake.journal.model import ReadRange, Recorded, Sources
from tracelake.journal.runs import folded
from tracelake.pipeline.decode import run_read_task
from tracelake.pipeline.faults import Guarded, tasks_work
from tracelake.pipeline.inputs import gather, read_tasks
from tracelake.pipeline.pieces import Piece
from tracelake.pipeline.restaging import RestageTask, run_restage_task
from tracelake.pipeline.sources.port import Input
from tracelake.shards.model import Part
from tracelake.storage import ObjectStore, delete_all
from tracelake.tasks.progress import OnProgress, Progress, Stage
from tracelake.tasks.runners import ReceiptT, TaskRunner, TaskT

STAGING: Final = "staging/pipeline/"


@dataclass(frozen=True)
class ReadInput:
    """Input that was read: what the journal records of it, and its rows as staged."""

    sources: Sources
    pieces: list[Piece]
    inputs: tuple[Input, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """Inputs that could not be read this time, as path and reason."""

    @cached_property
    def recorded(self) -> Recorded:
        """What a step records of it."""
        return folded(self.sources)

    def ranges(self) -> list[ReadRange]:
        """Return what was read of each input."""
        return [taken for ranges in self.sources.values() for taken in ranges]

    def is_whole(self) -> bool:
        """Whether each input was read whole."""
        return all(taken.sha256 for taken in self.ranges())


class InputReader:
    """Carries out read tasks, and stages what they read."""

    def __init__(self, objects: ObjectStore, buckets: int, runner: TaskRunner, progress: OnProgress) -> None:
        self._objects = objects
        self._buckets = buckets
        self._runner = runner
        self._progress = progress

    def stage(self, inputs: Sequence[Input], transaction: int | None = None) -> ReadInput:
        """Read inputs; what a failing try has staged is deleted. Raises InputFaultError."""
        staging = f"{STAGING}{uuid.uuid4().hex}-"  # no directory: files would leave it
        tasks = read_tasks(inputs, self._objects.url, self._buckets, staging)
        stage: Stage = "reading" if transaction is None else "recovering"
        receipts = self._run(run_read_task, tasks, staging, stage, transaction)
        gathered = gather(inputs, receipts)
        self._delete(gathered.dropped)
        return ReadInput(gathered.sources, gathered.pieces, tuple(inputs), gathered.failed)

    def restage(self, parts: Sequence[Part], transaction: int) -> list[Piece]:
        """Stage the rows of parts of table `spans`. Raises InputFaultError."""
        staging = f"{STAGING}{uuid.uuid4().hex}-"  # no directory: files would leave it
        tasks = [RestageTask(self._objects.url, part, staging) for part in parts]
        pieces = self._run(run_restage_task, tasks, staging, "recovering", transaction)
        return [piece for of_part in pieces for piece in of_part]

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
                lambda done: self._progress(Progress(stage, done, len(tasks), "tasks", transaction)),
            )
        except Exception:
            _delete_below(self._objects, staging)
            raise

    def discard(self, staged: ReadInput) -> None:
        """Delete what was staged."""
        self._delete(staged.pieces)

    def tasks_work(self) -> bool:
        """Whether tasks can be done at all."""
        return tasks_work(self._runner, self._objects, self._buckets)

    def _delete(self, pieces: Sequence[Piece]) -> None:
        delete_all(self._objects, sorted({piece.path for piece in pieces}))


class Leftovers:
    """Rows that runs which were killed have staged: none is published by them any more."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._looks_next_s = float("-inf")

    def clean(self) -> None:
        """Delete those that are old, if it is time to look: what is staged now is listed with them."""
        if time.monotonic() >= self._looks_next_s:
            self._looks_next_s = time.monotonic() + limits.STAGED_ROWS_LOOK_EACH_S
            _delete_below(self._objects, STAGING, time.time() - limits.STAGED_ROWS_AGE_MAX_S)


def _delete_below(objects: ObjectStore, prefix: str, oldest_s: float | None = None) -> None:
    """Delete objects as well as it goes: what is left is deleted when it is old."""
    with contextlib.suppress(TracelakeError, OSError):
        old = (info.path for info in objects.list(prefix) if oldest_s is None or info.modified_s < oldest_s)
        delete_all(objects, list(old))
