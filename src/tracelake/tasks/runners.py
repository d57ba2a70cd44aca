"""Where tasks run: on Spark, or in this process. A task is a plain function of one picklable argument.

What long work says of itself while it runs.

What Spark says when a job fails, as one line that a person can act on.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from tracelake import limits
from tracelake._errors import TaskError, TracelakeError
from tracelake.limits import PROBLEM_MAX_CHARS

JVM_ENDED: Final = (
    "Spark's JVM has ended, perhaps for want of memory. Nothing was published; the next run starts another."
)
_HOW_TO: Final = "see docs/how-to/run-on-a-cluster.md"
_WORKERS: Final = (
    (
        re.compile(r"No module named 'tracelake"),
        "the Python of Spark's workers has no tracelake: install the version of this process there and name that "
        f"Python by `--conf spark.pyspark.python=PATH`, or send an environment along; {_HOW_TO}",
    ),
    (
        re.compile(r'Cannot run program "([^"]*)"'),
        r"Spark's workers have no program \1: name their Python by `--conf spark.pyspark.python=PATH`, or send an "
        f"environment along; {_HOW_TO}",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH\]? ?(.*)", re.DOTALL),
        "Spark's workers run another minor version of Python than this process, so they cannot read its tasks: name "
        f"one that is the same by `--conf spark.pyspark.python=PATH`, or send an environment along; {_HOW_TO}",
    ),
    (
        re.compile(r"RuntimeError: (a worker has tracelake .*)"),
        r"\1",
    ),
    (
        re.compile(
            r"Cannot call methods on a stopped SparkContext|SparkContext was shut down|Master removed our app"
        ),
        "the cluster has ended this process's Spark application, as it does when executors cannot start again and "
        "again: its master's page and the log of its workers say why",
    ),
)
"""What no input causes: how it is said by Spark, and what to do."""
_DIED: Final = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure|Python worker.*crashed")
_MEMORY: Final = (
    "its process has died, perhaps for want of memory: give executors more by "
    "`--conf spark.executor.memoryOverhead=2g`, or make transactions smaller by `--transaction-mb`"
)
"""What an input may cause, for one of much in memory does."""


def task_error(error: Exception, *, ended: bool = False) -> TaskError:
    """Return the error of a job that failed, in one line; `ended` where it is Spark's doing and not that of a task."""
    said, kind = _cause(error)
    for pattern, advice in _WORKERS:
        if match := pattern.search(said) or pattern.search(str(error)):
            text = match.expand(advice).strip().rstrip(".")
            return TaskError(f"{text}. Nothing was published; run again once that is mended.", ended=True)
    if kind is None and (died := _DIED.search(str(error))):
        said = f"{died[0]}: {_MEMORY}"
    return TaskError(task_message(said), kind=None if ended else kind, ended=ended)


def task_message(said: str) -> str:
    """Return the message of a task that failed for this reason."""
    return (
        f"a task failed on an executor: {said.strip().rstrip('.')}. Nothing was published; run again once that "
        "is mended."
    )


def nobody_works(master: str, idle_s: float) -> TaskError:
    """Return the error of a job that was ended, for no executor took a task of it."""
    return TaskError(
        f"no executor of {master} has taken a task for {idle_s:g} s: the cluster has no worker with "
        "room, or its executors cannot start, or cannot reach this process. Nothing was published; see the master's "
        "page, `tracelake doctor --master`, and spark.executor.memory, spark.driver.host, then run again.",
        ended=True,
    )


