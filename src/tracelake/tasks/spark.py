"""Tasks on Spark, each as a task of one job: in our own JVM, on a cluster, or in the caller's session.

The module chooses the settings of a Spark context, which is pure apart from reading `spark-defaults.conf`. Our JVM
and its Python workers communicate over Unix domain sockets in a private folder. Over TCP each short task would wait
40 ms for an acknowledgement: benchmarks/results/cluster-summary.md. A worker runs a task only if it has the same
version of Tracelake as the process that sent it.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic

from tracelake._errors import TaskError
from tracelake.limits import SPARK_IDLE_TIMEOUT_S
from tracelake.tasks.backoff import PeriodicThread
from tracelake.tasks.java import gateway_ended, hide_gateway, owns_gateway, start_gateway, stop_gateway
from tracelake.tasks.runners import JVM_ENDED, ReceiptT, TaskT, no_workers_error, task_error

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView
    from pyspark import SparkConf, SparkContext

_JAVA_ENDED_WITHIN_S: Final = 5.0
"""Time between the closing of a JVM's sockets and its exit."""
JOBS_OF_A_JVM_MAX: Final = 200_000
"""Spark jobs of one of our JVMs; each leaks some 180 bytes there."""
_JAVA_HEAP_MIB: Final = 512
"""Heap of the driver's JVM; rows never pass through it."""
SPARK_POLL_S: Final = 0.2
"""Polling interval for Spark's progress."""

