"""Whose fault it is that a task failed: that of its input, or of the machine, the stores, or what is stored.

Only what an input does to a task, again and again, may set it aside. So failures of stores and of the system never
count; and before anything is set aside, the same tasks must succeed on an input that is known to be good.
"""

from __future__ import annotations

import builtins
import contextlib
import uuid
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tracelake import _errors
from tracelake._errors import (
    DamageError,
    NotFoundError,
    SourceChangedError,
    StorageError,
    TaskError,
    TracelakeError,
)
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.decode import InputShare, ReadTask, run_read_task
from tracelake.pipeline.merge import ShapeTask, TableBefore, run_shape_task
from tracelake.pipeline.sources.registry import OBJECTS_OF_THE_LAKE
from tracelake.search.analyzers import ENGLISH
from tracelake.search.finalize import clean_staging
from tracelake.shards.store import EMPTY
from tracelake.storage import ObjectStore
from tracelake.tables.built_in import BUILT_IN, TABLE_SPANS
from tracelake.tasks.runners import TaskRunner

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
_NOT_OF_INPUT: Final = (StorageError, DamageError, NotFoundError, SourceChangedError, OSError)
_CONTROL: Final = (
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%032x","spanId":"%016x","name":"control",'
    b'"startTimeUnixNano":"1","endTimeUnixNano":"2"}]}]}]}' % (1, 1)
)


class InputFaultError(Exception):
    """A task failed, and its input may be at fault; the error says how."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Guarded:
    """An executor that tells apart failures that may be due to the input."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def start(self) -> None:
        """See TaskRunner."""
        self._runner.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run all tasks. Raises InputFaultError for a failure that may be due to one of them."""
        try:
            return self._runner.run(function, tasks, on_done)
        except Exception as error:
            if may_be_of_input(error):
                raise InputFaultError(error) from error
            raise

    def stop(self) -> None:
        """See TaskRunner."""
        self._runner.stop()


def may_be_of_input(error: Exception) -> bool:
    """Whether a task may have failed because of what it was given."""
    if isinstance(error, TaskError):
        return not error.ended and _may_be((error.kind or "").rsplit(".", 1)[-1])
    return not isinstance(error, _NOT_OF_INPUT) and _may_be(type(error).__name__)


def _may_be(name: str) -> bool:
    """Whether an error of a class of this name may be of the input."""
    kind = getattr(_errors, name, None) or getattr(builtins, name, None)
    # DuckDB has an error of its own for a disk that is full or fails.
    return name != "IOException" and not (isinstance(kind, type) and issubclass(kind, _NOT_OF_INPUT))


def tasks_work(runner: TaskRunner, objects: ObjectStore, buckets: int) -> bool:
    """Carry out both tasks on a small input that is known to be good; leave nothing of it behind.

    What a store raises is raised: then it is unknown whether tasks work, and the next run looks again.
    """
    name = uuid.uuid4().hex
    staging, build = f"staging/pipeline/{name}-", f"control-{name}"
    segment, data = f"{staging}control.segment", write_segment([("json", _CONTROL)])
    written = [segment]
    try:
        objects.put(segment, data)
        share = InputShare(OBJECTS_OF_THE_LAKE, segment, len(data))
        read = ReadTask(objects.url, (share,), buckets, staging)
        (receipt,) = runner.run(run_read_task, [read], lambda _: None)
        written += [piece.path for piece in receipt.pieces]
        shape = ShapeTask(
            objects_url=objects.url,
            transaction=0,
            index="spans",
            build=build,
            text=ENGLISH.name,
            buckets=buckets,
            low=0,
            high=buckets,
            pieces=receipt.pieces,
            tables=dict.fromkeys(BUILT_IN, TableBefore(EMPTY, 0)),
        )
        (shaped,) = runner.run(run_shape_task, [shape], lambda _: None)
        written += [part.path for part in shaped.parts()]
    except Exception as error:  # whatever it is, it is not the input of anybody
        if not may_be_of_input(error):
            raise
        return False
    finally:
        with contextlib.suppress(TracelakeError, OSError):
            for path in written:
                objects.delete(path)
            clean_staging(objects, "spans", build)
    return receipt.shares[0].spans == shaped.of(TABLE_SPANS.name).counts["new"] == 1
