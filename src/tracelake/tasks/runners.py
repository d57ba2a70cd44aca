"""Task runners: on Spark or in this process. A task is a plain function of one picklable argument.

The module also defines the progress reports of long work, and converts Spark's errors to one-line messages.

`LowPriorityRunner` runs background work on workers at low CPU priority.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from tracelake import limits
from tracelake._errors import TaskError, TracelakeError
from tracelake.limits import PROBLEM_MAX_CHARS

JVM_ENDED: Final = (
    "Spark's JVM has ended, perhaps because it ran out of memory. Nothing was published; the next run "
    "starts another."
)
_HOW_TO: Final = "see docs/how-to/run-on-a-cluster.md"
_WORKERS: Final = (
    (
        re.compile(r"No module named 'tracelake"),
        "the Python of Spark's workers has no tracelake: install the version of this process there and name "
        f"that Python with `--conf spark.pyspark.python=PATH`, or ship an environment; {_HOW_TO}",
    ),
    (
        re.compile(r'Cannot run program "([^"]*)"'),
        r"Spark's workers have no program \1: name their Python with `--conf spark.pyspark.python=PATH`, or "
        f"ship an environment; {_HOW_TO}",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH\]? ?(.*)", re.DOTALL),
        "Spark's workers run another minor version of Python than this process, so they cannot read its "
        "tasks: name a Python of the same version with `--conf spark.pyspark.python=PATH`, or ship an "
        f"environment; {_HOW_TO}",
    ),
    (re.compile(r"RuntimeError: (a worker has tracelake .*)"), r"\1"),
    (
        re.compile(
            r"Cannot call methods on a stopped SparkContext|SparkContext was shut down|Master removed our app"
        ),
        "the cluster has ended this process's Spark application, for example because executors repeatedly "
        "failed to start: see the master's page and the workers' logs",
    ),
)
"""Failures that no input causes: a pattern in Spark's message, and the remedy."""
_DIED: Final = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Python worker.*crashed")
_MEMORY: Final = (
    "its process has died, perhaps because it ran out of memory: give executors more with `--conf "
    "spark.executor.memoryOverhead=2g`, or make transactions smaller with `--transaction-mb`"
)
"""Remedy for a dead worker process, which an input can cause by needing much memory."""


def task_error(error: Exception, *, ended: bool = False) -> TaskError:
    """Return the error of a failed job, in one line; `ended` if Spark failed and not a task."""
    message, kind = _cause(error)
    for pattern, advice in _WORKERS:
        if match := pattern.search(message) or pattern.search(str(error)):
            text = match.expand(advice).strip().rstrip(".")
            return TaskError(f"{text}. Nothing was published; run again once that is fixed.", ended=True)
    if kind is None and (died := _DIED.search(str(error))):
        message = f"{died[0]}: {_MEMORY}"
    return TaskError(task_message(message), kind=None if ended else kind, ended=ended)


def task_message(reason: str) -> str:
    """Return the message of a task that failed for this reason."""
    return (
        f"a task failed on an executor: {reason.strip().rstrip('.')}. Nothing was published; run again once "
        "that is fixed."
    )


def no_workers_error(master: str, idle_s: float) -> TaskError:
    """Return the error of a job that was cancelled because no executor took a task."""
    return TaskError(
        f"no executor of {master} has accepted a task for {idle_s:g} s: the cluster has no free worker, or "
        "its executors cannot start or cannot reach this process. Nothing was published; see the master's "
        "page, `tracelake doctor --master`, and spark.executor.memory, spark.driver.host, then run again.",
        ended=True,
    )


def _cause(error: Exception) -> tuple[str, str | None]:
    """Return the innermost Python error of a failed task, which Spark wraps in Python and Java stack traces, and its
    class.

    If no Python ran, for example because it could not be started, return the executor's Java error and None.
    """
    lines = str(error).splitlines()
    marks = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if marks:
        after = lines[marks[-1] + 1 :]
        message = next(
            (line for line in after if line and not line.startswith((" ", "\t"))),
            str(error)[:PROBLEM_MAX_CHARS],
        )
        return message, message.split(":", 1)[0].strip()
    driver = lines.index("Driver stacktrace:") if "Driver stacktrace:" in lines else 0
    causes = [line for line in lines[driver:] if line.startswith("Caused by: ")]
    # The first line of the gateway's error only names the method that was called.
    candidates = [line for line in lines if line and not line.startswith("An error occurred while calling")]
    message = (causes or candidates or lines or [type(error).__name__])[0][:PROBLEM_MAX_CHARS]
    return message.removeprefix("Caused by: ").removeprefix(": "), None


TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")