LOCAL: Final = "local[*]"
_CREDENTIALS: Final = ("AWS_", "AZURE_", "GOOGLE_")
"""Prefixes of the variables from which object stores take credentials, regions and endpoints."""
_REDACTED: Final = (
    "(?i)secret|password|passwd|token|access[._]?key|account[._]?key|credential|spark[.]executorEnv[.]"
)
_DEFAULTS: Final = {
    "spark.app.name": "tracelake",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_PRIVATE: Final = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""Settings of a local master. Without them, the ports of driver and block manager deserialize Java objects of any
user.

Spark generates the secret of a `local` master itself, and keeps it in the JVM. All other masters, including
`local-cluster`, need a secret that the user chooses and shares with the executors.
"""


def is_local(master: str | None) -> bool:
    """Return whether executors are threads of the driver's JVM."""
    return master is None or master.startswith("local")


def named_master() -> str | None:
    """Return the master in `spark-defaults.conf`; None without the file or the setting."""
    folder = os.environ.get("SPARK_CONF_DIR")
    if not folder and (home := os.environ.get("SPARK_HOME")):
        folder = f"{home}/conf"
    if not folder:
        return None
    try:
        lines = (Path(folder) / "spark-defaults.conf").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if name == "spark.master":
            return value.strip()
    return None


def settings_for(conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return default settings: quiet logging, and on a cluster the executors' credentials for object stores.

    Credentials are passed in the environment of the executors' processes. They are therefore on no command line, and
    Spark redacts them wherever it shows or logs settings. On Kubernetes, environment variables are part of the pods'
    specification, so the user names a Secret instead.
    """
    master = conf["spark.master"]
    chosen = dict(_DEFAULTS)
    if is_local(master):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        user_decides = "spark.authenticate" in conf or master.startswith("local-cluster")
        return chosen if user_decides else chosen | _PRIVATE
    chosen["spark.redaction.regex"] = _REDACTED
    if not master.startswith("k8s://"):
        chosen |= {
            f"spark.executorEnv.{name}": value
            for name, value in environment.items()
            if name.startswith(_CREDENTIALS)
        }
    return chosen


def python_of(conf: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Return the Python of the workers, or None for PySpark's default.

    It is the user's choice, otherwise that of an environment sent as an archive, such as `env.tar.gz#environment`.
    """
    if python := conf.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON"):
        return python
    sent = (
        archive.rpartition("#")[2] for archive in conf.get("spark.archives", "").split(",") if "#" in archive
    )
    return next((f"./{folder}/bin/python" for folder in sent), None)


_SETTINGS: Final = "spark.python.unix.domain.socket."
SOCKETS_FOLDER: Final = f"{_SETTINGS}dir"
"""The setting with the folder's path."""
_NAME: Final = ".00000000-0000-0000-0000-000000000000.sock"
"""Example of a socket name that Spark uses."""
_ROOT: Final = 0
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def has_chosen(conf: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Return whether the user has configured the communication between a JVM and its workers."""
    return any(name.startswith(_SETTINGS) for name in conf) or "PYSPARK_UDS_MODE" in environment


def sockets_of(jvm: JVMView) -> dict[str, str]:
    """Create a private folder for Unix domain sockets, which is deleted when the JVM ends. Return the Spark settings
    that make the JVM and its Python workers communicate over sockets in it; no settings if the folder cannot be
    created."""
    folder = _make_folder()
    if folder is None:
        return {}
    # Deleted when the JVM ends, like Spark's own temporary directories.
    jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(str(folder)))
    return {f"{_SETTINGS}enabled": "true", SOCKETS_FOLDER: str(folder)}


def _make_folder() -> Path | None:
    """Create a private folder for Unix domain sockets. Return None if that is impossible, for example because the path
    would be too long or other users may rename its parents.

    No other user may enter the folder, because Spark requires no secret from a client of a socket. Its name is ASCII,
    because Java without a locale supports nothing else.
    """
    if not hasattr(socket, "AF_UNIX"):
        return None
    try:
        above = Path(tempfile.gettempdir()).resolve()
        if not str(above).isascii() or any(map(_is_open_to_others, (above, *above.parents))):
            return None
        folder = Path(tempfile.mkdtemp(prefix="s", dir=above))
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(folder / _NAME))
        (folder / _NAME).unlink()
        if not folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return folder
    except OSError:  # Its name is too long, or the system has no sockets.
        pass
    with suppress(OSError):
        folder.rmdir()
    return None


def _is_open_to_others(folder: Path) -> bool:
    """Return whether users other than root may rename the entries of a directory."""
    status = folder.stat()
    is_shared = bool(status.st_mode & _OTHERS) and not status.st_mode & stat.S_ISVTX
    return is_shared or status.st_uid not in {_ROOT, os.geteuid()}


@dataclass(frozen=True, slots=True)
class OnWorker(Generic[TaskT, ReceiptT]):
    """A task's function as sent to the workers, with the sender's version."""

    function: Callable[[TaskT], ReceiptT]
    version: str

    def __call__(self, task: TaskT) -> ReceiptT:
        """Run the task. Raises RuntimeError if this worker has another version, which may write different rows and
        parts."""
        here = version_here()
        if here != self.version:
            raise RuntimeError(
                f"a worker has tracelake {here}, and this process has {self.version}: install the same "
                "version on both"
            )
        receipt = self.function(task)
        _keep_imports(len(sys.modules))
        return receipt


@cache
def _keep_imports(modules: int) -> None:
    """Exclude imported objects from garbage collection, because Spark's worker collects all garbage after each task.

    Scanning all imported objects takes longer than a small task. Runs once per number of modules. Excluded objects
    are still freed by reference counting, except for cycles.
    """
    del modules
    gc.collect()
    gc.freeze()


@cache
def version_here() -> str:
    """Return the installed version of Tracelake."""
    return version("tracelake")


_spark_lock = threading.Lock()
_spark_users: set[int] = set()
"""Ids of the started `Spark` objects. A process has one Spark context, which the last of them stops."""


@dataclass(slots=True)
class _Jobs:
    """Counts the jobs of this process, because our JVM keeps one socket name per job forever (`File.deleteOnExit`)."""

    under_way: int = 0
    over: int = 0

    def are_enough(self) -> bool:
        """Return whether the next job should start a new JVM. A JVM with a user's session stays."""
        is_free = not self.under_way and owns_gateway() and not _has_session()
        return self.over >= JOBS_OF_A_JVM_MAX and is_free


_jobs: Final = _Jobs()


def _has_session() -> bool:
    """Return whether a user has a session in the current context."""
    sql = sys.modules.get("pyspark.sql")
    session = None if sql is None else getattr(sql.SparkSession, "_instantiatedSession", None)
    return session is not None and session._sc._jsc is not None


class Spark:
    """Runs tasks on Spark executors, each as a task of one job.

    A process has one Spark context: a running context is used, whoever created it and whatever `master` says.

    Args:
        master: Spark master URL; `local[*]` starts executors as threads of a JVM that we start. By default the
            master of `spark-submit` or `spark-defaults.conf`, otherwise `local[*]`.
        conf: settings of Spark, which override those of `spark-defaults.conf`.
        heap_mb: heap of the driver's JVM in MiB, unless `conf` has `spark.driver.memory`. Rows never pass through
            it, so little is enough.
    """

    has_workers: Final = True
    engine: Final = "Spark"

    def __init__(
        self,
        master: str | None = None,
        *,
        conf: Mapping[str, str] | None = None,
        heap_mb: int = _JAVA_HEAP_MIB,
    ) -> None:
        self._master = master
        self._conf = dict(conf or {})
        self._heap = self._conf.get("spark.driver.memory", f"{heap_mb}m")
        self._context: SparkContext | None = None

    def start(self) -> None:
        """Start the JVM and the Spark context, unless they are running. Raises JavaError if no usable Java exists, and
        TaskError if Spark does not start."""
        self._started()

    def _started(self, *, jobs: int = 0) -> SparkContext:
        with _spark_lock:
            context = self._context
            if gateway_ended():
                _end_any()
            # If another `Spark` has ended our context already, the current JVM is a new one.
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
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Must be set before the JVM starts.
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
            context.setLogLevel("OFF")  # A failed task is returned as an exception; see `run`.
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
        """Run the tasks as one Spark job. Raises TaskError if a task or the job fails."""
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

        group = uuid.uuid4().hex  # Other threads may have separate jobs.
        context.setJobGroup(group, "tracelake")
        watch = _Watch(context, group, len(tasks), on_done)
        sent = OnWorker(function, version_here())
        try:
            with watch:
                receipts = context.parallelize(list(tasks), len(tasks)).map(sent).collect()
        except (ConnectionError, Py4JError, PySparkException) as error:  # the last with a session
            raise watch.gave_up or _of_job(error) from error
        on_done(len(tasks))
        return receipts

    def stop(self) -> None:
        """Stop the Spark context and end the JVM. A context or JVM of the user, or one that other code uses, keeps
        running."""
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
    """Return the TaskError that describes the failure of a job or start."""
    from py4j.protocol import Py4JNetworkError  # noqa: PLC0415

    is_cut = isinstance(error, Py4JNetworkError | ConnectionError)
    # The JVM's sockets close a moment before the process has ended.
    if gateway_ended(within_s=_JAVA_ENDED_WITHIN_S if is_cut else 0.0):
        return TaskError(JVM_ENDED, ended=True)
    return task_error(error, ended=is_cut)


def _is_stopped(context: SparkContext) -> bool:
    """Return whether the context is unusable although its JVM runs.

    The cluster's master removed the application, or the folder of its sockets was deleted.
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
    """Clean up after our JVM has ended: stop the context in it, if one exists, whoever created it."""
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
        context.stop()  # The JVM has ended; the second call cleans up the Python side.
    if owns_gateway():  # Otherwise it is the JVM of `spark-submit`, which may start another context.
        _end_gateway()


def _end_gateway() -> None:
    from pyspark import SparkContext  # noqa: PLC0415

    _jobs.over = 0
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # Otherwise the next context would look for this JVM.
    stop_gateway()


class _Watch(PeriodicThread):
    """Reports how many tasks of this thread's job are done, and cancels a job that no executor runs; in a separate
    thread."""

    def __init__(
        self, context: SparkContext, group: str, total: int, report_count: Callable[[int], None]
    ) -> None:
        self._context = context
        self._tracker = context.statusTracker()
        self._group = group
        self._total = total
        self._report_count = report_count
        self._busy_s = time.monotonic()
        super().__init__("spark-progress", self._watch, SPARK_POLL_S)
        self.gave_up: TaskError | None = None

    def _is_at_work(self) -> bool:
        """Return whether executors run any task of this process, because other jobs may come before this one."""
        at_work = map(self._tracker.getStageInfo, self._tracker.getActiveStageIds())
        return any(stage.numActiveTasks for stage in at_work if stage is not None)

    def _watch(self) -> float | None:
        from py4j.protocol import Py4JError  # noqa: PLC0415

        try:
            jobs = map(self._tracker.getJobInfo, self._tracker.getJobIdsForGroup(self._group))
            stages = [self._tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            finished = sum(stage.numCompletedTasks for stage in stages if stage is not None)
            if self._is_at_work():
                self._busy_s = time.monotonic()
            elif time.monotonic() - self._busy_s > SPARK_IDLE_TIMEOUT_S:
                self.gave_up = no_workers_error(str(self._context.master), SPARK_IDLE_TIMEOUT_S)
                self._context.cancelJobGroup(self._group)
                return None
        except (Py4JError, ConnectionError):
            return None  # The JVM has ended; the job reports it.
        self._report_count(min(finished, self._total))
        return SPARK_POLL_S
