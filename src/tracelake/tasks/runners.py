"""Where tasks run: on Spark, or in this process. A task is a plain function of one picklable argument."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from tracelake import limits
from tracelake._errors import TaskError, TracelakeError
from tracelake.limits import JAVA_ENDED_WITHIN_S, JAVA_HEAP_MIB, PROBLEM_MAX_CHARS, SPARK_POLL_S
from tracelake.tasks.java import gateway_ended, hide_gateway, owns_gateway, start_gateway, stop_gateway

if TYPE_CHECKING:
    from pyspark import SparkContext

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
_JVM_ENDED = (
    "Spark's JVM has ended, perhaps for want of memory. Nothing was published; the next run starts another."
)
_spark_lock = threading.Lock()
_spark_users: set[int] = set()
"""Ids of the `Spark` that are started: a process has one Spark context, which the last of them ends."""


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
        raise TaskError(_message(f"{kind}: {error}"), kind=kind) from error


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


class Spark:
    """Runs tasks on Spark executors, each as a task of one job.

    A process has one Spark context: while one is running, whoever made it, it is used whatever `master` says.

    Args:
        master: Spark master URL; `local[*]` starts executors as threads of a JVM of our own.
        heap_mb: heap of the driver's JVM in MiB. Rows never pass it, so little is enough.
    """

    def __init__(self, master: str = "local[*]", *, heap_mb: int = JAVA_HEAP_MIB) -> None:
        self._master = master
        self._heap_mb = heap_mb
        self._context: SparkContext | None = None

    def start(self) -> None:
        """Start the JVM and the Spark context, unless they run."""
        self._started()

    def _started(self) -> SparkContext:
        with _spark_lock:
            if self._context is not None and gateway_ended():
                _end(self._context)
            # Another `Spark` may have found out first, so ours may be one that has ended.
            if self._context is None or self._context._jsc is None:
                self._context = self._connect()
                _spark_users.add(id(self))
            return self._context

    def _connect(self) -> SparkContext:
        if self._master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  slow to import

        if SparkContext._gateway is None:
            start_gateway(heap_mb=self._heap_mb)
        conf = SparkConf().setMaster(self._master).setAppName("tracelake")
        conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
        if self._master.startswith("local"):
            conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
        context = SparkContext.getOrCreate(conf)
        hide_gateway()
        context.setLogLevel("OFF")  # a failed task comes back as an exception; see `run`
        return context

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks as one Spark job."""
        context = self._started()
        from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        group = uuid.uuid4().hex  # other threads may have jobs of their own
        context.setJobGroup(group, "tracelake")
        try:
            with _Watch(context, group, len(tasks), on_done):
                receipts = context.parallelize(list(tasks), len(tasks)).map(function).collect()
        except (Py4JNetworkError, ConnectionError) as error:
            # Its sockets close a moment before the process has ended.
            text = _JVM_ENDED if gateway_ended(within_s=JAVA_ENDED_WITHIN_S) else _message(_cause(error)[0])
            raise TaskError(text, ended=True) from error
        except (Py4JError, PySparkException) as error:  # the second once the process has had a session
            said, kind = _cause(error)
            raise TaskError(_message(said), kind=kind) from error
        on_done(len(tasks))
        return receipts

    def stop(self) -> None:
        """Stop the context and end the JVM, unless others use them, or they are not ours."""
        with _spark_lock:
            context, self._context = self._context, None
            _spark_users.discard(id(self))
            if context is not None and not _spark_users and owns_gateway():
                _end(context)


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


def _end(context: SparkContext) -> None:
    from py4j.protocol import Py4JError  # noqa: PLC0415

    gateway = context._gateway
    assert gateway is not None
    try:
        context.stop()
    except (Py4JError, ConnectionError):
        context.stop()  # the JVM has ended: the second call ends what is left on our side
    gateway.shutdown()
    type(context)._gateway = type(context)._jvm = None  # else the next context looks for this JVM
    stop_gateway()


class _Watch:
    """Tells how many tasks of this thread's job are done, from a thread of its own."""

    def __init__(self, context: SparkContext, group: str, total: int, on_done: Callable[[int], None]) -> None:
        self._tracker = context.statusTracker()
        self._group = group
        self._total = total
        self._on_done = on_done
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="spark-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        from py4j.protocol import Py4JError  # noqa: PLC0415

        while not self._end.wait(SPARK_POLL_S):
            try:
                jobs = map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group))
                stages = [self._tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
                done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            except (Py4JError, ConnectionError):
                return  # the JVM has ended, as the job will say
            self._on_done(min(done, self._total))


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


def _message(said: str) -> str:
    return (
        f"a task failed on an executor: {said.strip().rstrip('.')}. Nothing was published; run again once that "
        "is mended."
    )