class TaskRunner(Protocol):
    """Runs tasks, in any order and in parallel, and returns their receipts in order of the tasks."""

    def start(self) -> None:
        """Prepare for tasks. Optional, because `run` does it too."""

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run all tasks; call `on_done` now and then with the number of finished ones. Raises TaskError if a task
        fails."""

    def stop(self) -> None:
        """Release the resources of `start`. Calling it twice is allowed."""


@runtime_checkable
class SizedTask(Protocol):
    """A task that reports its size."""

    @property
    def work_bytes(self) -> int:
        """Return the approximate number of bytes that it holds in memory or processes."""
        ...


def run_reporting(
    runner: TaskRunner,
    function: Callable[[TaskT], ReceiptT],
    tasks: Sequence[TaskT],
    on_done: Callable[[int], None],
) -> list[ReceiptT]:
    """Run tasks. Raises TaskError for any exception that is not a TracelakeError, also for tasks in this process."""
    try:
        return runner.run(function, tasks, on_done)
    except TracelakeError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise TaskError(task_message(f"{kind}: {error}"), kind=kind) from error


def engine_of(runner: TaskRunner) -> str:
    """Return where a runner ran its last job: `Spark` or `this process`; empty for a runner of the caller."""
    return str(getattr(runner, "engine", ""))


def is_warm(runner: TaskRunner) -> bool:
    """Return whether large work can begin at once, without waiting for a runner that is still starting."""
    return not isinstance(runner, SizedRunner) or runner.is_warm


class InProcess:
    """Runs tasks one by one in this process: for tests, and to debug a task step by step."""

    engine: Final = "this process"

    def start(self) -> None:
        """Do nothing, because no preparation is needed."""

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        receipts = []
        for task in tasks:
            receipts.append(function(task))
            on_done(len(receipts))
        return receipts

    def stop(self) -> None:
        """Do nothing, because the runner holds no resources."""


class SizedRunner:
    """Runs small work in this process, and everything else on another runner, because a Spark job costs 100 to 300 ms
    and starting Spark takes some seconds."""

    def __init__(self, remote: TaskRunner, *, waits: bool = False) -> None:
        """Create a runner. With `waits`, work of useful size waits for the start of the other runner; otherwise this
        process does more of it until then."""
        self._remote = remote
        self._in_process = InProcess()
        self._starting: threading.Thread | None = None
        self._waits, self._has_started = waits, False

    def start(self) -> None:
        """Start the other runner in the background, so that small work can run immediately."""
        if self._starting is None:
            self._starting = threading.Thread(target=self._start, name="tracelake-warm-up", daemon=True)
            self._starting.start()

    @property
    def is_warm(self) -> bool:
        """Return whether large work can begin without waiting: the other runner has started. Also True if its start has
        failed, because `run` then reports the failure."""
        return self._starting is not None and not self._starting.is_alive()

    def _start(self) -> None:
        # The same error occurs again, and is reported, when the other runner is needed.
        with contextlib.suppress(Exception):
            self._remote.start()
            self._has_started = True

    def of(self, tasks: Sequence[object], *, may_run_in_process: bool = True) -> TaskRunner:
        """Return the runner for these tasks together."""
        is_small = self._waits or self._has_started
        remaining_bytes = limits.SMALL_WORK_MAX_BYTES if is_small else limits.NEAR_WORK_MAX_BYTES
        for task in tasks:
            remaining_bytes -= (
                task.work_bytes if isinstance(task, SizedTask) else limits.NEAR_WORK_MAX_BYTES + 1
            )
        return self._in_process if may_run_in_process and remaining_bytes >= 0 else self._remote

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks on the runner that fits their size."""
        return self.of(tasks).run(function, tasks, on_done)

    def stop(self) -> None:
        """Stop the other runner, after it has started."""
        if self._starting is not None:
            self._starting.join()
            self._starting = None
        self._remote.stop()


Stage: TypeAlias = Literal[
    "recovering",
    "reading",
    "writing",
    "publishing",
    "compacting",
    "indexing",
    "verifying",
    "checking",
    "copying",
]


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress report: `done` of `total` units of a stage; `transaction` is None outside of a transaction."""

    stage: Stage
    done: int
    total: int
    unit: str
    transaction: int | None = None
    commit: str = ""
    """The commit's id, once a transaction is published."""
    engine: str = ""
    """Where the tasks of the stage run: `Spark` or `this process`."""


OnProgress: TypeAlias = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Ignore a progress report."""


NICENESS: Final = 10
"""Nice value: a tenth of a normal thread's CPU time under contention, enough to finish on a busy machine."""
_LOWEST: Final = 19


@dataclass(frozen=True, slots=True)
class LowPriorityTask(Generic[TaskT, ReceiptT]):
    """A task's function that runs in a separate low-priority thread of the worker, whose next task may be urgent."""

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
