"""The lake as users have it: each method says what it does, and leads to the part that does it.

What brings spans into a lake: files that are named, and the pipeline of what is received and watched.

Making a lake, and opening one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType

import pyarrow as pa

from tracelake._errors import UsageError
from tracelake._settings import find_lake, find_metadata, find_text, find_vectors
from tracelake.access.audit import Audit
from tracelake.access.keys import Keys
from tracelake.access.sessions import Sessions
from tracelake.lake.annotations import WithAnnotations
from tracelake.lake.archive import WithArchive
from tracelake.lake.backup import back_up
from tracelake.lake.context import LakeContext
from tracelake.lake.datasets import Datasets
from tracelake.lake.explicit_transactions import Transactions
from tracelake.lake.hot_tier import HotTier
from tracelake.lake.location import LakeConfig, Location, create_lake, open_location, shown
from tracelake.lake.maintenance import Maintenance
from tracelake.lake.pipeline import Quarantine, inbox_pipeline, ingest, replicas
from tracelake.lake.reads import WithReads, WorkspaceLake
from tracelake.lake.sources import WithSources
from tracelake.lake.transaction_history import LakeJournal
from tracelake.lake.verify import Verifier
from tracelake.limits import BUCKETS_DEFAULT, BUCKETS_MAX
from tracelake.pipeline.continuous import InboxPipeline
from tracelake.results import (
    BackupReport,
    BranchInfo,
    CommitInfo,
    EntryChange,
    InboxInfo,
    IndexInfo,
    IngestReport,
    ReplicaInfo,
    TableInfo,
    Trace,
    VerifyReport,
)
from tracelake.search.analyzers import analyzer_named
from tracelake.search.vectors import IndexSettings, requested_vectors
from tracelake.storage import ObjectStore
from tracelake.tables.changes import Changes, Retractions
from tracelake.tables.spec import make_spec
from tracelake.tables.table import Table
from tracelake.tables.view import describe_index
from tracelake.tasks.runners import OnProgress, TaskRunner, silent
from tracelake.tracking.ingest_queue import inbox_info
from tracelake.user_tables.write import WriteId, create_table, write_batches
from tracelake.versions import branch as describe
from tracelake.versions.branch import Branch
from tracelake.versions.branch_store import MAIN


class WithInputs:
    """What a lake has of its inputs."""

    _opened: LakeContext
    transactions: Transactions
    quarantine: Quarantine

    def ingest(
        self,
        *patterns: str | os.PathLike[str],
        transaction_bytes: int | None = None,
        transaction: str | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        runner: TaskRunner | None = None,
        progress: OnProgress | None = None,
    ) -> IngestReport:
        """Read OTLP files, and make them part of the tables, each span once.

        Whatever an earlier run left unfinished is finished first. A file that cannot be read, or parts of
        it, end up in the report's `bad`; all else goes in.

        Args:
            patterns: files, or objects such as `s3://bucket/key`, or glob patterns of either.
            transaction_bytes: input bytes, as stored, of one transaction at most; 64 MiB by default.
            transaction: the id of an open explicit transaction: the files go into it, or nowhere. By default the one
                that this object has begun and not ended, if any.
            master, conf: Spark master, `local[*]` by default, and settings of Spark. A lake in memory takes none: its
                tasks run here.
            runner: run the tasks there instead of on Spark.
            progress: is told what is going on.

        Raises:
            UsageError: a pattern matches nothing, or names the lake's own objects; the explicit transaction is over; or
                another client's is open.
            StorageError: a bucket cannot be listed.
            SourceChangedError: an unfinished transaction cannot be replayed: its input has changed.
        """
        chosen = self._opened.runner(runner, master, conf)
        tell = progress or silent
        if transaction is None:
            transaction = self.transactions.own
        if transaction is None:
            self.transactions.finish_ended(runner, master)
            return ingest(self._opened, patterns, transaction_bytes, chosen, tell)
        tell = self.transactions.alive(transaction, tell)
        return ingest(self._opened, patterns, transaction_bytes, chosen, tell, transaction)

    def pipeline(
        self,
        *,
        replica: str | None = None,
        watch: Sequence[str] | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        runner: TaskRunner | None = None,
    ) -> InboxPipeline:
        """Return the pipeline that takes what the server received; call its `run_once` again and again.

        Any number of them may work on one lake at once, in this process or others.

        Args:
            replica: its name, which no other should have; host and process id by default.
            watch: glob patterns of files or buckets, and topics (`kafka://broker:9092/topic`), by default the setting.
            master, conf, runner: as for `ingest`.
        """
        chosen = self._opened.lasting_runner(runner, master, conf)
        return inbox_pipeline(self._opened, chosen, replica, watch)

    def replicas(self) -> list[ReplicaInfo]:
        """Return the replicas of the pipeline that work on the lake, or did until they were cut off; by name."""
        return replicas(self._opened)

    def inbox(self) -> InboxInfo:
        """Return what waits in the inbox of servers."""
        return inbox_info(self._opened.objects, self.quarantine.paths())


class Lake(WithReads, WithInputs, WithArchive, WithAnnotations, WithSources):
    """One lake: its parts are about themselves. Threads may share it; `close` it, or use it in a `with` block."""

    def __init__(self, location: Location) -> None:
        self._opened = LakeContext(location)
        self.datasets = Datasets(self._opened)
        self.maintenance = Maintenance(self._opened)
        self.quarantine = Quarantine(self._opened)
        self.transactions = Transactions(self._opened)
        self.journal = LakeJournal(self._opened)
        self.hot = self._whole_hot = HotTier(self._opened)
        self.keys = Keys(lambda: self._opened.key_value)
        self.sessions = Sessions(lambda: self._opened.key_value)
        self.audit = Audit(lambda: self._opened.key_value)

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
        self._opened.close()

    @property
    def place(self) -> str:
        """Where the lake is, for people: the path of a directory, another URL as it is."""
        return shown(self.url)

    @property
    def config(self) -> LakeConfig:
        """What was fixed when the lake was made."""
        return self._opened.config

    @property
    def objects(self) -> ObjectStore:
        """The objects of the lake: to look at; whatever changes them is the lake's own."""
        return self._opened.objects

    def table(self, name: str, at: str = "main") -> Table:
        """Return a table as of a commit. Raises TableNotFoundError, RefNotFoundError."""
        return self._opened.view(at).table(name)

    def tables(self, at: str = "main") -> list[TableInfo]:
        """Return all tables as of a commit."""
        return self._opened.read(at, lambda view: view.tables())

    def sql(
        self, query: str, at: str = MAIN, *, allow_files: bool = False, uncommitted: bool = False
    ) -> pa.Table:
        """Run a DuckDB query in which `spans` and `traces` are the tables.

        Args:
            query: one SELECT, of which DuckDB reads the parts of the lake at a commit, and nothing else.
            allow_files: whether it may read other files of this machine, and load extensions.
            uncommitted: at `main`, also the newest traces of the hot tier that no commit holds yet; what cannot be read
                of them is left out, and told of in the metadata `tracelake.not_listed` of the table.

        Raises:
            QueryError: DuckDB refuses the query.
        """
        return self._sql(query, at, uncommitted, allow_files)

    def within(self, workspace: str) -> WorkspaceLake:
        """Return one workspace of the lake, to read and to annotate: what is of others is not there."""
        return WorkspaceLake(self._opened, self.hot, workspace)

    def trace(self, trace_id: str, at: str = "main", *, tiers: bool = False) -> Trace:
        """Return all spans of a trace, of both tiers, by its id or the beginning of it. Raises NotFoundError."""
        if at == MAIN and (tiers or self.hot.store is not None):
            return self.hot.trace(trace_id, tiers=tiers)
        return self._opened.read(at, lambda view: view.trace(trace_id))

    def index(self, at: str = "main") -> IndexInfo | None:
        """Return what the full-text index has, and how many parts it could have; None where there is none yet."""
        return describe_index(self._opened.objects, self._opened.entries_at(at))

    def verify(self, progress: OnProgress | None = None) -> VerifyReport:
        """Read everything again and compare it: commits, journal, parts, index, and tables with one another."""
        opened = self._opened
        verifier = Verifier(opened.key_value, opened.singly(), opened.config.buckets, opened.view)
        return verifier.run(progress or silent)

    def backup(self, directory: str | os.PathLike[str], progress: OnProgress | None = None) -> BackupReport:
        """Copy the lake, while others work on it, into an empty directory, and verify the copy.

        The copy is a lake whose databases are SQLite files. It has all that was acknowledged before the call.

        Raises:
            UsageError: the directory is not empty, or the records of the lake are objects, which have no snapshot.
            StorageError: a store failed, or inputs were taken too fast. The directory is no lake then.
        """
        return back_up(self._opened, os.fspath(directory), progress)

    def listen(
        self,
        name: str,
        since: int | None = None,
        *,
        timeout_s: float | None = None,
        stop: threading.Event | None = None,
        insertions_only: bool = False,
    ) -> Iterator[Changes]:
        """Yield the changes of a table as they are committed, one batch a transaction.

        A replaced row is one that is retracted (`_change` -1) and one that is inserted (+1). Rows of a
        transaction are in memory together. Transactions without a change are passed over.

        Args:
            name: the table.
            since: yield what is later than this transaction; -1 for everything, None for what comes from now on.
            timeout_s: end after so long without a change; 0 ends with what is there; None waits for ever.
            stop: ends it when set, after half a second at most.
            insertions_only: leave out rows that were retracted, and the columns `_change` and `_transaction`.

        Raises:
            TableNotFoundError: there is no such table.
            UsageError: the single changes are forgotten.
        """
        log = self._opened.change_log(name)
        start = log.newest() if since is None else since
        retractions = Retractions.LEAVE_OUT if insertions_only else Retractions.TELL
        return log.listen(start, timeout_s, stop, retractions)

    def create_table(
        self, name: str, schema: pa.Schema, *, key: Sequence[str] = (), buckets: int | None = None
    ) -> Table:
        """Make a table without rows; fine where it is there just so.

        Args:
            name: up to 63 of a-z, 0-9 and _, a letter first; not `spans` or `traces`.
            schema: columns. Names that begin with _ are reserved, and file_index and
                file_row_number.
            key: columns of text or integers by which a row is told: each key has one row. Without a key, rows
                are only added.
            buckets: hash buckets of the key, from 1 to 4096; those of the lake by default.

        Raises:
            UsageError: the name is taken by another table, or something above does not hold.
        """
        spec = make_spec(name, schema, key, buckets or self._opened.config.buckets)
        create_table(self._opened.stores, spec)
        return self.table(name)

    def write(
        self,
        name: str,
        rows: pa.Table | Iterable[pa.RecordBatch],
        *,
        tombstone: str | None = None,
        write_id: str | None = None,
    ) -> str:
        """Add rows to a table of the user, or replace them by key, with one append and one commit.

        Of several rows with one key the last stands, be it a row or a deletion. Other writers may write at once.

        Args:
            name: the table.
            rows: what to write, in an order; columns that lack become null.
            tombstone: a column of booleans in `rows`, not of the table: where true, the row of the key is deleted.
            write_id: a write with this id happens once, however often and however much later it is called.

        Returns:
            the commit that shows the rows.

        Raises:
            TableNotFoundError: there is no such table.
            InputError: a row does not fit; nothing was written.
        """
        given_id = WriteId(write_id) if write_id is not None else None
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        return write_batches(self._opened.stores, name, batches, tombstone, given_id)

    def branch(self, name: str = MAIN) -> Branch:
        """Return a branch: what is staged on it, its commits, merges. Raises RefNotFoundError where there is none."""
        self._opened.repository.branch(name)
        return Branch(name, self._opened.repository)

    def branches(self) -> list[BranchInfo]:
        """Return all branches: `main` first, the others by name."""
        return describe.branches(self._opened.repository)

    def create_branch(self, name: str, at: str = MAIN, *, request_id: str | None = None) -> Branch:
        """Make a branch that begins at a commit. Again with the same `request_id`, it returns the branch made before.

        Raises UsageError for a name that is no name, or is taken; RefNotFoundError for a commit that is not there.
        """
        self._opened.repository.create_branch(name, self._opened.repository.resolve(at), request_id or "")
        return Branch(name, self._opened.repository)

    def delete_branch(self, name: str, force: bool = False) -> None:
        """Delete a branch; its commits stay as long as another branch or a tag leads to them.

        Raises UsageError for `main`, a protected branch, or, unless forced, one with staged entries;
        RefNotFoundError where there is none.
        """
        self._opened.repository.delete_branch(name, force=force)

    def merge(
        self,
        source: str,
        into: str = MAIN,
        message: str | None = None,
        *,
        prefer: str = "",
        committer: str | None = None,
        request_id: str | None = None,
    ) -> str:
        """Bring onto a branch what a commit has since both parted; see `Branch.merge`."""
        return self.branch(into).merge(
            source, message, prefer=prefer, committer=committer, request_id=request_id
        )

    def log(self, ref: str = MAIN, limit: int | None = None) -> list[CommitInfo]:
        """Return commits, newest first."""
        head = self._opened.commit_of(ref)
        return [] if head is None else describe.log(self._opened.repository, head, limit)

    def diff(self, before: str | None, after: str = MAIN, limit: int | None = None) -> list[EntryChange]:
        """Return the entries that differ between two commits, in order of path; at most `limit` of them.

        Without `before`, from the first parent of `after`. Takes time in proportion to what differs. Raises
        RefNotFoundError.
        """
        repository = self._opened.repository
        to = repository.resolve(after)
        parents = repository.commit(to).parents or ("",)
        start = parents[0] if before is None else repository.resolve(before)
        return describe.diff(repository, start, to, limit)

    def tag(self, name: str, ref: str = MAIN) -> str:
        """Give a commit a name that never moves; return its id.

        Raises UsageError for a name that is taken or no name, RefNotFoundError for a commit that is not there.
        """
        commit_id = self._opened.repository.resolve(ref)
        self._opened.repository.tag(name, commit_id)
        return commit_id

    def tags(self) -> dict[str, str]:
        """Return the commit id of each tag, by name."""
        return self._opened.repository.tags()

    def delete_tag(self, name: str) -> None:
        """Take a tag away; its commit stays. Raises RefNotFoundError where there is none."""
        self._opened.repository.delete_tag(name)


