"""Tasks on Spark, each as a task of one job: in a JVM of our own, on a cluster, or in the session of who calls us."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracelake._errors import TaskError
from tracelake.limits import (
    JAVA_ENDED_WITHIN_S,
    JAVA_HEAP_MIB,
    JOBS_OF_A_JVM_MAX,
    SPARK_IDLE_TIMEOUT_S,
    SPARK_POLL_S,
)
from tracelake.tasks.failures import JVM_ENDED, nobody_works, task_error
from tracelake.tasks.java import gateway_ended, hide_gateway, owns_gateway, start_gateway, stop_gateway
from tracelake.tasks.on_worker import OnWorker, version_here
from tracelake.tasks.runners import ReceiptT, TaskT
from tracelake.tasks.sockets import SOCKETS_FOLDER, has_chosen, sockets_of
from tracelake.tasks.spark_conf import LOCAL, is_local, named_master, python_of, settings_for

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView
    from pyspark import SparkConf, SparkContext

_spark_lock = threading.Lock()
_spark_users: set[int] = set()
"""Ids of the `Spark` that are started: a process has one Spark context, which the last of them ends."""


@dataclass(slots=True)
class _Jobs:
    """Jobs of this process, of which a JVM of ours keeps the name of a socket each for good (`File.deleteOnExit`)."""

    under_way: int = 0
    over: int = 0

    def are_enough(self) -> bool:
        """Whether the next job has a JVM that is new. One in which a user has a session stays."""
        is_free = not self.under_way and owns_gateway() and not _has_session()
        return self.over >= JOBS_OF_A_JVM_MAX and is_free


_jobs: Final = _Jobs()


def _has_session() -> bool:
    """Whether somebody has a session in the context that there is now."""
    sql = sys.modules.get("pyspark.sql")
    session = None if sql is None else getattr(sql.SparkSession, "_instantiatedSession", None)
    return session is not None and session._sc._jsc is not None


class Spark:
    """Runs tasks on Spark executors, each as a task of one job.

    A process has one Spark context: while one is running, whoever made it, it is used whatever `master` says.

    Args:
        master: Spark master URL; `local[*]` starts executors as threads of a JVM of our own. Without one, that of
            `spark-submit` or of `spark-defaults.conf`, else `local[*]`.
        conf: settings of Spark, which come before those of `spark-defaults.conf`.
        heap_mb: heap of the driver's JVM in MiB, where `conf` has no `spark.driver.memory`. Rows never pass it, so
            little is enough.
    """

    has_workers: Final = True

    def __init__(
        self,
        master: str | None = None,
        *,
        conf: Mapping[str, str] | None = None,
        heap_mb: int = JAVA_HEAP_MIB,
    ) -> None:
        self._master = master
        self._conf = dict(conf or {})
        self._heap = self._conf.get("spark.driver.memory", f"{heap_mb}m")
        self._context: SparkContext | None = None

    def start(self) -> None:
        """Start the JVM and the Spark context, unless they run. Raises JavaError or TaskError."""
        self._started()

    def _started(self, *, jobs: int = 0) -> SparkContext:
        with _spark_lock:
            context = self._context
            if gateway_ended():
                _end_any()
            # Where another `Spark` has ended ours already, the JVM that there is now is a new one.
            elif (context is not None and context._jsc is not None) and (
                _jobs.are_enough() or _is_stopped(context)
            ):
                _end(context)
            if context is None or context._jsc is None:
                self._context = context = self._connect()
                _spark_users.add(id(self))
            _jobs.under_way += jobs
            return context

    def _connect(self) -> SparkContext:
        likely = self._master or self._conf.get("spark.master") or named_master()
        if is_local(likely):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # before the JVM starts
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  slow to import

        if SparkContext._active_spark_context is not None:
            return SparkContext._active_spark_context
        if SparkContext._gateway is None:
            start_gateway(heap=self._heap)
        try:
            SparkContext._ensure_initialized()
            conf = self._set_up(SparkConf())
            context = SparkContext(conf=conf)
            if (python := python_of(dict(conf.getAll()), os.environ)) is not None:
                context.pythonExec = python
        except Exception as error:
            raise _of_job(error) from error
        finally:
            hide_gateway()
        if owns_gateway() and not conf.contains("spark.log.level"):
            context.setLogLevel("OFF")  # a failed task comes back as an exception; see `run`
        return context

    def _set_up(self, conf: SparkConf) -> SparkConf:
        for name, value in self._conf.items():
            conf.set(name, value)
        if self._master is not None:
            conf.setMaster(self._master)
        conf.setIfMissing("spark.master", LOCAL)
        present = dict(conf.getAll())
        chosen = settings_for(present, os.environ)
        if is_local(present["spark.master"]) and not has_chosen(present, os.environ):
            chosen |= sockets_of(_jvm())
        for name, value in chosen.items():
            conf.setIfMissing(name, value)
        return conf

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks as one Spark job. Raises TaskError."""
        context = self._started(jobs=1)
        try:
            return self._run(context, function, tasks, on_done)
        finally:
            with _spark_lock:
                _jobs.under_way -= 1
                _jobs.over += 1

    def _run(
        self,
        context: SparkContext,
        function: Callable[[TaskT], ReceiptT],
        tasks: Sequence[TaskT],
        on_done: Callable[[int], None],
    ) -> list[ReceiptT]:
        from py4j.protocol import Py4JError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        group = uuid.uuid4().hex  # other threads may have jobs of their own
        context.setJobGroup(group, "tracelake")
        watch = _Watch(context, group, len(tasks), on_done)
        sent = OnWorker(function, version_here())
        try:
            with watch:
                receipts = context.parallelize(list(tasks), len(tasks)).map(sent).collect()
        except (ConnectionError, Py4JError, PySparkException) as error:  # the last once there was a session
            raise watch.gave_up or _of_job(error) from error
        on_done(len(tasks))
        return receipts

    def stop(self) -> None:
        """Stop the context and end the JVM, unless others use them, or they are not ours."""
        with _spark_lock:
            context, self._context = self._context, None
            _spark_users.discard(id(self))
            if context is not None and not _spark_users and owns_gateway():
                _end(context)


