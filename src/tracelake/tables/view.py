"""The lake as of one commit: its tables and the full-text index of the commit.

`CommitView` also searches the index, together with rows of table `spans` that are not committed yet, and builds the
excerpts of hits. `base_of` chooses the index on which a transaction's index build is based.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, get_args
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tracelake._errors import LimitError, NotFoundError, QueryError, TableNotFoundError, UsageError
from tracelake.erasure.store import NOTHING_MASKED, MaskedTraces
from tracelake.limits import LEASE_S, SEARCH_HITS_MAX, TRACE_ROWS_MAX_BYTES
from tracelake.otlp.schema import SPANS
from tracelake.results import IndexInfo, Row, TableInfo, Trace
from tracelake.search.analyzers import Analyzer, of_fingerprint
from tracelake.search.build import WithUnpublished, no_index
from tracelake.search.documents import RawHit, texts_to_show
from tracelake.search.facets import RawFacet
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.search.inheritance import Assessments
from tracelake.search.model import BUILD_ANEW, Manifest, RowIds, manifest_path
from tracelake.search.open_index import OpenIndex
from tracelake.search.part_cache import ceiling as parts_ceiling
from tracelake.search.results import Facet, FacetValue, Hit, SearchResults, highlight
from tracelake.search.searcher import Searcher, SearchRequest, Sort, check_request, hint, make_request
from tracelake.search.vectors import VectorSettings
from tracelake.shards.leases import Leases
from tracelake.shards.rows import ROW_ID, literal
from tracelake.shards.shard import EMPTY, Snapshot, open_shard
from tracelake.storage import ObjectStore, Stores
from tracelake.tables.builtin import (
    ASSESSMENTS,
    BUILT_IN,
    CARRIER_COLUMNS,
    IN_ORDER,
    TABLE_SPANS,
    TABLE_TRACES,
    TABLES_FOLDER,
    TRACE_VALUES,
    TRACES,
    TRACKED,
    base_tables,
    entry_of,
    in_workspace,
    inherit,
    stored_rows,
    stored_values,
    tracked_views,
    values_of_traces,
    with_trace_values_sql,
    without_traces,
    workspace_table_sql,
)
from tracelake.tables.page_tokens import PageToken, name_of_search, read_token
from tracelake.tables.predicates import (
    Layout,
    condition,
    names_in,
    of_tables,
    produces_large_values,
    reading,
    words,
)
from tracelake.tables.query_memory import BOUNDED_BATCH_ROWS, check_cancelled, streamed, within_limit
from tracelake.tables.scan import (
    Scan,
    TableRows,
    checked,
    connection,
    limited_process,
    locked_settings,
    rows_of,
    select,
)
from tracelake.tables.spec import read_spec
from tracelake.tables.table import (
    LOOKED_UP_TRACES_MAX,
    ColumnsInMemory,
    Origin,
    Table,
    columns_in_memory,
    no_trace,
    read_rows,
    read_small_trace,
    read_trace,
    span_counts,
    to_rows,
    too_large,
)
from tracelake.tables.uncommitted import (
    FIRST_UNCOMMITTED,
    TEXT_COLUMNS,
    UncommittedRows,
    events_of,
    rows_where,
    texts_of,
    with_newer_sql,
)
from tracelake.versions.model import IndexAt, Reference, TableAt
from tracelake.versions.repository import Repository
from tracelake.versions.tree import below

INDEX: Final = "spans"
INDEX_ENTRY: Final = "indexes/spans"
TABLE_ENTRY: Final = TABLE_SPANS.entry
"""The commit entry of the indexed table."""


def build_name(transaction: int) -> str:
    """Return the name of a transaction's index build."""
    return f"{INDEX}-{transaction:010d}"


def index_at(repository: Repository, commit_id: str | None) -> str | None:
    """Return the path of the manifest that a commit names, or None."""
    reference = repository.find(commit_id, [INDEX_ENTRY]).get(INDEX_ENTRY) if commit_id else None
    return reference.manifest if isinstance(reference, IndexAt) else None


def standing_manifest(repository: Repository, objects: ObjectStore) -> Manifest | None:
    """Return the manifest of the index that the head of `main` names, or None if it names none."""
    standing = index_at(repository, repository.head())
    return None if standing is None else read_manifest(objects, standing)


