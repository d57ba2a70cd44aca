"""Tasks on Spark, each as a task of one job: in a JVM of our own, on a cluster, or in the session of who calls us.

Which settings a Spark context of ours has; pure but for reading `spark-defaults.conf`.

Unix domain sockets between a JVM of ours and its Python workers, in a folder that nobody else may enter.

By TCP each short task waits 40 ms for an acknowledgement: docs/internals/performance/cluster.md.

What a worker of Spark does with a task: run it, once it has the same Tracelake as the process that sent it.
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
from tracelake.limits import (
    JAVA_ENDED_WITHIN_S,
    JAVA_HEAP_MIB,
    JOBS_OF_A_JVM_MAX,
    SPARK_IDLE_TIMEOUT_S,
    SPARK_POLL_S,
)
from tracelake.tasks.java import gateway_ended, hide_gateway, owns_gateway, start_gateway, stop_gateway
from tracelake.tasks.runners import JVM_ENDED, ReceiptT, TaskT, nobody_works, task_error

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView
    from pyspark import SparkConf, SparkContext

LOCAL: Final = "local[*]"
_CREDENTIALS: Final = ("AWS_", "AZURE_", "GOOGLE_")
"""How the variables begin from which object stores take credentials, regions and endpoints."""
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
"""Settings of a local master. Without them, the ports of driver and block manager deserialize Java objects of any user.

Spark generates the secret of a `local` master by itself, and keeps it in the JVM. All other masters, `local-cluster`
too, need a secret that the user chooses and shares with the executors.
"""


def is_local(master: str | None) -> bool:
    """Whether executors are threads of the driver's JVM."""
    return master is None or master.startswith("local")


def named_master() -> str | None:
    """Return the master of `spark-defaults.conf`, None where there is no such file, or it names none."""
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
    """Return what is set unless the user has: quiet, and on a cluster credentials of object stores for its executors.

    They go in the environment of the executors' processes, so they are on no command line, and what Spark shows or
    logs of its settings leaves them out. With Kubernetes they would be in the pods' specification: there the user
    names a Secret.
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
    """Return the Python that workers run, None for what PySpark runs by itself.

    Named by the user, else that of an environment that is sent along as an archive, such as `env.tar.gz#environment`.
    """
    if python := conf.get("spark.pyspark.python") or environment.get("PYSPARK_PYTHON"):
        return python
    sent = (
        archive.rpartition("#")[2] for archive in conf.get("spark.archives", "").split(",") if "#" in archive
    )
    return next((f"./{folder}/bin/python" for folder in sent), None)


_SETTINGS: Final = "spark.python.unix.domain.socket."
SOCKETS_FOLDER: Final = f"{_SETTINGS}dir"
"""The setting that names the folder."""
_NAME: Final = ".00000000-0000-0000-0000-000000000000.sock"
"""A socket of Spark's."""
_ROOT: Final = 0
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def has_chosen(conf: Mapping[str, str], environment: Mapping[str, str]) -> bool:
    """Whether the user has said how a JVM and its workers talk."""
    return any(name.startswith(_SETTINGS) for name in conf) or "PYSPARK_UDS_MODE" in environment


def sockets_of(jvm: JVMView) -> dict[str, str]:
    """Return the settings by which a JVM and its workers talk by sockets; none where no folder will do."""
    folder = _make_folder()
    if folder is None:
        return {}
    # As Spark has it with temporary directories of its own: it goes when the JVM ends.
    jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(str(folder)))
    return {f"{_SETTINGS}enabled": "true", SOCKETS_FOLDER: str(folder)}


def _make_folder() -> Path | None:
    """Make a folder for sockets, None where that cannot be, as on some file systems.

    Nobody else may enter it, for of who connects Spark asks no secret. Its name is ASCII, for without a locale Java
    knows no other.
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
    except OSError:  # its name is too long, or there are no sockets
        pass
    with suppress(OSError):
        folder.rmdir()
    return None


def _is_open_to_others(folder: Path) -> bool:
    """Whether others, but for root, may give what is in a directory other names."""
    status = folder.stat()
    is_shared = bool(status.st_mode & _OTHERS) and not status.st_mode & stat.S_ISVTX
    return is_shared or status.st_uid not in {_ROOT, os.geteuid()}


@dataclass(frozen=True, slots=True)
class OnWorker(Generic[TaskT, ReceiptT]):
    """A task's function as it goes to the workers, with the version that sent it."""

    function: Callable[[TaskT], ReceiptT]
    version: str

    def __call__(self, task: TaskT) -> ReceiptT:
        """Run the task. Raises RuntimeError where this worker's version may write rows and parts of another shape."""
        here = version_here()
        if here != self.version:
            raise RuntimeError(
                f"a worker has tracelake {here}, and this process {self.version}: install the same version on both"
            )
        receipt = self.function(task)
        _keep_imports(len(sys.modules))
        return receipt


@cache
def _keep_imports(modules: int) -> None:
    """Set aside what imports made, once for a number of modules: Spark's worker collects all garbage after each task.

    To look through all that was imported takes longer than a small task. What is set aside is freed as ever once
    nobody refers to it, but for circles.
    """
    del modules
    gc.collect()
    gc.freeze()


@cache
def version_here() -> str:
    """Return the version of Tracelake that is installed here."""
    return version("tracelake")


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
