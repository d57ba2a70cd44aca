"""Where tasks run: on Spark, or in this process. A task is a plain function of one picklable argument."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from tracelake import limits
from tracelake._errors import TaskError, TracelakeError
from tracelake.tasks.failures import task_message

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
class Weighed(Protocol):
    """A task that tells how much it is."""

    @property
    def work_bytes(self) -> int:
        """About the bytes that it holds in memory, or goes through."""
        ...


def run_told(
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
    return not isinstance(runner, ByWork) or runner.is_warm


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


class ByWork:
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
            left -= task.work_bytes if isinstance(task, Weighed) else limits.NEAR_WORK_MAX_BYTES + 1
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
