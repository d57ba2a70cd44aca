"""The context of an open lake: the stores, views and task runner that its components share."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

from tracelake._errors import DamageError, ExpiredError, QueryError, UsageError
from tracelake._settings import load_settings
from tracelake.erasure.store import ErasureStore
from tracelake.journal.prices import Prices
from tracelake.location import CONFIG, Location, in_memory
from tracelake.search.vectors import IndexSettings
from tracelake.storage import IsolatingObjectStore, KeyValueStore, ObjectStore
from tracelake.tasks.runners import InProcess, SizedRunner, TaskRunner
from tracelake.tasks.spark import Spark
from tracelake.tracking.location import release
from tracelake.versions.branch_store import MAIN
from tracelake.versions.model import Reference
from tracelake.versions.repository import Repository

if TYPE_CHECKING:
    import pyarrow as pa

    from tracelake.search.open_index import OpenIndex
    from tracelake.shards.parts import ByteLRU
    from tracelake.shards.shard import Shard
    from tracelake.tables.changes import ChangeLog
    from tracelake.tables.result_cache import ResultCache
    from tracelake.tables.view import CommitView

# ruff: noqa: PLC0415  DuckDB, Arrow and tantivy: commands that read no rows, such as `log`, start without them

ResultT = TypeVar("ResultT")
_READS_MAX: Final = 4
"""Attempts to read a commit beside erasures and garbage collections."""
NO_COMMIT: Final = "(none)"
"""Reference of the state before the first commit. No branch can have this name."""
_SELECTED_MAX_BYTES: Final = 16 * 1024 * 1024
_SELECTED_ENTRY_BYTES: Final = 2_048
"""Estimated size of a cached result without its values: query, schema and objects."""


class LakeContext:
    """The stores of a lake, its open commit view and its task runner. Threads may share it."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.stores = location.stores
        self.config = location.config
        self.in_memory = in_memory(self.objects.url)
        """Whether the lake exists only in the memory of this process."""
        self.first_index = IndexSettings(text=self.config.text, vectors=self.config.vectors)
        """Settings of the lake's first full-text index."""
        self.repository = Repository(self.key_value, self.objects)
        self.erasures = ErasureStore(self.key_value, self.objects)
        self.prices = Prices(self.key_value)
        self._spark: TaskRunner | None = None
        self._view: tuple[str | None, CommitView] | None = None
        if self.in_memory:
            weakref.finalize(self, shutil.rmtree, self.stores.cache, ignore_errors=True)

    @cached_property
    def _index(self) -> OpenIndex:
        from tracelake.search.open_index import OpenIndex

        return OpenIndex(self.objects, self.stores.cache / "search")

    @cached_property
    def selected(self) -> ByteLRU[Hashable, pa.Table]:
        """Results of queries on committed rows alone, for lists and the overview."""
        from tracelake.shards.parts import ByteLRU

        return ByteLRU(lambda table: table.nbytes + _SELECTED_ENTRY_BYTES, lambda: _SELECTED_MAX_BYTES)

    @cached_property
    def statistics(self) -> ResultCache:
        """Statistics of a large lake for lists and the overview."""
        from tracelake.tables.result_cache import ResultCache

        return ResultCache()

    @property
    def key_value(self) -> KeyValueStore:
        """The key-value store."""
        return self.stores.key_value

    @property
    def objects(self) -> ObjectStore:
        """The object store."""
        return self.stores.objects

    def close(self) -> None:
        """Stop Spark, if it was started, and release connections."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
        if "statistics" in vars(self):
            self.statistics.close()
        if self._view is not None:
            self._view[1].close()
            self._view = None
        release(self.objects.url)
        self.key_value.close()

    def singly(self) -> IsolatingObjectStore:
        """Return the object store for callers that continue past damaged objects."""
        return IsolatingObjectStore(self.objects, CONFIG)

    def shard(self, name: str) -> Shard:
        """Return the shard of a table."""
        from tracelake.shards.shard import Shard

        return Shard(name, self.key_value, self.objects)

    # Commits

    def commit_of(self, ref: str) -> str | None:
        """Return the commit of a reference; None for `main` of an empty lake. Raises RefNotFoundError if no commit
        matches."""
        if ref == NO_COMMIT:
            return None
        return self.repository.head() if ref == MAIN else self.repository.resolve(ref)

    def entries_at(self, ref: str) -> dict[str, Reference]:
        """Return the tables and indexes of a commit; none for `main` of an empty lake."""
        from tracelake.tables.view import named_by

        return named_by(self.repository, self.commit_of(ref))

    def view(self, at: str = MAIN) -> CommitView:
        """Open a commit for reading, by branch, commit id or a prefix of one. Raises RefNotFoundError."""
        from tracelake.tables.view import CommitView, named_by

        head, masked = self.commit_of(at), self.erasures.masked()
        view = self._view
        if view is None or view[0] != head or view[1].is_old or view[1].masked.number != masked.number:
            entries = named_by(self.repository, head)
            view = head, CommitView(entries, self.stores, self.config.buckets, head, self._index, masked)
            self._view = view
        return view[1]  # not self._view, because another thread may have changed it

    def read(self, at: str, read: Callable[[CommitView], ResultT]) -> ResultT:
        """Read a commit. If garbage collection expired our lease, or an erasure deleted parts, reopen the commit and
        read again."""
        for _ in range(_READS_MAX - 1):
            view = self.view(at)
            try:
                return read(view)
            except ExpiredError:
                pass
            except (DamageError, QueryError):  # DuckDB refuses a query of a missing part
                masked = self.erasures.masked()
                if not masked.trace_ids and masked.number == view.masked.number:
                    raise
            if self._view is not None and self._view[1] is view:
                self._view = None
        return read(self.view(at))

    def forget_view(self) -> None:
        """Drop the cached view, so that the next read opens the newest commit."""
        self.selected.clear()
        if "statistics" in vars(self):
            self.statistics.clear()
        self._view = None

    # Tables

    def change_log(self, name: str) -> ChangeLog:
        """Return the change log of a table. Raises TableNotFoundError."""
        from tracelake.tables.changes import ChangeLog

        self.view().table(name)
        return ChangeLog(name, self.view, self.shard(name))

    def hold(self, name: str) -> None:
        """Keep a table's parts for an hour, for tasks of other processes that list them from now on.

        The lease is never released, because this process does not know when the tasks end.
        """
        from tracelake.shards.leases import Lease

        Lease(self.shard(name), self.key_value)

    # Tasks

    def runner(
        self, runner: TaskRunner | None, master: str | None = None, conf: Mapping[str, str] | None = None
    ) -> TaskRunner:
        """Return the task runner: the given one, this process for a lake in memory, otherwise Spark, which stays
        open.

        If no master is named, small tasks run in this process.
        """
        chosen = self.local_runner(runner, master)
        if chosen is not None:
            return chosen
        if self._spark is None:
            self._spark = spark_runner(master, conf, waits=True)
        return self._spark

    def lasting_runner(
        self, runner: TaskRunner | None, master: str | None, conf: Mapping[str, str] | None = None
    ) -> TaskRunner:
        """Return the task runner of a pipeline that runs continuously. The caller stops it."""
        return self.local_runner(runner, master) or spark_runner(master, conf)

    def local_runner(self, runner: TaskRunner | None, master: str | None) -> TaskRunner | None:
        """Return the task runner, or None for Spark. Raises UsageError for Spark on a lake in memory."""
        if not self.in_memory:
            return runner
        from tracelake.tasks.connect import SparkConnect

        if master is not None or isinstance(runner, Spark | SparkConnect):
            raise UsageError(
                f"{self.objects.url} is in the memory of this process, where Spark's workers cannot reach it; "
                "leave master and runner out, or create the lake in a directory or a bucket."
            )
        return runner or InProcess()


def spark_runner(master: str | None, conf: Mapping[str, str] | None, *, waits: bool = False) -> TaskRunner:
    """Return a Spark runner. If neither the caller nor the settings name a master, small tasks run in this process,
    and without `waits` also larger ones while Spark starts."""
    from tracelake.tasks.connect import SparkConnect, is_connect

    settings = load_settings()
    master = master or settings.spark_master
    conf = settings.spark_conf | dict(conf or {})
    spark = SparkConnect(master, conf=conf) if is_connect(master) else Spark(master, conf=conf)
    return spark if master else SizedRunner(spark, waits=waits)
