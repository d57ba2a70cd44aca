"""Tasks over Spark Connect, which has no RDDs: a frame of pickled tasks, one per partition, passes through
`mapInArrow`."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from tracelake._errors import TaskError, UsageError
from tracelake.limits import SPARK_IDLE_TIMEOUT_S
from tracelake.tasks.backoff import PeriodicThread
from tracelake.tasks.runners import ReceiptT, TaskT, no_workers_error, task_error
from tracelake.tasks.spark import SPARK_POLL_S, OnWorker, version_here

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo

_SPARK_CONNECT_RETRIES: Final = 6
"""Retries of a Spark Connect server, within about half a minute."""

_SCHEMA: Final = "number long, receipt binary"
_EXTRA: Final = (
    "Spark Connect needs packages that are not installed: {missing}. "
    "Install them with `python -m pip install 'tracelake[connect]'`."
)


def is_connect(master: str | None) -> bool:
    """Return whether tasks use Spark Connect: by the master's URL, or without one, by the environment."""
    return master.startswith("sc://") if master else bool(os.environ.get("SPARK_REMOTE"))


class SparkConnect:
    """Runs tasks on the cluster behind a Spark Connect server, each as a task of one job.

    Args:
        url: `sc://host:15002`, with token and TLS as in Spark's connection strings. Without one, the URL in
            `SPARK_REMOTE`, or this process's session.
        conf: settings of the session.
    """

    has_workers: Final = True
    engine: Final = "Spark"

    def __init__(self, url: str | None = None, *, conf: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._conf = dict(conf or {})
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._at_work = _AtWork()

    def start(self) -> None:
        """Connect. Raises TaskError if the server does not answer, and UsageError if packages are missing."""
        self._connected()

    def _connected(self) -> SparkSession:
        with self._lock:
            if self._session is not None and self._session.is_stopped:
                self._session = None
            if self._session is None:
                self._session = self._connect()
            return self._session

    def _connect(self) -> SparkSession:
        try:
            from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415  slow, and of an extra
            from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(_EXTRA.format(missing=error.name or error)) from error
        warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")  # The error reports it.
        builder = SparkSession.builder
        if self._url is not None:
            builder = builder.remote(self._url)
        try:
            session = builder.getOrCreate()
            session.client.set_retry_policies([DefaultPolicy(max_retries=_SPARK_CONNECT_RETRIES)])
            for name, value in self._conf.items():
                session.conf.set(name, value)
            assert session.version  # Sends a request to the server.
        except Exception as error:
            raise task_error(error, ended=True) from error
        return session

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks as one job. Raises TaskError if a task or the job fails."""
        if not tasks:
            return []
        session = self._connected()
        from pyspark.errors import PySparkException  # noqa: PLC0415

        numbers = pa.array(range(len(tasks)), pa.int32())
        pickled = pa.array([pickle.dumps(task) for task in tasks], pa.binary())
        sent = OnWorker(function, version_here())
        watch = _Watch(session, self._at_work, len(tasks), on_done)
        try:
            with watch:
                frame = session.createDataFrame(pa.table({"number": numbers, "task": pickled}))
                result = (
                    frame.repartitionById(len(tasks), "number")
                    .mapInArrow(_carry_out(sent), _SCHEMA)
                    .toArrow()
                )
        except PySparkException as error:
            lost = watch.gave_up is None and _is_of_the_way(error)
            if lost:
                self._forget(session)
            raise watch.gave_up or task_error(error, ended=lost) from error
        on_done(len(tasks))
        receipts: dict[int, Any] = dict(zip(*(column.to_pylist() for column in result.columns), strict=True))
        return [pickle.loads(receipts[number]) for number in range(len(tasks))]  # noqa: S301  of our own workers

    def stop(self) -> None:
        """End the session if it was opened by URL."""
        with self._lock:
            session, self._session = self._session, None
            if session is not None and self._url is not None:
                _end(session)

    def _forget(self, session: SparkSession) -> None:
        """Discard a session, because a restarted server does not know it; the next job opens another."""
        with self._lock:
            if self._session is session:
                self._session = None
        _end(session)


def _carry_out(sent: OnWorker[Any, Any]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def carry_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                receipt = pickle.dumps(sent(pickle.loads(row["task"])))  # noqa: S301  of our own driver
                yield pa.record_batch({"number": pa.array([row["number"]], pa.int64()), "receipt": [receipt]})

    return carry_out


def _end(session: SparkSession) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    # The session may be gone with its server.
    session.client.set_retry_policies([DefaultPolicy(max_retries=0)])
    with contextlib.suppress(Exception):
        session.stop()


def _is_of_the_way(error: Exception) -> bool:
    """Return whether an error means that the connection to the server or its session was lost. Otherwise a task
    failed."""
    from pyspark.errors.exceptions.connect import SparkConnectException, SparkConnectGrpcException  # noqa: PLC0415

    # A task's exception arrives as a subclass of the second.
    return type(error) in {SparkConnectException, SparkConnectGrpcException}


@dataclass(slots=True)
class _AtWork:
    """Time at which the server last reported that executors run a task of this process. One job may wait for
    another."""

    last_s: float = float("-inf")


class _Watch:
    """Thread that reports how many tasks of the caller's job are done, and cancels the job if no executor runs any."""

    def __init__(
        self, session: SparkSession, at_work: _AtWork, total: int, report_count: Callable[[int], None]
    ) -> None:
        self._session = session
        self._at_work = at_work
        self._tag = uuid.uuid4().hex
        self._total = total
        self._report_count = report_count
        self._of = threading.get_ident()
        self._idle_since_s: float | None = None
        """None also if the server reports no progress, because then idleness is unknown."""
        self._thread = PeriodicThread("connect-watch", self._watch, SPARK_POLL_S)
        self.gave_up: TaskError | None = None

    def __enter__(self) -> None:
        self._session.addTag(self._tag)  # Tags are per thread.
        self._session.registerProgressHandler(self._progress)  # type: ignore[arg-type]
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._session.removeProgressHandler(self._progress)  # type: ignore[arg-type]
        self._session.removeTag(self._tag)
        self._thread.stop()

    def _progress(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,
        operation_id: str | None,  # noqa: ARG002  the signature is Spark's
        done: bool,
    ) -> None:
        if threading.get_ident() != self._of:
            return  # Progress of another thread's job.
        if inflight_tasks or done:
            self._at_work.last_s, self._idle_since_s = time.monotonic(), None
        elif self._idle_since_s is None:
            self._idle_since_s = time.monotonic()
        if stages:
            self._report_count(min(max(stage.num_completed_tasks for stage in stages), self._total))

    def _watch(self) -> float | None:
        since_s = self._idle_since_s
        if (
            since_s is not None
            and time.monotonic() - max(since_s, self._at_work.last_s) > SPARK_IDLE_TIMEOUT_S
        ):
            self.gave_up = no_workers_error("the cluster behind Spark Connect", SPARK_IDLE_TIMEOUT_S)
            self._session.interruptTag(self._tag)
            return None
        return SPARK_POLL_S