def _cause(error: Exception) -> tuple[str, str | None]:
    """Return the innermost Python error of a failed task, which Spark wraps in stack traces of two languages.

    Beside it, the name of its class. Where no Python ran, as when it could not be started, it is Java's error on
    the executor, and there is none.
    """
    lines = str(error).splitlines()
    marks = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if marks:
        after = lines[marks[-1] + 1 :]
        said = next(
            (line for line in after if line and not line.startswith((" ", "\t"))),
            str(error)[:PROBLEM_MAX_CHARS],
        )
        return said, said.split(":", 1)[0].strip()
    driver = lines.index("Driver stacktrace:") if "Driver stacktrace:" in lines else 0
    causes = [line for line in lines[driver:] if line.startswith("Caused by: ")]
    # The first line of the gateway's own error only says which method was called.
    told = [line for line in lines if line and not line.startswith("An error occurred while calling")]
    said = (causes or told or lines or [type(error).__name__])[0][:PROBLEM_MAX_CHARS]
    return said.removeprefix("Caused by: ").removeprefix(": "), None


TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")


class TaskRunner(Protocol):
    """Runs tasks, in any order and any number at once, and returns their receipts in order of the tasks."""

    def start(self) -> None:
        """Get ready; `run` does it too."""

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run all tasks, telling `on_done` now and then how many are done. Raises TaskError."""

    def stop(self) -> None:
        """Release what `start` took. Calling it twice is allowed."""


@runtime_checkable
class SizedTask(Protocol):
    """A task that tells how much it is."""

    @property
    def work_bytes(self) -> int:
        """About the bytes that it holds in memory, or goes through."""
        ...


def run_reporting(
    runner: TaskRunner,
    function: Callable[[TaskT], ReceiptT],
    tasks: Sequence[TaskT],
    on_done: Callable[[int], None],
) -> list[ReceiptT]:
    """Run tasks. Raises TaskError for whatever they raise that is no error of ours, in this process as elsewhere."""
    try:
        return runner.run(function, tasks, on_done)
    except TracelakeError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise TaskError(task_message(f"{kind}: {error}"), kind=kind) from error


def is_warm(runner: TaskRunner) -> bool:
    """Whether large work has not to wait until something starts behind small work."""
    return not isinstance(runner, SizedRunner) or runner.is_warm


class InProcess:
    """Runs one task after the other here: for tests, and to step through a task with a debugger."""

    def start(self) -> None:
        """Nothing to get ready."""

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
        """Nothing to release."""


class SizedRunner:
    """Runs small work in this process, and all else on another runner: a job of Spark costs 100 to 300 ms, however
    little it does, and its start some seconds.
    """

    def __init__(self, far: TaskRunner) -> None:
        self._far = far
        self._near = InProcess()
        self._starting: threading.Thread | None = None

    def start(self) -> None:
        """Begin to start the other runner, and do not wait for it: small work runs already."""
        if self._starting is None:
            self._starting = threading.Thread(target=self._start, name="tracelake-warm-up", daemon=True)
            self._starting.start()

    @property
    def is_warm(self) -> bool:
        """Whether large work would begin at once: the other runner has started, or could not, which it tells again."""
        return self._starting is not None and not self._starting.is_alive()

    def _start(self) -> None:
        # Whatever fails here fails again, and is told, when the other runner is needed.
        with contextlib.suppress(Exception):
            self._far.start()

    def of(self, tasks: Sequence[object], *, may_be_near: bool = True) -> TaskRunner:
        """Return who is to run these tasks, together."""
        left = limits.NEAR_WORK_MAX_BYTES
        for task in tasks:
            left -= task.work_bytes if isinstance(task, SizedTask) else limits.NEAR_WORK_MAX_BYTES + 1
        return self._near if may_be_near and left >= 0 else self._far

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks where they belong."""
        return self.of(tasks).run(function, tasks, on_done)

    def stop(self) -> None:
        """Stop the other runner, once it has started."""
        if self._starting is not None:
            self._starting.join()
            self._starting = None
        self._far.stop()


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
    """One notice: `done` of `total` units of a stage; `transaction` is None where there is none."""

    stage: Stage
    done: int
    total: int
    unit: str
    transaction: int | None = None
    commit: str = ""
    """Its id, once a transaction is published."""


OnProgress: TypeAlias = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Say nothing."""
