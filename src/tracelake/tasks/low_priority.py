"""Low-priority tasks for background work: a worker leaves the CPU to other work on the machine."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Final, Generic

from tracelake.tasks.runners import ReceiptT, TaskRunner, TaskT

NICENESS: Final = 10
"""Nice value: a tenth of a normal thread's CPU time under contention, enough to finish on a busy machine."""
_LOWEST: Final = 19


@dataclass(frozen=True, slots=True)
class LowPriorityTask(Generic[TaskT, ReceiptT]):
    """A task's function in a low-priority thread, because the worker's next task may be urgent."""

    function: Callable[[TaskT], ReceiptT]

    def __call__(self, task: TaskT) -> ReceiptT:
        """Run the task."""
        _start_pools()
        with ThreadPoolExecutor(1, "tracelake-gives-way", _lower) as thread:
            return thread.submit(self.function, task).result()


@cache
def _start_pools() -> None:
    """Start the process's shared thread pools first, because they inherit their creator's priority."""
    import obstore  # noqa: PLC0415  slow, as the next two, and had by workers already
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    obstore.put(obstore.store.MemoryStore(), "a", b"")
    columns = pa.table({str(number): range(100) for number in range(4 * pa.cpu_count())})
    sink = pa.BufferOutputStream()
    pq.write_table(columns, sink)
    pq.read_table(pa.BufferReader(sink.getvalue()), use_threads=True)


def _lower() -> None:
    # Only Linux has a priority per thread, which new threads inherit.
    if sys.platform == "linux":
        # If the system forbids it, as some sandboxes do, the work runs at normal priority.
        with contextlib.suppress(OSError):
            lower = min(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + NICENESS, _LOWEST)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lower)


class LowPriorityRunner:
    """Runs tasks on the workers of another runner, at low priority."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def start(self) -> None:
        """See `TaskRunner`."""
        self._runner.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks."""
        return self._runner.run(LowPriorityTask(function), tasks, on_done)

    def stop(self) -> None:
        """See `TaskRunner`."""
        self._runner.stop()