def init(
    place: str | os.PathLike[str],
    *,
    metadata: str | None = None,
    buckets: int = BUCKETS_DEFAULT,
    text: str | None = None,
    vectors: str | None = None,
    dimensions: int | None = None,
    metric: str | None = None,
) -> Lake:
    """Make a lake where nothing is yet. Repeat it after a crash; of two at once, one makes the lake.

    Args:
        place: a directory, empty or absent, or `file:///directory`, `s3://bucket/prefix`,
            `gs://bucket/prefix`, `az://account/container/prefix`, `memory://name` (gone with the process).
        metadata: URL of the key-value store for the records of the lake, as `open_key_value` takes it, or
            `objects` for objects in the lake itself. By default the setting `metadata`, else a SQLite file
            in a directory, `objects` elsewhere. A password in the URL is used and not kept.
        buckets: hash buckets of its tables, from 1 to 4096; fixed for the life of the lake.
        text: how texts become words in its index: `english`, `whitespace` or `cjk`. By default the setting `text`, else
            `english`. `lake.maintenance.rebuild_index(text=...)` changes it.
        vectors: what the vectors for searches by meaning are of: a function, `module:function`, that is declared with
            `tracelake.embedder`, or an attribute that holds them, `attributes.KEY`; `none` for no vectors. By default
            the settings `vectors`, `vector_dimensions` and `vector_metric`, else none.
            `lake.maintenance.rebuild_index(vectors=...)` changes it.
        dimensions: numbers of each vector of an attribute.
        metric: how vectors of an attribute are compared: `cosine`, the default, or `dot`.

    Raises:
        LakeExistsError: there is a lake already.
        UsageError: the place is not empty, a URL is none that can be used, `buckets` is out of range, or there is no
            such `text`, function, or attribute.
        StorageError: a store cannot be reached, or refuses.
    """
    if not 1 <= buckets <= BUCKETS_MAX:
        raise UsageError(f"buckets must be from 1 to {BUCKETS_MAX}, not {buckets}.")
    metadata, analyzer = find_metadata(metadata), analyzer_named(find_text(text))
    asked = find_vectors(vectors, dimensions, metric)
    index = IndexSettings(text=analyzer.name, vectors=None if asked is None else requested_vectors(*asked))
    create_lake(os.fspath(place), metadata, buckets, index)
    return Lake(open_location(os.fspath(place), metadata))


def open(place: str | os.PathLike[str] | None = None, *, metadata: str | None = None) -> Lake:
    """Open a lake: `place`, else TRACELAKE_LAKE, else `tracelake.toml`, else ./.tracelake.

    Its metadata is where `lake.json` says, unless `metadata` or the setting of that name says where it is now.

    Raises:
        LakeNotFoundError: there is none.
        UsageError: `metadata` is not that of this lake.
        DamageError: its metadata is gone.
        StorageError: a store cannot be reached, or refuses.
    """
    return Lake(find_location(os.fspath(place) if place is not None else None, metadata))


def find_location(place: str | None, metadata: str | None) -> Location:
    """Find a lake as `open` does, for parts of the program that need less than a `Lake`."""
    return open_location(find_lake(place), find_metadata(metadata))
