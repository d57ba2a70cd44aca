"""The public `Lake` class, and functions that create and open a lake. Its methods delegate to components."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partialmethod
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from tracelake import results
from tracelake._errors import UsageError
from tracelake._settings import find_lake, find_metadata, find_text, find_vectors
from tracelake.context import LakeContext
from tracelake.lake.history import explain
from tracelake.limits import BUCKETS_DEFAULT, BUCKETS_MAX, SEARCH_HITS_DEFAULT
from tracelake.location import LakeConfig, Location, create_lake, open_location, shown
from tracelake.search.vectors import IndexSettings, requested_vectors
from tracelake.storage import ObjectStore
from tracelake.tasks.runners import OnProgress, TaskRunner, silent
from tracelake.tracking.location import find_tracking
from tracelake.versions import branch as describe
from tracelake.versions.branch import Branch
from tracelake.versions.branch_store import MAIN

if TYPE_CHECKING:
    import pyarrow as pa

    from tracelake.access.audit import Audit
    from tracelake.access.keys import Keys
    from tracelake.access.oidc import Sessions
    from tracelake.archive.service import LakeArchive
    from tracelake.hot.tier import HotTier
    from tracelake.lake.annotations import LakeAnnotations
    from tracelake.lake.datasets import Datasets
    from tracelake.lake.erasure import Erasures
    from tracelake.lake.explicit_transactions import Transactions
    from tracelake.lake.maintenance import Maintenance
    from tracelake.lake.prices import LakePrices
    from tracelake.lake.reads import LakeReads, MatchingTraces, WorkspaceLake
    from tracelake.lake.retention import Retention
    from tracelake.lake.sources import LakeOutputs, LakeSources, Quarantine
    from tracelake.lake.transaction_history import LakeJournal
    from tracelake.pipeline.continuous import InboxPipeline
    from tracelake.search.results import SearchResults
    from tracelake.search.searcher import Sort
    from tracelake.search.semantic_search import Mode
    from tracelake.tables.changes import Changes
    from tracelake.tables.table import Table

# ruff: noqa: PLC0415  a component is imported on first use: `log` needs neither DuckDB, Arrow nor SQLAlchemy

ResultT = TypeVar("ResultT")


class _Component(cached_property[ResultT]):
    """A part of a lake, made on first use; one for all threads, unlike a cached property of Python 3.12."""

    @overload
    def __get__(self, lake: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, lake: object, owner: type[Any] | None = None) -> ResultT: ...

    def __get__(self, lake: Any, owner: type[Any] | None = None) -> Any:
        """Return the component of a lake."""
        if lake is None:
            return self
        with lake._making:
            return super().__get__(lake, owner)


class Lake:
    """An open lake. Threads may share it. Call `close`, or use it in a `with` block."""

    def __init__(self, location: Location) -> None:
        self._opened = LakeContext(location)
        self._making = threading.RLock()

    def __repr__(self) -> str:
        """Return the place of the lake, without a password."""
        return f"Lake({self.place!r})"

    _INTERNAL = ("config", "hot", "inbox", "objects", "place", "reads", "select", "statistics")
    __dir__ = partialmethod(results.public_names, *_INTERNAL)

    def __enter__(self) -> Lake:
        """Return the lake."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the lake."""
        self.close()

    def close(self) -> None:
        """Stop Spark, if it was started, and release connections."""
        self._opened.close()

    @property
    def url(self) -> str:
        """The lake's URL."""
        return self._opened.objects.url

    @property
    def place(self) -> str:
        """The lake's location for display: a path for a directory, otherwise the URL."""
        return shown(self.url)

    @property
    def config(self) -> LakeConfig:
        """Settings fixed at the lake's creation."""
        return self._opened.config

    @property
    def objects(self) -> ObjectStore:
        """The lake's objects, for reading. Callers must not write or delete any."""
        return self._opened.objects

    @_Component
    def datasets(self) -> Datasets:
        """Evaluation datasets."""
        from tracelake.lake.datasets import Datasets

        return Datasets(self._opened, lambda: self.hot)

    @_Component
    def maintenance(self) -> Maintenance:
        """Compaction, garbage collection, index rebuild."""
        from tracelake.lake.maintenance import Maintenance

        return Maintenance(self._opened)

    @_Component
    def erasures(self) -> Erasures:
        """Erasures of traces: reports, and their continuation."""
        from tracelake.lake.erasure import Erasures

        return Erasures(self._opened, self.hot)

    @_Component
    def quarantine(self) -> Quarantine:
        """Quarantined inputs."""
        from tracelake.lake.sources import Quarantine

        return Quarantine(self._opened)

    @_Component
    def transactions(self) -> Transactions:
        """Explicit transactions of clients."""
        from tracelake.lake.explicit_transactions import Transactions

        return Transactions(self._opened)

    @_Component
    def journal(self) -> LakeJournal:
        """Transactions: inputs, results, replays."""
        from tracelake.lake.transaction_history import LakeJournal

        return LakeJournal(self._opened)

    @_Component
    def hot(self) -> HotTier:
        """Recent traces in the tracking store."""
        from tracelake.hot.tier import HotTier

        return HotTier(self._opened)

    @_Component
    def sources(self) -> LakeSources:
        """Registered sources of input."""
        from tracelake.lake.sources import LakeSources

        return LakeSources(self._opened)

    @_Component
    def outputs(self) -> LakeOutputs:
        """Registered outputs of committed rows."""
        from tracelake.lake.sources import LakeOutputs

        return LakeOutputs(self._opened)

    @_Component
    def keys(self) -> Keys:
        """API keys."""
        from tracelake.access.keys import Keys

        return Keys(lambda: self._opened.key_value)

    @_Component
    def prices(self) -> LakePrices:
        """The lake's own prices of models."""
        from tracelake.lake.prices import LakePrices

        return LakePrices(self._opened)

    @_Component
    def sessions(self) -> Sessions:
        """Sessions of users who signed in."""
        from tracelake.access.oidc import Sessions

        return Sessions(lambda: self._opened.key_value)

    @_Component
    def audit(self) -> Audit:
        """The audit log."""
        from tracelake.access.audit import Audit

        return Audit(lambda: self._opened.key_value)

    @_Component
    def reads(self) -> LakeReads:
        """Reads for pages and lists."""
        from tracelake.lake.reads import LakeReads

        return LakeReads(self._opened, self.hot)

    @_Component
    def archive(self) -> LakeArchive:
        """The archive, which moves traces from a server's hot tier to the tables. Raises UsageError if the lake has no
        hot tier."""
        from tracelake.archive.service import open_archive

        return open_archive(self._opened)

    @_Component
    def annotations(self) -> LakeAnnotations:
        """Tags, experiments and assessments. Raises UsageError for a lake without a tracking store."""
        from tracelake.lake.annotations import annotations_of

        return annotations_of(self._opened, find_tracking(self._opened.objects))

    @_Component
    def retention(self) -> Retention:
        """Retention rules: how long the tables keep which traces."""
        from tracelake.lake.retention import Retention

        return Retention(self._opened, self.hot)

    def erase(
        self,
        *,
        trace: str | None = None,
        session: str | None = None,
        user: str | None = None,
        where: str | None = None,
    ) -> results.ErasureReport:
        """Erase whole traces from every commit, and return the report. See `Erasures.erase`."""
        return self.erasures.erase(trace=trace, session=session, user=user, where=where)

    def ingest(
        self,
        *patterns: str | os.PathLike[str],
        transaction_bytes: int | None = None,
        transaction: str | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        runner: TaskRunner | None = None,
        progress: OnProgress | None = None,
    ) -> results.IngestReport:
        """Ingest OTLP files into the tables, each span once.

        An unfinished earlier run is completed first. The report's `bad` lists files, and parts of files, that cannot be
        read. All other input is ingested.

        Args:
            patterns: files, objects such as `s3://bucket/key`, or glob patterns of either.
            transaction_bytes: maximum stored input bytes of one transaction; 64 MiB by default.
            transaction: the id of an open explicit transaction; the files become part of it alone. The default is the
                transaction that this object has begun and not ended, if any.
            master, conf: Spark master, `local[*]` by default, and Spark settings. A lake in memory accepts neither.
            runner: runs the tasks instead of Spark.
            progress: receives progress events.

        Raises:
            UsageError: a pattern matches nothing, or names the lake's own objects; the explicit transaction has ended;
                or another client's transaction is open.
            StorageError: a bucket cannot be listed.
            SourceChangedError: an unfinished transaction cannot be replayed because its input has changed.
        """
        from tracelake.lake.sources import ingest

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
        """Return a pipeline that commits the input that servers received. The caller calls its `run_once` repeatedly.

        Any number of pipelines, in any processes, may work on one lake at once.

        Args:
            replica: the pipeline's unique name; host and process id by default.
            watch: further inputs to ingest: glob patterns of files or objects, and topics
                (`kafka://broker:9092/topic`). By default the setting `watch`.
            master, conf, runner: as for `ingest`.
        """
        from tracelake.lake.sources import inbox_pipeline

        chosen = self._opened.lasting_runner(runner, master, conf)
        return inbox_pipeline(self._opened, chosen, replica, watch)

    def replicas(self) -> list[results.ReplicaInfo]:
        """Return the pipeline replicas of the lake by name, including replicas that were cut off."""
        from tracelake.lake.sources import describe_replicas

        return describe_replicas(self._opened)

    def inbox(self) -> results.InboxInfo:
        """Return the pending input in the servers' inbox."""
        from tracelake.tracking.ingest_queue import inbox_info

        return inbox_info(self._opened.objects, self.quarantine.paths())

    def table(self, name: str, at: str = "main") -> Table:
        """Return a table as of a commit. Raises TableNotFoundError if the commit has no such table, and
        RefNotFoundError if `at` names no commit."""
        return self._opened.view(at).table(name)

    def tables(self, at: str = "main") -> list[results.TableInfo]:
        """Return all tables as of a commit."""
        return self._opened.read(at, lambda view: view.tables())

    def sql(
        self, query: str, at: str = MAIN, *, allow_files: bool = False, uncommitted: bool = False
    ) -> pa.Table:
        """Run a DuckDB query over the tables `spans` and `traces`. Raises QueryError if DuckDB refuses it.

        Args:
            query: one SELECT. DuckDB reads only the parts of the lake at a commit.
            allow_files: whether it may read other files of this machine and load extensions.
            uncommitted: at `main`, include the newest uncommitted traces of the hot tier. If some are unreadable, the
                table's metadata `tracelake.not_listed` reports it.
        """
        return self.reads.sql(query, at, uncommitted, allow_files)

    def select(self, *queries: str, traces: Collection[str] = ()) -> list[pa.Table]:
        """Run SELECTs over `spans` and `traces` at one commit, with the newest uncommitted traces.

        Unlike `sql`, it runs them in this process, so the queries must come from trusted code. Name the few `traces`
        of which they read rows, if any. Raises QueryError if DuckDB refuses one.
        """
        return self.reads.select(*queries, traces=traces)

    def statistics(
        self, key: Hashable, read: Callable[[], ResultT], now: Callable[[], ResultT] | None = None
    ) -> ResultT:
        """Return the result of `read` or, in a large lake, one up to a minute old. `now` is called if it waits."""
        return self.reads.statistics(key, read, now)

    def traces_matching(self, query: str, limit: int) -> MatchingTraces:
        """Return the traces of spans that match a query, as `tracelake.lake.reads.MatchingTraces`.

        It reads the newest `limit` matching spans. Raises QueryError if the query does not parse.
        """
        return self.reads.traces_matching(query, limit)

    def search(
        self,
        query: str = "*",
        where: str | None = None,
        at: str = MAIN,
        limit: int = SEARCH_HITS_DEFAULT,
        service: str | None = None,
        *,
        mode: Mode | None = None,
        vector: Sequence[float] | None = None,
        sort: Sort = "score",
        facets: Sequence[str] = (),
        page: str | None = None,
        now: datetime | None = None,
    ) -> SearchResults:
        """Return a page of matching spans, best first, and the number of matches.

        Args:
            query: words, "phrases", AND, OR, -not, `service:name`; see docs/reference/search.md.
            where: a DuckDB condition on table `spans`, such as `service = 'airline-agent'`.
            at: the commit to search.
            limit: maximum number of hits, up to 1,000.
            service: only spans of this service; faster than the same as a condition.
            mode: `text` by words; `semantic` by meaning, if the lake has vectors; `hybrid` ranks by both.
            vector: ranks the hits by similarity to this vector. The words of the query then only filter.
            sort: `score`, or `newest` or `oldest` first.
            facets: fields by which matches are counted: service, kind, status, model, session, user, workspace, day.
            page: `next_page` of the previous page. The search continues after that page, at the same commit.
            now: the time that ranges such as `last 2h` end at, with a time zone; by default the time of the first page.

        Raises:
            QueryError: query, condition or page does not parse, there is no such facet, or `now` has no time zone.
            RefNotFoundError: there is no such commit.
            EmbeddingError: the function that makes vectors failed.
        """
        from tracelake.search.searcher import SearchRequest

        request = SearchRequest(query, where, limit, service, mode, vector, sort, facets, page, now)
        return self.reads.search(request, at)

    def completions(self, typed: str, at: str = MAIN) -> list[str]:
        """Return completions of a partly typed query: fields, attributes, and their values."""
        return self.reads.completions(typed, at)

    def within(self, workspace: str) -> WorkspaceLake:
        """Return a view of one workspace, to read and annotate. It hides all other workspaces."""
        from tracelake.lake.reads import WorkspaceLake

        return WorkspaceLake(self._opened, self.hot, workspace)

    def trace(self, trace_id: str, at: str = "main", *, tiers: bool = False) -> results.Trace:
        """Return all spans of a trace, by its id or a unique prefix of at least 6 hex digits. At `main` the spans come
        from the hot tier and the tables.

        Args:
            trace_id: the id or prefix.
            at: the commit to read.
            tiers: whether each span names its tier in `_tier`.

        Raises NotFoundError if no trace matches, or if several begin with the prefix.
        """
        if at == MAIN and (tiers or self.hot.store is not None):
            return self.hot.trace(trace_id, tiers=tiers)
        return self._opened.read(at, lambda view: view.trace(trace_id))

    def index(self, at: str = "main") -> results.IndexInfo | None:
        """Return the state of the full-text index and its maximum number of parts; None if there is no index."""
        from tracelake.tables.view import describe_index

        return describe_index(self._opened.objects, self._opened.entries_at(at))

    def verify(self, progress: OnProgress | None = None) -> results.VerifyReport:
        """Read and cross-check everything: commits, journal, parts, index, and tables against one another."""
        from tracelake.lake.backup import Verifier

        opened = self._opened
        verifier = Verifier(opened.key_value, opened.singly(), opened.config.buckets, opened.view)
        return verifier.run(progress or silent)

    def backup(
        self, directory: str | os.PathLike[str], progress: OnProgress | None = None
    ) -> results.BackupReport:
        """Copy the lake into an empty directory, and verify the copy. Readers and writers may continue.

        The copy is a lake with SQLite databases. It contains everything that was acknowledged before the call.

        Raises:
            UsageError: the directory is not empty, or the lake keeps its metadata as objects, which have no snapshot.
            StorageError: a store failed, or pipelines repeatedly deleted inputs before they were copied.
        """
        from tracelake.lake.backup import back_up

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
        """Yield the changes of a table as they are committed, one batch per transaction.

        A replaced row appears as a retraction (`_change` -1) and an insertion (+1). All rows of a transaction are in
        memory together. Transactions without a change are skipped.

        Args:
            name: the table.
            since: yield changes after this transaction; -1 for everything, None for changes from now on.
            timeout_s: stop after this long without a change; 0 yields only existing changes; None waits forever.
            stop: stops the iteration when set, within half a second.
            insertions_only: omit retracted rows, and the columns `_change` and `_transaction`.

        Raises:
            TableNotFoundError: there is no such table.
            UsageError: the requested changes are no longer kept.
        """
        from tracelake.tables.changes import Retractions

        log = self._opened.change_log(name)
        start = log.newest() if since is None else since
        retractions = Retractions.LEAVE_OUT if insertions_only else Retractions.MARK
        return log.listen(start, timeout_s, stop, retractions)

    def create_table(
        self, name: str, schema: pa.Schema, *, key: Sequence[str] = (), buckets: int | None = None
    ) -> Table:
        """Create an empty table. Do nothing if an identical table exists.

        Args:
            name: up to 63 of a-z, 0-9 and _, a letter first; not `spans` or `traces`.
            schema: the columns. Names that begin with _ are reserved, and so are file_index and file_row_number.
            key: columns of text or integers that identify a row. Without a key, rows are only added.
            buckets: hash buckets of the key, from 1 to 4096; those of the lake by default.

        Raises:
            UsageError: another table has the name, or an argument breaks a rule above.
        """
        from tracelake.tables.spec import make_spec
        from tracelake.user_tables.write import create_table

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
        """Add rows to a user's table, or replace rows with the same key. The write is one commit.

        Among rows with the same key the last one wins, even if it is a deletion. Other writers may write concurrently.

        Args:
            name: the table.
            rows: rows in order; missing columns become null.
            tombstone: name of a boolean column of `rows` that the table does not have. Where it is true, the row with
                this key is deleted.
            write_id: makes the write idempotent: repeated calls with the same id write once.

        Returns:
            the commit that contains the rows.

        Raises:
            TableNotFoundError: there is no such table.
            InputError: a row does not fit the table; nothing was written.
        """
        import pyarrow as pa

        from tracelake.user_tables.write import WriteId, write_batches

        given_id = WriteId(write_id) if write_id is not None else None
        batches = rows.to_batches() if isinstance(rows, pa.Table) else rows
        return write_batches(self._opened.stores, name, batches, tombstone, given_id)

    def branch(self, name: str = MAIN) -> Branch:
        """Return a branch: its staged entries, commits and merges. Raises RefNotFoundError if it does not exist."""
        self._opened.repository.branch(name)
        return Branch(name, self._opened.repository)

    def branches(self) -> list[results.BranchInfo]:
        """Return all branches: `main` first, the others by name."""
        return describe.branches(self._opened.repository)

    def create_branch(self, name: str, at: str = MAIN, *, request_id: str | None = None) -> Branch:
        """Create a branch at a commit. A repeated call with the same `request_id` returns the same branch.

        Raises UsageError if the name is invalid or taken, and RefNotFoundError if the commit does not exist.
        """
        self._opened.repository.create_branch(name, self._opened.repository.resolve(at), request_id or "")
        return Branch(name, self._opened.repository)

    def delete_branch(self, name: str, force: bool = False) -> None:
        """Delete a branch. Its commits are kept as long as another branch or a tag reaches them.

        Raises UsageError for `main`, a protected branch, or, unless forced, a branch with staged entries. Raises
        RefNotFoundError if the branch does not exist.
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
        """Merge the changes of `source` since the common ancestor into the branch `into`. See `Branch.merge`."""
        return self.branch(into).merge(
            source, message, prefer=prefer, committer=committer, request_id=request_id
        )

    def log(
        self, ref: str = MAIN, limit: int | None = None, *, reasons: bool = False
    ) -> list[results.CommitInfo]:
        """Return commits, newest first, without expired ones. The parents of a commit are the nearest kept ones.

        With `reasons`, also why each stays, and until when: this reads all newer commits, and the examples of datasets.
        """
        head = self._opened.commit_of(ref)
        commits = [] if head is None else describe.log(self._opened.repository, head, limit)
        return explain(self._opened, commits) if reasons else commits

    def diff(
        self, before: str | None, after: str = MAIN, limit: int | None = None
    ) -> list[results.EntryChange]:
        """Return the entries that differ between two commits, by path, at most `limit`.

        `before` defaults to the first parent of `after`. Raises RefNotFoundError if a reference names no commit.
        """
        repository = self._opened.repository
        to = repository.resolve(after)
        parents = repository.commit(to).parents or ("",)
        start = parents[0] if before is None else repository.resolve(before)
        return describe.diff(repository, start, to, limit)

    def tag(self, name: str, ref: str = MAIN) -> str:
        """Tag a commit with a name that never moves, and return the commit's id.

        Raises UsageError if the name is invalid or taken, and RefNotFoundError if the commit does not exist.
        """
        commit_id = self._opened.repository.resolve(ref)
        self._opened.repository.tag(name, commit_id)
        return commit_id

    def tags(self) -> dict[str, str]:
        """Return the commit id of each tag, by name."""
        return self._opened.repository.tags()

    def delete_tag(self, name: str) -> None:
        """Delete a tag; its commit stays. Raises RefNotFoundError if it does not exist."""
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
    """Create a lake in an empty place. It is safe to repeat after a crash; if two processes run it at once, one
    succeeds.

    Args:
        place: a directory, empty or absent, or `file:///directory`, `s3://bucket/prefix`, `gs://bucket/prefix`,
            `az://account/container/prefix`, `memory://name` (lost when the process ends).
        metadata: URL of the key-value store for the lake's records, as `open_key_value` takes it, or `objects` for
            objects in the lake itself. By default the setting `metadata`; without it a SQLite file for a directory,
            `objects` for other places. A password in the URL is used but not stored.
        buckets: hash buckets of its tables, from 1 to 4096; fixed for the life of the lake.
        text: the tokenizer of the full-text index: `english`, `whitespace` or `cjk`. By default the setting `text`,
            otherwise `english`. `lake.maintenance.rebuild_index(text=...)` changes it.
        vectors: the source of vectors for semantic search: a function, `module:function`, declared with
            `tracelake.embedder`, or an attribute with vectors, `attributes.KEY`; `none` for no vectors. By default
            the settings `vectors`, `vector_dimensions` and `vector_metric`, otherwise none.
            `lake.maintenance.rebuild_index(vectors=...)` changes it.
        dimensions: length of each vector in an attribute.
        metric: similarity of vectors in an attribute: `cosine`, the default, or `dot`.

    Raises:
        LakeExistsError: there is a lake already.
        UsageError: the place is not empty, a URL is unusable, `buckets` is out of range, or there is no such `text`,
            function, or attribute.
        StorageError: a store is unreachable or refuses.
    """
    if not 1 <= buckets <= BUCKETS_MAX:
        raise UsageError(f"buckets must be from 1 to {BUCKETS_MAX}, not {buckets}.")
    from tracelake.search.analyzers import get_analyzer

    metadata, analyzer = find_metadata(metadata), get_analyzer(find_text(text))
    requested = find_vectors(vectors, dimensions, metric)
    index = IndexSettings(
        text=analyzer.name, vectors=None if requested is None else requested_vectors(*requested)
    )
    create_lake(os.fspath(place), metadata, buckets, index)
    return Lake(open_location(os.fspath(place), metadata))


def open(place: str | os.PathLike[str] | None = None, *, metadata: str | None = None) -> Lake:
    """Open the lake at `place`; by default at TRACELAKE_LAKE, the place that `tracelake.toml` names, or `./.tracelake`,
    in this order.

    `lake.json` names the lake's metadata store. `metadata`, or the setting of that name, overrides it.

    Raises:
        LakeNotFoundError: there is no lake.
        UsageError: `metadata` belongs to another lake.
        DamageError: the lake's metadata is missing.
        StorageError: a store is unreachable or refuses access.
    """
    return Lake(find_location(os.fspath(place) if place is not None else None, metadata))


def find_location(place: str | None, metadata: str | None) -> Location:
    """Find a lake as `open` does, for code that needs less than a `Lake`."""
    return open_location(find_lake(place), find_metadata(metadata))
