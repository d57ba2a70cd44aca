"""Poison inputs: a marked span makes the task fail that reads it, or the one that merges it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake.otlp.framing import Payload, Reading, write_segment
from tracelake.pipeline.decode_task import ReadTask, read_piece
from tracelake.pipeline.merge_task import TransactionMergeTask
from tracelake.pipeline.sources.registry import fetch
from tracelake.storage import ObjectStore, open_objects
from tracelake.tasks.runners import InProcess

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
POISON = "poison"


def good(number: int) -> bytes:
    """Return a segment with one span of a new trace."""
    return write_segment([("json", a_line(a_span(number, number)))])


def poisoned(number: int) -> bytes:
    """Return a segment whose span makes the tasks of `Poisoned` fail."""
    return write_segment([("json", a_line(a_span(number, number, note=POISON)))])


class Poisoned(InProcess):
    """Runner in process; the tasks of a stage fail on the marked span until it is repaired."""

    def __init__(self, stage: str) -> None:
        """Fail at read if `read`, otherwise at merge."""
        self.stage = stage
        self.mended = False
        self.error: Exception = OverflowError("the sum does not fit")
        self.failures: Counter[str] = Counter()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""

        def carry_out(task: TaskT) -> ReceiptT:
            receipt = function(task)  # the task's output exists when the task fails
            if not self.mended and self._fails(task):
                self.failures[type(task).__name__] += 1
                raise self.error
            return receipt

        return super().run(carry_out, tasks, on_done)

    def _fails(self, task: Any) -> bool:
        if isinstance(task, ReadTask) and self.stage == "read":
            return any(POISON in text for text in _texts(task))
        if isinstance(task, TransactionMergeTask) and self.stage == "merge":
            return any(POISON in str(rows["attributes"].to_pylist()) for rows in _rows(task))
        return False


def _texts(task: ReadTask) -> list[str]:
    """Return the payloads of the inputs."""
    with tempfile.TemporaryDirectory() as folder:
        objects = open_objects(task.objects_url)
        return [
            item.data.decode()
            for share in task.shares
            for item in Reading(fetch(objects, share.source, share.path, share.size_bytes, Path(folder)))
            if isinstance(item, Payload)
        ]


def _rows(task: TransactionMergeTask) -> list[pa.Table]:
    objects: ObjectStore = open_objects(task.objects_url)
    return [read_piece(objects, piece) for piece in task.pieces]


def names(lake: Lake) -> set[int]:
    """Return the numbers of the spans in the tables."""
    found = lake.sql("select span_id from spans")["span_id"].to_pylist()
    return {int(str(span_id), 16) - 1 for span_id in found}