def _jvm() -> JVMView:
    from pyspark import SparkContext  # noqa: PLC0415

    assert SparkContext._jvm is not None
    return SparkContext._jvm


def _of_job(error: Exception) -> TaskError:
    """Return what a job failed with, or a start."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415

    is_cut = isinstance(error, Py4JNetworkError | ConnectionError)
    # Its sockets close a moment before the process has ended.
    if gateway_ended(within_s=JAVA_ENDED_WITHIN_S if is_cut else 0.0):
        return TaskError(JVM_ENDED, ended=True)
    return task_error(error, ended=is_cut)


def _is_stopped(context: SparkContext) -> bool:
    """Whether nothing can be done in the context, though its JVM is there.

    The cluster's master took the application out, or somebody deleted the folder of its sockets.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415

    try:
        if context._jsc is None or context._jsc.sc().isStopped():
            return True
        folder = context.getConf().get(SOCKETS_FOLDER)
        return folder is not None and not Path(folder).is_dir()
    except (Py4JError, ConnectionError):
        return True


def _end_any() -> None:
    """End what is left of a JVM of ours that has ended: the context in it, whoever's that is, if one came up at all."""
    from pyspark import SparkContext  # noqa: PLC0415

    if SparkContext._active_spark_context is not None:
        _end(SparkContext._active_spark_context)
    else:
        _end_gateway()


def _end(context: SparkContext) -> None:
    from py4j.protocol import Py4JError  # noqa: PLC0415

    try:
        context.stop()
    except (Py4JError, ConnectionError):
        context.stop()  # the JVM has ended: the second call ends what is left on our side
    if owns_gateway():  # else it is that of `spark-submit`, in which another context may begin
        _end_gateway()


def _end_gateway() -> None:
    from pyspark import SparkContext  # noqa: PLC0415

    _jobs.over = 0
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # else the next context looks for this JVM
    stop_gateway()


class _Watch:
    """Tells how many tasks of this thread's job are done, and ends a job that nobody works on; in its own thread."""

    def __init__(self, context: SparkContext, group: str, total: int, on_done: Callable[[int], None]) -> None:
        self._context = context
        self._tracker = context.statusTracker()
        self._group = group
        self._total = total
        self._on_done = on_done
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="spark-progress", daemon=True)
        self.gave_up: TaskError | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _is_at_work(self) -> bool:
        """Whether executors are at any task of this process: other jobs of it may be before this one."""
        at_work = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
        return any(stage.numActiveTasks for stage in at_work if stage is not None)

    def _watch(self) -> None:
        from py4j.protocol import Py4JError  # noqa: PLC0415

        busy_s = time.monotonic()
        while not self._end.wait(SPARK_POLL_S):
            try:
                jobs = map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group))
                stages = [self._tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
                done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
                if self._is_at_work():
                    busy_s = time.monotonic()
                elif time.monotonic() - busy_s > SPARK_IDLE_TIMEOUT_S:
                    self.gave_up = nobody_works(str(self._context.master), SPARK_IDLE_TIMEOUT_S)
                    self._context.cancelJobGroup(self._group)
                    return
            except (Py4JError, ConnectionError):
                return  # the JVM has ended, as the job will say
            self._on_done(min(done, self._total))