def analyzer_of(manifest: Manifest) -> Analyzer:
    """Return the analyzer of an index. Raises UsageError if another version of Tracelake built it."""
    analyzer = of_fingerprint(manifest.fingerprint)
    if analyzer is None:
        raise UsageError(
            f"index {manifest.index} was built with the settings {manifest.fingerprint}, which this version does not "
            f"have; {BUILD_ANEW}, or use the version that built it"
        )
    return analyzer


def describe_index(objects: ObjectStore, entries: Mapping[str, Reference]) -> IndexInfo | None:
    """Describe the index of a commit, including the maximum number of its parts; None if it has no index."""
    reference = entries.get(INDEX_ENTRY)
    if not isinstance(reference, IndexAt):
        return None
    manifest = read_manifest(objects, reference.manifest)
    return IndexInfo(
        reference.manifest,
        manifest.upper,
        manifest.documents,
        manifest.part_count,
        parts_ceiling(with_vectors=manifest.vectors is not None),
        analyzer.public_name if (analyzer := of_fingerprint(manifest.fingerprint)) else None,
        None if manifest.vectors is None else str(manifest.vectors),
        _without_vector(objects, manifest),
    )


def _without_vector(objects: ObjectStore, manifest: Manifest) -> int:
    """Count the documents without a vector of the manifest's kind."""
    if manifest.vectors is None:
        return 0
    wanted = manifest.vectors.fingerprint
    return sum(
        part.vectors.failed
        if part.vectors is not None and part.vectors.fingerprint == wanted
        else part.documents
        for part in read_parts(objects, manifest)
    )


def base_of(repository: Repository, objects: ObjectStore, transaction: int) -> Manifest | None:
    """Return the index of all transactions before this one, on which the transaction's index is built; None before the
    first. The earlier transactions must be committed.

    A rebuilt index may be committed between the time when transaction T reads its base and T's own commit. T's commit
    then restores the old index. The next transaction therefore compares the index in the parent of T's commit with the
    one T was built on. If they differ, it builds on the parent's index plus the parts of T.

    If the parent's index has another analyzer, the parts of T do not fit. The returned index then ends before T, and
    the caller must index T again.
    """
    head = repository.head()
    if transaction == 0 or head is None:
        return None
    standing = index_at(repository, head)
    manifest = None if standing is None else read_manifest(objects, standing)
    own = manifest_path(INDEX, build_name(transaction - 1))
    if manifest is None or manifest.upper != transaction:  # a user reverted it
        return read_manifest(objects, own)
    if standing != own:
        return manifest
    parents = repository.commit(repository.commit_of(transaction - 1, head)).parents
    earlier = index_at(repository, parents[0] if parents else None)
    return manifest if earlier in (None, manifest.parent) else _reconciled(objects, manifest, earlier or "")


def _reconciled(objects: ObjectStore, manifest: Manifest, earlier: str) -> Manifest:
    """Return the index on which a transaction should have been built, with the transaction's own parts.

    The parts are not added if they have another analyzer, or if the index already contains their transactions, because
    a merge indexed them first.
    """
    there = read_manifest(objects, earlier)
    if there.upper != manifest.upper - 1:
        return manifest
    added = [part for part in read_parts(objects, manifest) if part.build == manifest.build]
    if there.fingerprint != manifest.fingerprint or any(part.lower < there.upper for part in added):
        return replace(there, build=manifest.build, parent=manifest.parent)
    return replace(manifest, lists=there.lists, newest=(*there.newest, *added), vectors=there.vectors)


def vectors_at(repository: Repository, objects: ObjectStore, commit_id: str | None) -> VectorSettings | None:
    """Return the vector settings of a commit's index, or None.

    Tasks build the vectors of the head. If the settings change before publication, the vectors of the new part do not
    count until a merge.
    """
    path = index_at(repository, commit_id)
    return read_manifest(objects, path).vectors if path is not None else None


_TRACE_ID: Final = re.compile(r"[0-9a-f]{6,32}")
_TOLD_COLUMNS: Final = (
    "service",
    "name",
    "start_ns",
    "duration_ns",
    "status",
    "model",
    "session_id",
    "user_id",
    "workspace",
    "kind",
    "type",
)
"""The row's columns that a hit contains."""
_NOT_BY_MEANING: Final = "uncommitted spans have no vectors; a search by words finds them"


