"""The lake: the façade that puts the rooms together."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from tracelake._errors import ExpiredError, UsageError
from tracelake._settings import find_lake, find_metadata
from tracelake.lake.datasets import LakeDatasets
from tracelake.lake.history import LakeBranches
from tracelake.lake.location import Stores, cache_directory, make_lake, open_lake, shown
from tracelake.lake.maintenance import LakeUpkeep
from tracelake.lake.quarantine import LakeQuarantine
from tracelake.lake.tables import LakeTables
from tracelake.lake.verify import Verifier
from tracelake.limits import BUCKETS_DEFAULT, BUCKETS_MAX, SEARCH_HITS_DEFAULT, TRANSACTION_INPUT_MAX_BYTES
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.inputs import Input, find_files, into_transactions
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.report import report_of
from tracelake.replicas.info import describe_all
from tracelake.results import (
    Hit,
    InboxInfo,
    IndexInfo,
    IngestReport,
    ReplicaInfo,
    TableInfo,
    Trace,
    VerifyReport,
)
from tracelake.search.ceiling import ceiling as parts_ceiling
from tracelake.search.finalize import read_manifest
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.indexes import INDEX_ENTRY
from tracelake.tables.table import Table
from tracelake.tables.view import View, named_by
from tracelake.tasks.progress import OnProgress, silent
from tracelake.tasks.runners import Executor, InProcess, Spark
from tracelake.tracking.inbox import inbox_info
from tracelake.versions.model import IndexAt, Reference
from tracelake.versions.store import Repository

ResultT = TypeVar("ResultT")


def init(
    place: str | os.PathLike[str], *, metadata: str | None = None, buckets: int = BUCKETS_DEFAULT
) -> Lake:
    """Make a lake where nothing is yet. Repeat it after a crash; of two at once, one makes the lake.

    Args:
        place: a directory, empty or absent, or `file:///directory`, `s3://bucket/prefix`,
            `gs://bucket/prefix`, `az://account/container/prefix`, `memory://name` (gone with the process).
        metadata: URL of the key-value store for the records of the lake, as `open_key_value` takes it, or
            `objects` for objects in the lake itself. By default the setting `metadata`, else a SQLite file
            in a directory, `objects` elsewhere. A password in the URL is used and not kept.
        buckets: hash buckets of its tables, from 1 to 4096; fixed for the life of the lake.

    Raises:
        LakeExistsError: there is a lake already.
        UsageError: the place is not empty, a URL is none that can be used, or `buckets` is out of range.
        StorageError: a store cannot be reached, or refuses.
    """
    if not 1 <= buckets <= BUCKETS_MAX:
        raise UsageError(f"buckets must be from 1 to {BUCKETS_MAX}, not {buckets}.")
    metadata = find_metadata(metadata)
    make_lake(os.fspath(place), metadata, buckets)
    return Lake(open_lake(os.fspath(place), metadata))


def open(place: str | os.PathLike[str] | None = None, *, metadata: str | None = None) -> Lake:
    """Open a lake: `place`, else TRACELAKE_LAKE, else `tracelake.toml`, else ./.tracelake.

    Its metadata is where `lake.json` says, unless `metadata` or the setting of that name says where it is now.

    Raises:
        LakeNotFoundError: there is none.
        UsageError: `metadata` is not that of this lake.
        DamageError: its metadata is gone.
        StorageError: a store cannot be reached, or refuses.
    """
    found = find_lake(os.fspath(place) if place is not None else None)
    return Lake(open_lake(found, find_metadata(metadata)))


class Lake(LakeBranches, LakeDatasets, LakeQuarantine, LakeTables, LakeUpkeep):
    """One lake. Threads may share it; `close` it, or use it in a `with` block."""

    def __init__(self, stores: Stores) -> None:
        self.objects: ObjectStore = stores.objects
        self.config = stores.config
        self._stores = stores
        self._key_value: KeyValueStore = stores.key_value
        self._repository = Repository(self._key_value, self.objects)
        self._executor: Executor | None = None
        self._view: tuple[str | None, View] | None = None
        if self.in_memory:
            self._cache = Path(tempfile.mkdtemp(prefix="tracelake-memory-"))
            weakref.finalize(self, shutil.rmtree, self._cache, ignore_errors=True)
        else:
            self._cache = cache_directory(self.config.id)

    @property
    def url(self) -> str:
        """Where the lake is, as a URL."""
        return self.objects.url

    @property
    def place(self) -> str:
        """Where the lake is, for people: the path of a directory, another URL as it is."""
        return shown(self.objects.url)

    @property
    def in_memory(self) -> bool:
        """Whether the lake goes with this process."""
        return self.url.startswith("memory://")

    def __enter__(self) -> Lake:
        """Return the lake."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the lake."""
        self.close()

    def close(self) -> None:
        """End Spark, where it was started, and release connections."""
        if self._executor is not None:
            self._executor.stop()
            self._executor = None
        if self._view is not None:
            self._view[1].close()
            self._view = None
        self._key_value.close()

    # Writing

    def ingest(
        self,
        *patterns: str | os.PathLike[str],
        transaction_bytes: int | None = None,
        master: str | None = None,
        executor: Executor | None = None,
        progress: OnProgress | None = None,
    ) -> IngestReport:
        """Read OTLP files, and make them part of the tables, each span once.

        Whatever an earlier run left unfinished is finished first. A file that cannot be read, or parts of
        it, end up in the report's `bad`; all else goes in.

        Args:
            patterns: files, or glob patterns.
            transaction_bytes: input bytes, as stored, of one transaction at most; 64 MiB by default.
            master: Spark master; `local[*]` by default. A lake in memory takes none: its tasks run here.
            executor: run the tasks there instead of on Spark.
            progress: is told what is going on.

        Raises:
            UsageError: a pattern matches nothing.
            SourceChangedError: an unfinished transaction cannot be replayed: its input has changed.
        """
        if transaction_bytes is not None and transaction_bytes < 1:
            raise UsageError(f"transaction_bytes must be at least 1, not {transaction_bytes}.")
        inputs = find_files(os.fspath(pattern) for pattern in patterns)
        chosen = self._executor_for(master, executor) or self._spark(master)
        return self._run(inputs, transaction_bytes, chosen, progress or silent)

    def pipeline(
        self,
        *,
        replica: str | None = None,
        watch: Sequence[str] = (),
        master: str | None = None,
        executor: Executor | None = None,
    ) -> InboxPipeline:
        """Return the pipeline that takes what the server received; call its `run_once` again and again.

        Any number of them may work on one lake at once, in this process or others.

        Args:
            replica: its name, which no other should have; host and process id by default.
            watch: glob patterns; OTLP files that appear there are taken too.
            master: Spark master; `local[*]` by default.
            executor: run the tasks there instead of on Spark.
        """
        chosen = self._executor_for(master, executor) or Spark(master or "local[*]", short_lived=False)
        return InboxPipeline(
            self._key_value, self.objects, self.config.buckets, chosen, replica=replica, watch=watch
        )

    def replicas(self) -> list[ReplicaInfo]:
        """Return the replicas of the pipeline that work on the lake, or did until they were cut off; by name."""
        upper = Outputs(self._key_value, self.objects, self.config.buckets).table_upper()
        return describe_all(self._key_value, upper)

    def inbox(self) -> InboxInfo:
        """Return what waits in the inbox of servers."""
        return inbox_info(self.objects, self.set_aside_paths())

    def _pipeline_of(self, executor: Executor) -> Pipeline:
        return Pipeline("main", self._key_value, self.objects, self.config.buckets, executor)

    def _run(
        self, inputs: list[Input], transaction_bytes: int | None, executor: Executor, progress: OnProgress
    ) -> IngestReport:
        started = time.monotonic()
        runs = into_transactions(inputs, transaction_bytes or TRANSACTION_INPUT_MAX_BYTES)
        result = self._pipeline_of(executor).run(runs, progress)
        return report_of(result, time.monotonic() - started)

    def _spark(self, master: str | None) -> Executor:
        if self._executor is None:
            self._executor = Spark(master or "local[*]", short_lived=True)
        return self._executor

    def _executor_for(self, master: str | None, executor: Executor | None) -> Executor | None:
        """Return where tasks are to run, None for Spark. Raises UsageError for Spark on a lake in memory."""
        if not self.in_memory:
            return executor
        if master is not None or isinstance(executor, Spark):
            raise UsageError(
                f"{self.url} is in the memory of this process, where Spark's workers cannot reach it; leave master "
                "and executor out, or make the lake in a directory or a bucket."
            )
        return executor or InProcess()

    # Reading

    def view(self, at: str = "main") -> View:
        """Open one commit for reading: branch, commit id, or the beginning of one. Raises RefNotFoundError."""
        head = self._commit_of(at)
        view = self._view
        if view is None or view[0] != head or view[1].is_old:
            view = (
                head,
                View(named_by(self._repository, head), self.stores, self.config.buckets, self._cache, head),
            )
            self._view = view
        return view[1]  # not self._view, which another thread may have changed

    def _read(self, at: str, read: Callable[[View], ResultT]) -> ResultT:
        """Read a commit; again with its parts as they are now, where garbage collection took us for dead."""
        view = self.view(at)
        try:
            return read(view)
        except ExpiredError:
            if self._view is not None and self._view[1] is view:
                self._view = None
            return read(self.view(at))

    def table(self, name: str, at: str = "main") -> Table:
        """Return a table as of a commit. Raises TableNotFoundError, RefNotFoundError."""
        return self.view(at).table(name)

    def tables(self, at: str = "main") -> list[TableInfo]:
        """Return all tables as of a commit."""
        return self._read(at, lambda view: view.tables())

    def sql(self, query: str, at: str = "main", *, allow_files: bool = False) -> pa.Table:
        """Run a DuckDB query in which `spans` and `traces` are the tables.

        Args:
            query: one SELECT, of which DuckDB reads the parts of the lake, and nothing else.
            at: the commit to read.
            allow_files: whether it may read other files of this machine, and load extensions.

        Raises:
            QueryError: DuckDB refuses the query.
        """
        return self._read(at, lambda view: view.sql(query, allow_files))

    def search(
        self,
        query: str,
        where: str | None = None,
        at: str = "main",
        limit: int = SEARCH_HITS_DEFAULT,
        service: str | None = None,
    ) -> list[Hit]:
        """Return the spans that match best, best first.

        Args:
            query: words, "phrases", AND, OR, -not, `service:name`; see docs/reference/search.md.
            where: a DuckDB condition on table `spans`, such as `service = 'airline-agent'`.
            at: the commit to search.
            limit: hits at most, up to 1,000.
            service: only spans of this service; faster than the same as a condition.

        Raises:
            QueryError: query or condition does not parse.
        """
        return self._read(at, lambda view: view.search(query, where, limit, service))

    def trace(self, trace_id: str, at: str = "main") -> Trace:
        """Return all spans of a trace, by its id or the unique beginning of it. Raises NotFoundError."""
        return self._read(at, lambda view: view.trace(trace_id))

    def verify(self, progress: OnProgress | None = None) -> VerifyReport:
        """Read everything again and compare it: commits, journal, parts, index, and tables with one another."""
        return Verifier(self._key_value, self.objects, self.config.buckets, self.view).run(progress or silent)

    def index(self, at: str = "main") -> IndexInfo | None:
        """Return what the full-text index has, and how many parts it could have; None where there is none yet."""
        named = self._entries_at(at).get(INDEX_ENTRY)
        if not isinstance(named, IndexAt):
            return None
        manifest = read_manifest(self.objects, named.manifest)
        return IndexInfo(
            named.manifest, manifest.upper, manifest.documents, manifest.part_count, parts_ceiling()
        )

    def _maintenance_executor(self, executor: Executor | None) -> Executor:
        return self._executor_for(None, executor) or self._spark(None)

    def _entries_at(self, ref: str) -> dict[str, Reference]:
        return named_by(self._repository, self._commit_of(ref))

    def _forget_view(self) -> None:
        self._view = None
