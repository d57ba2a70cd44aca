"""A lake that is open: what its parts share, so that each of them is a thing of its own."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from tracelake._errors import ExpiredError, UsageError
from tracelake._settings import load_settings
from tracelake.lake.location import CONFIG, Location, in_memory
from tracelake.search.open_index import OpenIndex
from tracelake.shards.leases import Lease
from tracelake.shards.shard import Shard
from tracelake.storage import IsolatingObjectStore, KeyValueStore, ObjectStore
from tracelake.tables.changes import ChangeLog
from tracelake.tables.view import CommitView, named_by
from tracelake.tasks.connect import SparkConnect, is_connect
from tracelake.tasks.runners import InProcess, SizedRunner, TaskRunner
from tracelake.tasks.spark import Spark
from tracelake.tracking.location import release
from tracelake.versions.branch_store import MAIN
from tracelake.versions.model import Reference
from tracelake.versions.repository import Repository

ResultT = TypeVar("ResultT")
NO_COMMIT: Final = "(none)"
"""The reference of what a lake is before its first commit. No branch has such a name."""


class LakeContext:
    """The stores of a lake, the commit that is open for reading, and where tasks run. Threads may share it."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.stores = location.stores
        self.config = location.config
        self.repository = Repository(self.key_value, self.objects)
        self._spark: TaskRunner | None = None
        self._view: tuple[str | None, CommitView] | None = None
        self._index = OpenIndex(self.objects, self.stores.cache / "search")
        if self.in_memory:
            weakref.finalize(self, shutil.rmtree, self.stores.cache, ignore_errors=True)

    @property
    def key_value(self) -> KeyValueStore:
        """Its records."""
        return self.stores.key_value

    @property
    def objects(self) -> ObjectStore:
        """Its objects."""
        return self.stores.objects

    @property
    def in_memory(self) -> bool:
        """Whether the lake goes with this process."""
        return in_memory(self.objects.url)

    def close(self) -> None:
        """End Spark, where it was started, and release connections."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
        if self._view is not None:
            self._view[1].close()
            self._view = None
        release(self.objects.url)
        self.key_value.close()

    def singly(self) -> IsolatingObjectStore:
        """Return the objects for who goes on behind damage."""
        return IsolatingObjectStore(self.objects, CONFIG)

    def shard(self, name: str) -> Shard:
        """Return the shard of a table."""
        return Shard(name, self.key_value, self.objects)

    # Commits

    def commit_of(self, ref: str) -> str | None:
        """Return the commit that a reference names; None for `main` of an empty lake. Raises RefNotFoundError."""
        if ref == NO_COMMIT:
            return None
        return self.repository.head() if ref == MAIN else self.repository.resolve(ref)

    def entries_at(self, ref: str) -> dict[str, Reference]:
        """Return the tables and indexes that a commit names; none for `main` of an empty lake."""
        return named_by(self.repository, self.commit_of(ref))

    def view(self, at: str = MAIN) -> CommitView:
        """Open one commit for reading: branch, commit id, or the beginning of one. Raises RefNotFoundError."""
        head = self.commit_of(at)
        view = self._view
        if view is None or view[0] != head or view[1].is_old:
            entries = named_by(self.repository, head)
            view = head, CommitView(entries, self.stores, self.config.buckets, head, self._index)
            self._view = view
        return view[1]  # not self._view, which another thread may have changed

    def read(self, at: str, read: Callable[[CommitView], ResultT]) -> ResultT:
        """Read a commit; again with its parts as they are now, where garbage collection took us for dead."""
        view = self.view(at)
        try:
            return read(view)
        except ExpiredError:
            if self._view is not None and self._view[1] is view:
                self._view = None
            return read(self.view(at))

    def forget_view(self) -> None:
        """Open the newest commit anew when it is asked for next."""
        self._view = None

    # Tables

    def change_log(self, name: str) -> ChangeLog:
        """Return the changes of a table. Raises TableNotFoundError."""
        self.view().table(name)
        return ChangeLog(name, self.view, self.shard(name))

    def hold(self, name: str) -> None:
        """Keep the parts of a table for tasks of other processes, which list them from now on, for an hour.

        Nobody gives the lease back, for nobody here knows when the tasks have ended.
        """
        Lease(self.shard(name), self.key_value)

    # Tasks

    def runner(
        self, given: TaskRunner | None, master: str | None = None, conf: Mapping[str, str] | None = None
    ) -> TaskRunner:
        """Return where tasks are to run: as given, in this process for a lake in memory, else on Spark, kept open.

        Where no master is named, small ones run in this process.
        """
        chosen = self.runner_given(given, master)
        if chosen is not None:
            return chosen
        if self._spark is None:
            self._spark = spark_runner(master, conf)
        return self._spark

    def lasting_runner(
        self, given: TaskRunner | None, master: str | None, conf: Mapping[str, str] | None = None
    ) -> TaskRunner:
        """Return where the tasks of a pipeline are to run that goes on and on; who asks for it stops it."""
        return self.runner_given(given, master) or spark_runner(master, conf)

    def runner_given(self, given: TaskRunner | None, master: str | None) -> TaskRunner | None:
        """Return where tasks are to run, None for Spark. Raises UsageError for Spark on a lake in memory."""
        if not self.in_memory:
            return given
        if master is not None or isinstance(given, Spark | SparkConnect):
            raise UsageError(
                f"{self.objects.url} is in the memory of this process, where Spark's workers cannot reach it; leave "
                "master and runner out, or make the lake in a directory or a bucket."
            )
        return given or InProcess()


def spark_runner(master: str | None, conf: Mapping[str, str] | None) -> TaskRunner:
    """Return Spark; with a master that somebody has named for all, else for what is not small."""
    settings = load_settings()
    master = master or settings.spark_master
    conf = settings.spark_conf | dict(conf or {})
    spark = SparkConnect(master, conf=conf) if is_connect(master) else Spark(master, conf=conf)
    return spark if master else SizedRunner(spark)