class CommitView:
    """One commit, opened for reading. It never changes, and any number of threads may use it."""

    def __init__(
        self,
        entries: dict[str, Reference],
        stores: Stores,
        buckets: int,
        commit_id: str | None,
        index: OpenIndex,
        masked: MaskedTraces = NOTHING_MASKED,
    ) -> None:
        self.masked = masked
        self._stores, self._buckets = stores, buckets
        self._entries = entries
        url = stores.objects.url
        self.commit_id = commit_id
        self._origin = None if commit_id is None or url.startswith("memory://") else Origin(url, commit_id)
        stores.cache.mkdir(parents=True, exist_ok=True)
        self._leases = Leases()
        self._opened_s = time.monotonic()
        committed = (name.removeprefix(TABLES_FOLDER) for name in entries if name.startswith(TABLES_FOLDER))
        self._names = [*BUILT_IN, *sorted(set(committed) - set(BUILT_IN))]
        self._tables = {name: self._open(name) for name in BUILT_IN}
        self._index = index
        self._searcher: Searcher | None = None
        self._columns: ColumnsInMemory = {}
        self.span_counts: dict[str, int] = {}
        self._with_newer: WeakKeyDictionary[UncommittedRows, Searcher] = WeakKeyDictionary()

    def _open(self, name: str) -> Table:
        scan = Scan(self._stores.objects.url, self._stores.copies, self.layout(name), self._snapshot(name))
        scan = scan.hiding(self.masked.trace_ids) if name in BUILT_IN else scan
        return Table(name, scan, self._origin, self._leases)

    def layout(self, name: str) -> Layout:
        """Return the columns and buckets of a table of this view."""
        if name in BUILT_IN:
            return BUILT_IN[name].layout(self._buckets)
        return read_spec(self._stores.objects, name).layout()

    def _snapshot(self, name: str) -> Snapshot:
        reference = self._entries.get(entry_of(name))
        if not isinstance(reference, TableAt):
            return EMPTY  # the lake is empty
        shard = open_shard(reference.shard, self._stores)
        return shard.snapshot(reference.as_of, self._leases.take(shard, self._stores.key_value).state)

    def time_of(self, name: str) -> int:
        """Return the transaction as of which the commit names a table, -1 if the table has no rows."""
        reference = self._entries.get(entry_of(self.table(name).name))
        return reference.as_of if isinstance(reference, TableAt) else -1

    @property
    def is_old(self) -> bool:
        """Return whether the view's lease is old. The caller should then open another view, so that garbage collection
        can proceed."""
        return time.monotonic() > self._opened_s + LEASE_S / 4

    def close(self) -> None:
        """Release the leases on the parts, so that garbage collection may delete them."""
        self._leases.close()

    def table(self, name: str) -> Table:
        """Return a table. Raises TableNotFoundError if the commit has no such table."""
        if name not in self._names:
            raise TableNotFoundError(f"no table {name!r}; the tables are {', '.join(self._names)}.")
        if name not in self._tables:
            self._tables[name] = self._open(name)
        return self._tables[name]

    def tables(self) -> list[TableInfo]:
        """Return all tables."""
        return [self.table(name).info() for name in self._names]

    def sql(
        self,
        query: str,
        allow_files: bool = False,
        newer: Mapping[str, pa.Table] | None = None,
        workspace: str | None = None,
        is_bounded: bool = False,
    ) -> pa.Table:
        """Run a DuckDB query, one SELECT, over the tables. Raises QueryError if DuckDB refuses it.

        It reads only the parts of the tables that it names, unless files are allowed. The rows in `newer`, by table
        name, replace all rows of the same traces. With `is_bounded`, the caller guarantees small values, so the query
        needs no separate process.
        """
        with self._tables[TABLE_SPANS.name].scan.open_files().in_use():
            with connection() as db:
                identifiers = words((reading if workspace is None else of_tables)(checked(db, query)))
            # Tables that the query does not name are not fetched, because their parts may be remote.
            names = self._names if workspace is None else BUILT_IN
            tracked = {
                name: without_traces(
                    stored_rows(self._stores.objects, name, workspace), self.masked.trace_ids
                )
                for name in TRACKED
                if name in identifiers and name not in self._names
            }
            sources = base_tables(identifiers, workspace)
            sources |= {TABLE_SPANS.name} if ASSESSMENTS in tracked else set()
            is_inherited = not identifiers.isdisjoint(TRACE_VALUES)
            tables = [self.table(name) for name in names if name in identifiers | sources]
            if workspace is None and not sources:  # otherwise a table is read for other tables
                tables = [table.of_query(query) for table in tables]
            files = [file for table in tables for file in table._read_files()]
            try:
                views, registered = self._views(tables, newer or {}, workspace, is_inherited=is_inherited)
                views += tracked_views(tracked)
                registered |= {f"stored_{name}": rows for name, rows in tracked.items()}
                if not is_bounded and produces_large_values(query=query):
                    statements = [*([] if allow_files else locked_settings(files)), *views]
                    with limited_process(statements, query, registered) as reader:
                        return reader.read_all()
                with connection(files, allow_files) as db:
                    for name, new_rows in registered.items():
                        db.register(name, new_rows)
                    for view in views:
                        db.execute(view)
                    return within_limit(streamed(select(db, query), BOUNDED_BATCH_ROWS))
            except QueryError:  # a collected part is not the query's fault
                self._leases.renew(now=True)
                raise

    def select(
        self,
        query: str,
        newer: Mapping[str, pa.Table] | None = None,
        workspace: str | None = None,
        traces: Collection[str] = (),
    ) -> pa.Table:
        """Run a query of trusted code, as `sql` with `is_bounded`, on columns in memory if they fit there. If it reads
        only rows of some `traces`, these are looked up."""
        names, columns = names_in(query) if workspace is None else None, None
        others = {*TRACKED, *TRACE_VALUES, *self._names} - {*BUILT_IN}
        if names is not None and not names & others:
            with self._leases.reading():
                tables = [self.table(name) for name in BUILT_IN if name in names]
                columns = columns_in_memory(tables, names, self._columns, traces)
        if columns is None:
            return self.sql(query, newer=newer, workspace=workspace, is_bounded=True)
        pending = [str(each) for each in newer["traces"]["trace_id"].to_pylist()] if newer else []
        replaces = any(span_counts(self._tables["traces"], self.span_counts, pending).values())
        with connection([]) as db:
            for name, rows in columns.items():
                db.register(f"stored_{name}", rows)
                source, newer_rows = f"select * from stored_{name}", (newer or {}).get(name)
                if newer_rows is not None:
                    db.register(f"newer_{name}", newer_rows)
                    source = with_newer_sql(name, source, replaces=replaces)
                db.execute(f'create temp view "{name}" as {source}')
            return within_limit(streamed(select(db, query), BOUNDED_BATCH_ROWS))

    @staticmethod
    def _views(
        tables: Sequence[Table], newer: Mapping[str, pa.Table], workspace: str | None, *, is_inherited: bool
    ) -> tuple[list[str], dict[str, pa.Table]]:
        """Return the statements that create a view for each table, and the tables that they read from memory."""
        sources, registered = {}, {}
        for table in tables:
            rows = table.sql()
            if table.name in newer:
                registered[f"newer_{table.name}"] = newer[table.name]
                rows = with_newer_sql(table.name, rows)
            sources[table.name] = rows
        statements = {name: workspace_table_sql(name, rows, workspace) for name, rows in sources.items()}
        if is_inherited and TABLE_SPANS.name in sources:
            traces = sources[TABLE_TRACES.name] if workspace is None else None
            statements[TABLE_SPANS.name] = with_trace_values_sql(statements[TABLE_SPANS.name], traces)
        return [f'create temp view "{name}" as {sql}' for name, sql in statements.items()], registered

    def trace(self, trace_id: str) -> Trace:
        """Return a trace by its id, or by a unique prefix of at least 6 hex digits.

        Raises NotFoundError if the id is invalid, no trace has it, or several begin with the prefix; LimitError if the
        trace is too large for memory.
        """
        full = self.full_id(trace_id)
        spans = self.trace_spans(full).sort_by(IN_ORDER)
        summary = self._tables[TABLE_TRACES.name].lookup([full], TRACES.names[:-1]).to_pylist()
        if not summary or not len(spans):
            raise no_trace(trace_id)
        return Trace(full, summary[0], tuple(to_rows(spans)))

    def spans_of(self, trace_ids: Sequence[str], max_bytes: int) -> pa.Table:
        """Return the spans of traces as they were sent, without their transaction.

        Raises LimitError if they take more than `max_bytes` of memory.
        """
        return self._tables[TABLE_SPANS.name].lookup(trace_ids, SPANS.names, max_bytes)

    def trace_spans(self, trace_id: str, workspace: str | None = None) -> pa.Table:
        """Return the spans of one trace, as `spans_of`. Raises LimitError if they take too much memory."""
        return read_trace(self._tables[TABLE_SPANS.name], trace_id, workspace)

    def summary(self, trace_id: str) -> Row | None:
        """Return the row of a trace in table `traces`, without its transaction; None if the table has none."""
        rows = self._tables[TABLE_TRACES.name].lookup([trace_id], TRACES.names[:-1]).to_pylist()
        return rows[0] if rows else None

    def outline(
        self, trace_id: str, columns: Sequence[str], workspace: str | None = None, *, complete: bool = False
    ) -> pa.Table:
        """Return some columns, and `_row_id`, of a trace's spans. With `complete`, return all columns, unless they take
        much memory. Raises LimitError if the columns take too much memory."""
        if complete and (small := read_small_trace(self._tables[TABLE_SPANS.name], trace_id)) is not None:
            return in_workspace(small, workspace)
        try:
            rows = self._tables[TABLE_SPANS.name].lookup(
                [trace_id], [*columns, ROW_ID.name], TRACE_ROWS_MAX_BYTES
            )
        except LimitError as error:
            raise too_large(trace_id) from error
        return in_workspace(rows, workspace)

    def rows(self, trace_id: str, row_ids: RowIds) -> pa.Table:
        """Return spans of a trace by their row ids. Raises LimitError if they take too much memory, and
        BackPressureError if other large reads take too long."""
        return read_rows(self._tables[TABLE_SPANS.name], trace_id, row_ids)

    def full_id(self, trace_id: str, others: Collection[str] = (), workspace: str | None = None) -> str:
        """Return the full trace id that begins with a prefix of at least 6 hex digits. Ids in `others` count as
        existing traces. If nothing matches, return the prefix unchanged.

        Raises NotFoundError if the text is no trace id or prefix of one, or if several traces begin with it.
        """
        trace_id = trace_id.lower()
        if not _TRACE_ID.fullmatch(trace_id):
            raise NotFoundError(
                f"{trace_id!r} is not a trace id: 32 hex digits, or the first 6 or more of them."
            )
        if len(trace_id) == 32:
            return trace_id
        begins = f"starts_with(trace_id, '{trace_id}')"
        enough = 2 if workspace is None else LOOKED_UP_TRACES_MAX + 1
        matches = self._tables[TABLE_TRACES.name].to_arrow(["trace_id"], begins, limit=enough)
        if workspace is not None and len(matches):
            matches = self._matches_in(workspace, begins, [*map(str, matches["trace_id"].to_pylist())])
        matching = {*map(str, matches["trace_id"].to_pylist()), *others}
        if len(matching) > 1:
            raise NotFoundError(f"several traces begin with {trace_id!r}; give more digits.")
        return matching.pop() if matching else trace_id

    def _matches_in(self, workspace: str, begins: str, ids: list[str]) -> pa.Table:
        """Return at most two trace ids that begin with the prefix and have spans in the workspace. The row of a shared
        trace in `traces` may name another workspace, so `spans` is read."""
        if len(ids) <= LOOKED_UP_TRACES_MAX:
            begins = f"trace_id in ({', '.join(map(literal, ids))})"
        here = f"{begins} and workspace = {literal(workspace)}"
        return self._tables[TABLE_SPANS.name]._distinct("trace_id", here, limit=2)

    def search(self, request: SearchRequest, newer: UncommittedRows | None = None) -> SearchResults:
        """Return a page of hits in the index, in the requested order. `request.where` is a DuckDB condition on table
        `spans`.

        The service is part of the index query, so that only spans of this service are read. Without a condition, all
        hits and the requested facets are counted. Rows in `newer` are found as if they were committed. Data of other
        workspaces is not found, counted or read, but scores use the word frequencies of all workspaces.
        """
        where, limit, sort, service = request.where, request.limit, request.sort, request.service
        if not 1 <= limit <= SEARCH_HITS_MAX:
            raise QueryError(f"limit must be from 1 to {SEARCH_HITS_MAX}, not {limit}.")
        if sort not in get_args(Sort):
            raise QueryError(f"sort must be one of {', '.join(get_args(Sort))}, not {sort!r}.")
        if where and request.facets:
            raise QueryError(
                "facets count the hits of the index, which cannot apply a condition; write it in the query, "
                "such as service:checkout, or leave facets out."
            )
        name = name_of_search(*request.token_key)
        token = read_token(request.page, name) if request.page is not None else None
        offset, now_ns = (token.offset, token.now_ns) if token is not None else (0, request.now_ns)
        searcher, uncommitted_name = self._searcher_with(newer), "" if newer is None else newer.name
        if searcher is None:
            check_request(request, now_ns)
            return SearchResults(commit=self.commit_id)
        hits, size = list[tuple[int, Hit]](), limit
        prepared = make_request(searcher, request, now_ns)
        while len(hits) < limit and (raw_hits := prepared.hits(size, offset)):
            hits += [
                (offset + place, hit)
                for place, hit in self._rows_of(raw_hits, request, searcher.analyzer, newer)
                if service in (None, hit.service)  # the index already applied this filter
            ]
            if len(raw_hits) < size:
                break
            offset, size = offset + size, min(size * 4, SEARCH_HITS_MAX)
        counted = prepared.count(request.facets) if not where else None
        total = None if counted is None else counted.total
        following = hits[limit - 1][0] + 1 if len(hits) >= limit else None
        if (
            following is not None
            and service is request.workspace is None
            and following >= (total or following + 1)
        ):
            following = None
        return SearchResults(
            (hit for _, hit in hits[:limit]),
            total,
            {} if counted is None else {facet: _facet(raw) for facet, raw in counted.facets.items()},
            self.commit_id,
            None
            if following is None
            else str(PageToken(self.commit_id, following, now_ns, name, uncommitted_name)),
            searcher.analyzer.public_name,
            prepared.parts,
            searcher.vectors,
            _NOT_BY_MEANING if uncommitted_name and request.ranking.mode == "semantic" else None,
            None if hits or request.page else hint(request, searcher.analyzer),
        )

    def traces_matching(
        self, query: str, limit: int, now_ns: int, newer: UncommittedRows | None, workspace: str | None
    ) -> list[str]:
        """Return the trace id of each matching span, the newest first, up to `limit` spans. Raises QueryError if the
        query does not parse."""
        searcher = self._searcher_with(newer)
        if searcher is None:
            check_request(SearchRequest(query, sort="newest"), now_ns)
            return []
        return [
            hit.trace_id
            for hit in searcher.search(query, limit, sort="newest", now_ns=now_ns, workspace=workspace)
        ]

    def completions(self, typed: str, workspace: str | None = None) -> list[str]:
        """Return completions of a partly typed query."""
        searcher = self.open_searcher()
        completed = [] if searcher is None else searcher.completions(typed, workspace)
        # The terms of the index include those of masked traces, so only names of fields are completed.
        return (
            [each for each in completed if each.endswith((":", ">"))] if self.masked.trace_ids else completed
        )

    def open_index(self) -> None:
        """Open the parts of the index, if there is one, so that the first search does not wait for them."""
        if (searcher := self.open_searcher()) is not None:
            searcher.open()

    def open_searcher(self) -> Searcher | None:
        """Return the searcher of the index, or None."""
        if self._searcher is None and isinstance(self._entries.get(INDEX_ENTRY), IndexAt):
            self._searcher = self._new_searcher(None)
        return self._searcher

    def _searcher_with(self, newer: UncommittedRows | None) -> Searcher | None:
        """Return a searcher of the index and of uncommitted rows."""
        if newer is None or not newer.parts:
            return self.open_searcher()
        if newer not in self._with_newer:
            self._with_newer[newer] = self._new_searcher(newer)
        return self._with_newer[newer]

    def _new_searcher(self, newer: UncommittedRows | None) -> Searcher:
        reference, table = self._entries.get(INDEX_ENTRY), self._tables[TABLE_SPANS.name]
        parts = () if newer is None else newer.parts
        manifest, rows = (no_index(parts[0].analyzer.fingerprint) if parts else None), None
        if isinstance(reference, IndexAt):
            manifest = read_manifest(self._stores.objects, reference.manifest)
            rows = TableRows(table.scan, table.scan.open_files())
        assert manifest is not None, "who asks for a searcher has an index, or rows beside it"
        every = rows if newer is None else WithUnpublished(rows, parts, newer.hidden)
        # Bind the table and not this view: a searcher that held the view would keep its lease too long.
        of_span = partial(texts_of, table, newer)
        objects = self._stores.objects
        return Searcher(
            objects,
            manifest,
            self._index,
            every,
            of_span,
            at_once=False,
            unpublished=parts,
            rows_where=partial(rows_where, table, newer),
            assessments=Assessments(partial(stored_values, objects), partial(events_of, table, newer)),
        )

    def analyzer(self, default: Analyzer) -> Analyzer:
        """Return the analyzer of the index, or the default if there is no index."""
        return default if (searcher := self.open_searcher()) is None else searcher.analyzer

    def indexed_claims(self, claims: pa.Table) -> pa.Table:
        """Return the indexed rows, with `_row_id`, of the spans that occur in `claims`."""
        searcher, table = self.open_searcher(), self._tables[TABLE_SPANS.name]
        traces = [str(trace_id) for trace_id in claims["trace_id"].unique().to_pylist()]
        here = [] if searcher is None else sorted(searcher.traces_among(traces))
        return table.about(claims, here)

    def _rows_of(
        self,
        raw_hits: list[RawHit],
        request: SearchRequest,
        analyzer: Analyzer,
        newer: UncommittedRows | None,
    ) -> list[tuple[int, Hit]]:
        """Join hits with their rows, in order, each with its position. A hit without a row is dropped."""
        table, where = self._tables[TABLE_SPANS.name], request.where
        names = [*_TOLD_COLUMNS, *TEXT_COLUMNS] if not where else table.schema.names
        columns, ids = [ROW_ID.name, *names], [hit.row for hit in raw_hits]
        committed = {hit.trace_id for hit in raw_hits if hit.transaction < FIRST_UNCOMMITTED}
        check_cancelled()  # tantivy cannot be interrupted
        # A trace may have very many spans besides the hits.
        rows = table.lookup(sorted(committed), columns, row_ids=np.array(ids, np.int64))
        if newer is not None:
            rows = pa.concat_tables([rows, newer.rows_of(ids, columns)], promote_options="permissive")
        rows = in_workspace(rows, request.workspace)
        if where:
            query = f"select * from found_rows where {condition(where)}"
            with rows_of(query, where, tables={"found_rows": rows}) as reader:
                rows = reader.read_all()
        by_id = {row[ROW_ID.name]: row for row in to_rows(rows)}
        of_hits = [(hit.trace_id, by_id[hit.row]) for hit in raw_hits if hit.row in by_id]
        self._inherit(of_hits, newer, request.workspace)
        hits = []
        for place, hit in enumerate(raw_hits):
            check_cancelled()  # an excerpt may take long
            if (row := by_id.get(hit.row)) is not None:
                excerpt = highlight(texts_to_show(row), request.query, analyzer)
                of_row = {column: row[column] for column in _TOLD_COLUMNS}
                hits.append((place, Hit(hit.trace_id, hit.span_id, hit.score, highlight=excerpt, **of_row)))
        return hits

    def _inherit(
        self, rows: Sequence[tuple[str, Row]], newer: UncommittedRows | None, workspace: str | None
    ) -> None:
        """Give rows without a session or user that of their trace."""
        names = [*TRACE_VALUES.values()]
        traces = sorted({trace_id for trace_id, row in rows if any(row[name] is None for name in names)})
        if newer is None and workspace is None:
            of_traces = self._tables[TABLE_TRACES.name].lookup(traces, ["trace_id", *names]).to_pylist()
            return inherit(rows, {row["trace_id"]: row for row in of_traces})
        spans = [self._tables[TABLE_SPANS.name].lookup(traces, [*CARRIER_COLUMNS, ROW_ID.name])]
        if newer is not None:
            is_hidden = pc.is_in(spans[0][ROW_ID.name], pa.array(newer.hidden))
            spans = [spans[0].filter(pc.invert(is_hidden)), newer.of_traces(traces, CARRIER_COLUMNS)]
        return inherit(rows, values_of_traces(spans, workspace))


def _facet(raw: RawFacet) -> Facet:
    return Facet(tuple(FacetValue(*value) for value in raw.values), raw.others, raw.exact)


def named_by(repository: Repository, commit_id: str | None) -> dict[str, Reference]:
    """Return the entries of a commit that are tables or indexes, by path. Datasets are skipped, because they may have a
    million entries."""
    folders = ("indexes", "tables") if commit_id else ()
    return {
        path: reference
        for folder in folders
        for path, reference in repository.scan(commit_id or "", *below(folder))
    }
