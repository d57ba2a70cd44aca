"""The lake as of one commit: its tables and its index belong together.

Which manifest a transaction builds its index on: whatever the branch names, a replacement too.

Rows of table `spans` that no commit holds yet, for a search that finds them beside those of a commit.

The texts of spans, as rows of table `spans` have them: for excerpts of hits, and for spans that others are like.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, get_args
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tracelake._errors import LimitError, NotFoundError, QueryError, TableNotFoundError, UsageError
from tracelake.limits import LEASE_S, LOOKED_UP_TRACES_MAX, SEARCH_HITS_MAX, TRACE_ROWS_MAX_BYTES
from tracelake.otlp.schema import SPANS, TRANSACTION_FIELD
from tracelake.results import IndexInfo, Row, TableInfo, Trace
from tracelake.search.analyzers import Analyzer, hint_of, of_fingerprint
from tracelake.search.build import UnpublishedPart, WithUnpublished, no_index
from tracelake.search.documents import document_text
from tracelake.search.facets import RawFacet
from tracelake.search.finalize import read_manifest, read_parts
from tracelake.search.highlight import highlight
from tracelake.search.live_docs import RowIds
from tracelake.search.model import BUILD_ANEW, Manifest, manifest_path
from tracelake.search.open_index import OpenIndex
from tracelake.search.part_cache import ceiling as parts_ceiling
from tracelake.search.query_compiler import texts_wanted
from tracelake.search.results import Facet, FacetValue, Hit, RawHit, SearchResults
from tracelake.search.searcher import BY_WORDS, Ranking, Searcher, Sort, check_request, make_request
from tracelake.search.vectors import VectorSettings
from tracelake.shards.leases import Leases
from tracelake.shards.rows import ROW_ID, first_row_id, literal
from tracelake.shards.shard import EMPTY, Shard, Snapshot
from tracelake.storage import ObjectStore, Stores
from tracelake.tables.builtin import (
    BUILT_IN,
    IN_ORDER,
    TABLE_SPANS,
    TABLE_TRACES,
    TABLES_FOLDER,
    TRACES,
    base_tables,
    entry_of,
    table_within,
    within,
    workspace_sql,
    workspace_token,
)
from tracelake.tables.cancellation import check_cancelled
from tracelake.tables.page_tokens import PageToken, name_of_search, nanoseconds, read_token
from tracelake.tables.predicates import Layout, condition, of_tables, reading, words
from tracelake.tables.scan import Scan, TableRows, checked, connection, select
from tracelake.tables.spec import read_spec
from tracelake.tables.table import Origin, Table, no_trace, read_rows, read_trace, to_rows, too_large
from tracelake.versions.model import IndexAt, Reference, TableAt
from tracelake.versions.repository import Repository
from tracelake.versions.tree import below

INDEX: Final = "spans"
INDEX_ENTRY: Final = "indexes/spans"
TABLE_ENTRY: Final = TABLE_SPANS.entry
"""The table that is indexed."""


def build_name(transaction: int) -> str:
    """Return the name of the index build of a transaction."""
    return f"{INDEX}-{transaction:010d}"


def index_at(repository: Repository, commit_id: str | None) -> str | None:
    """Return the path of the manifest that a commit names, None where it names none."""
    reference = repository.find(commit_id, [INDEX_ENTRY]).get(INDEX_ENTRY) if commit_id else None
    return reference.manifest if isinstance(reference, IndexAt) else None


def standing_manifest(repository: Repository, objects: ObjectStore) -> Manifest | None:
    """Return the index that the head of `main` names, None where it names none. Raises DamageError."""
    standing = index_at(repository, repository.head())
    return None if standing is None else read_manifest(objects, standing)


def analyzer_of(manifest: Manifest) -> Analyzer:
    """Return the analyzer of an index. Raises UsageError where it was built by another version."""
    analyzer = of_fingerprint(manifest.fingerprint)
    if analyzer is None:
        raise UsageError(
            f"index {manifest.index} was built with the settings {manifest.fingerprint}, which this version does not "
            f"have; {BUILD_ANEW}, or use the version that built it"
        )
    return analyzer


def describe_index(objects: ObjectStore, entries: Mapping[str, Reference]) -> IndexInfo | None:
    """Return what the index of a commit has, and how many parts it could have; None where there is none yet."""
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
    """Return how many documents should have a vector of the manifest's kind, and do not."""
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
    """Return the index of all transactions before this one, which must be committed, None before the first.

    A rebuilt index may be committed while transaction T looks for its base, and T is committed on top of it. Then T
    has put the old index back. So the next transaction compares what the commit of T found there with what T was
    built on; where they differ, it builds on what T found, with the parts of T. Where that was built with another
    analyzer, the parts of T do not go with it: what is returned ends before T, and who builds on it indexes it again.
    """
    head = repository.head()
    if transaction == 0 or head is None:
        return None
    standing = index_at(repository, head)
    manifest = None if standing is None else read_manifest(objects, standing)
    own = manifest_path(INDEX, build_name(transaction - 1))
    if manifest is None or manifest.upper != transaction:  # somebody has reverted it
        return read_manifest(objects, own)
    if standing != own:
        return manifest
    parents = repository.commit(repository.commit_of(transaction - 1, head)).parents
    earlier = index_at(repository, parents[0] if parents else None)
    return manifest if earlier in (None, manifest.parent) else _reconciled(objects, manifest, earlier or "")


def _reconciled(objects: ObjectStore, manifest: Manifest, earlier: str) -> Manifest:
    """Return what a transaction should have been built on, with its own parts.

    These do not go with it where they have another analyzer, or rows of transactions that it has as well: a merger was
    faster to index what a transaction had put back.
    """
    there = read_manifest(objects, earlier)
    if there.upper != manifest.upper - 1:
        return manifest
    added = [part for part in read_parts(objects, manifest) if part.build == manifest.build]
    if there.fingerprint != manifest.fingerprint or any(part.lower < there.upper for part in added):
        return replace(there, build=manifest.build, parent=manifest.parent)
    return replace(manifest, lists=there.lists, newest=(*there.newest, *added), vectors=there.vectors)


def vectors_at(repository: Repository, objects: ObjectStore, commit_id: str | None) -> VectorSettings | None:
    """Return which vectors the index of a commit has, None for none.

    Tasks build those of the head. Where that changes before they are published, their part has none that count
    until it is merged.
    """
    path = index_at(repository, commit_id)
    return read_manifest(objects, path).vectors if path is not None else None


FIRST_UNCOMMITTED: Final = 1 << 30
"""The least transaction that is none: what the index says of the row of an unpublished part."""


@dataclass(frozen=True, eq=False)
class UncommittedRows:
    """Rows beside one commit. A search keeps what it made of them as long as they are there."""

    parts: Sequence[UnpublishedPart]
    hidden: RowIds
    """Ids of rows, of parts or of the table, that another claim about the same span stands before."""
    name: str
    """What a page of the search says of them, so that they can be put together again; "" where there are none."""

    def rows_of(self, row_ids: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Return the rows of these ids, of those that stand."""
        wanted = np.setdiff1d(np.array(row_ids, np.int64), self.hidden)
        return self._taken(columns, lambda rows: np.isin(rows[ROW_ID.name].to_numpy(), wanted))

    def of_span(self, trace_id: str, span_id: str, columns: Sequence[str]) -> pa.Table:
        """Return the rows that stand here of a span, one for each workspace."""

        def is_it(rows: pa.Table) -> npt.NDArray[np.bool_]:
            same = pc.and_(
                pc.equal(rows["trace_id"], pa.scalar(trace_id)), pc.equal(rows["span_id"], pa.scalar(span_id))
            )
            return np.asarray(same, np.bool_) & ~np.isin(rows[ROW_ID.name].to_numpy(), self.hidden)

        return self._taken(columns, is_it)

    def _taken(
        self, columns: Sequence[str], are_wanted: Callable[[pa.Table], npt.NDArray[np.bool_]]
    ) -> pa.Table:
        names = [name for name in columns if name != TRANSACTION_FIELD.name]
        # Of each part by itself: rows that are taken of several are first all put together.
        rows = [part.rows.select(names).take(np.flatnonzero(are_wanted(part.rows))) for part in self.parts]
        return pa.concat_tables(rows) if rows else SPANS.append(ROW_ID).empty_table().select(names)


assert first_row_id(FIRST_UNCOMMITTED) == 1 << 62

TEXT_COLUMNS: Final = ("input", "output", "status_message", "attributes", "events")


def texts_of(
    spans: Table, newer: UncommittedRows | None, trace_id: str, span_id: str, workspace: str | None
) -> list[str] | None:
    """Return the texts of a span, None where there is none in the workspace.

    If a client and a server span share the id, the texts of both are returned.
    """
    columns = ["span_id", "workspace", *TEXT_COLUMNS]
    rows = [] if newer is None else to_rows(within(newer.of_span(trace_id, span_id, columns), workspace))
    rows = rows or to_rows(within(spans.lookup([trace_id], columns), workspace))
    its = [row for row in rows if row["span_id"] == span_id]
    if not its:
        return None
    both = [row for row in its if row["workspace"] == its[0]["workspace"]]
    return [text for row in both for text in document_text(row)]


def texts_to_show(row: Row) -> list[str]:
    """Return the texts that an excerpt is cut from, those first from which it is where nothing matches."""
    texts = (row[column] for column in ("output", "input", "status_message", "name"))
    return [*(text for text in texts if text), *document_text(row)]


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
)
"""What a hit tells of its row."""
_NOT_BY_MEANING: Final = "spans that no commit holds yet have no vectors; a search by words finds them"


class CommitView:
    """One commit, opened for reading. It never changes, and any number of threads may use it."""

    def __init__(
        self,
        entries: dict[str, Reference],
        stores: Stores,
        buckets: int,
        commit_id: str | None,
        index: OpenIndex,
    ) -> None:
        self._stores = stores
        self._buckets = buckets
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
        self._with_newer: WeakKeyDictionary[UncommittedRows, Searcher] = WeakKeyDictionary()

    def _open(self, name: str) -> Table:
        scan = Scan(self._stores.objects.url, self._stores.copies, self.layout(name), self._snapshot(name))
        return Table(name, scan, self._origin, self._leases)

    def layout(self, name: str) -> Layout:
        """Return the columns and buckets of a table of this view."""
        if name in BUILT_IN:
            return BUILT_IN[name].layout(self._buckets)
        return read_spec(self._stores.objects, name).layout()

    def _snapshot(self, name: str) -> Snapshot:
        reference = self._entries.get(entry_of(name))
        if not isinstance(reference, TableAt):
            return EMPTY  # the lake is still empty
        shard = Shard(reference.shard, self._stores.key_value, self._stores.objects)
        lease = self._leases.take(shard, self._stores.key_value)
        return shard.snapshot(reference.as_of, lease.state)

    def time_of(self, name: str) -> int:
        """Return the time as of which the commit names a table, -1 for none of its rows."""
        reference = self._entries.get(entry_of(self.table(name).name))
        return reference.as_of if isinstance(reference, TableAt) else -1

    @property
    def is_old(self) -> bool:
        """Whether the view's lease is old: open another, so that garbage collection can go on."""
        return time.monotonic() > self._opened_s + LEASE_S / 4

    def close(self) -> None:
        """Let go of the parts, so that garbage collection may have them."""
        self._leases.close()

    def table(self, name: str) -> Table:
        """Return a table. Raises TableNotFoundError."""
        if name not in self._names:
            raise TableNotFoundError(f"no table {name!r}; there are {', '.join(self._names)}.")
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
    ) -> pa.Table:
        """Run a DuckDB query, one SELECT, over the tables. Raises QueryError.

        It reads the parts of the tables that it names, and nothing else, unless files are allowed. Rows that are
        `newer`, by the name of the table, stand for all of the traces that they are of.
        """
        with self._tables[TABLE_SPANS.name].scan.open_files().in_use():
            with connection() as db:
                identifiers = words((reading if workspace is None else of_tables)(checked(db, query)))
            # One that is not named need not be there: its parts may be far away.
            names = self._names if workspace is None else BUILT_IN
            identifiers |= base_tables(identifiers, workspace)
            tables = [self.table(name) for name in names if name in identifiers]
            files = [file for table in tables for file in table._read_files()]
            with connection(files, allow_files) as db:
                for table in tables:
                    rows = table.sql()
                    if newer is not None and table.name in newer:
                        db.register(f"newer_{table.name}", newer[table.name])
                        rows = (
                            f"select * from ({rows}) anti join newer_{table.name} using (trace_id)"
                            f" union all by name select * from newer_{table.name}"
                        )
                    here = table_within(table.name, rows, workspace)
                    db.execute(f'create temp view "{table.name}" as {here}')
                try:
                    result: pa.Table = select(db, query).to_arrow_table()
                except QueryError:  # a part that was collected is none of the query's
                    self._leases.renew(now=True)
                    raise
        return result

    def trace(self, trace_id: str) -> Trace:
        """Return a trace by its id, or by the unique beginning of it. Raises NotFoundError, LimitError."""
        full = self.full_id(trace_id)
        spans = self.whole(full).sort_by(IN_ORDER)
        summary = self._tables[TABLE_TRACES.name].lookup([full], TRACES.names[:-1]).to_pylist()
        if not summary or not len(spans):
            raise no_trace(trace_id)
        return Trace(full, summary[0], tuple(to_rows(spans)))

    def spans_of(self, trace_ids: Sequence[str], max_bytes: int) -> pa.Table:
        """Return the spans of traces as they were sent: not the transaction that brought them.

        Raises LimitError where they take more memory.
        """
        return self._tables[TABLE_SPANS.name].lookup(trace_ids, SPANS.names, max_bytes)

    def whole(self, trace_id: str, workspace: str | None = None) -> pa.Table:
        """Return the spans of one trace, as `spans_of`. Raises LimitError where they take too much memory."""
        return read_trace(self._tables[TABLE_SPANS.name], trace_id, workspace)

    def summary(self, trace_id: str) -> Row | None:
        """Return the row of table `traces` of a trace, without its transaction; None where there is none."""
        rows = self._tables[TABLE_TRACES.name].lookup([trace_id], TRACES.names[:-1]).to_pylist()
        return rows[0] if rows else None

    def outline(self, trace_id: str, columns: Sequence[str], workspace: str | None = None) -> pa.Table:
        """Return some columns of a trace, and `_row_id`. Raises LimitError where they take too much memory."""
        try:
            rows = self._tables[TABLE_SPANS.name].lookup(
                [trace_id], [*columns, ROW_ID.name], TRACE_ROWS_MAX_BYTES
            )
        except LimitError as error:
            raise too_large(trace_id) from error
        return within(rows, workspace)

    def rows(self, trace_id: str, row_ids: RowIds) -> pa.Table:
        """Return spans of a trace by their row ids. Raises LimitError, BackPressureError."""
        return read_rows(self._tables[TABLE_SPANS.name], trace_id, row_ids)

    def full_id(self, trace_id: str, others: Collection[str] = (), workspace: str | None = None) -> str:
        """Return a trace id by the unique beginning of it, here and among others. Raises NotFoundError."""
        trace_id = trace_id.lower()
        if not _TRACE_ID.fullmatch(trace_id):
            raise NotFoundError(
                f"{trace_id!r} is no trace id: 32 hex digits, or the first 6 or more of them."
            )
        if len(trace_id) == 32:
            return trace_id
        begins = f"starts_with(trace_id, '{trace_id}')"
        enough = 2 if workspace is None else LOOKED_UP_TRACES_MAX + 1
        begun = self._tables[TABLE_TRACES.name].to_arrow(["trace_id"], begins, limit=enough)
        if workspace is not None and len(begun):
            begun = self._begun_in(workspace, begins, [*map(str, begun["trace_id"].to_pylist())])
        matching = {*map(str, begun["trace_id"].to_pylist()), *others}
        if len(matching) > 1:
            raise NotFoundError(f"several traces begin with {trace_id!r}; give more digits.")
        return matching.pop() if matching else trace_id

    def _begun_in(self, workspace: str, begins: str, ids: list[str]) -> pa.Table:
        """Return two at most of those with spans in a workspace: the row of one that is shared may be of another."""
        if len(ids) <= LOOKED_UP_TRACES_MAX:
            begins = f"trace_id in ({', '.join(map(literal, ids))})"
        here = f"{begins} and workspace = {literal(workspace)}"
        return self._tables[TABLE_SPANS.name]._distinct("trace_id", here, limit=2)

    def search(
        self,
        query: str,
        where: str | None,
        limit: int,
        service: str | None = None,
        *,
        sort: Sort = "score",
        facets: Sequence[str] = (),
        page: str | None = None,
        now: datetime | None = None,
        by: Ranking = BY_WORDS,
        newer: UncommittedRows | None = None,
        workspace: str | None = None,
    ) -> SearchResults:
        """Return hits of the index in order, `where` being a DuckDB condition on table `spans`.

        A service is part of what the index is asked, so that only its spans are read. Without a condition all hits are
        counted, and the facets that are asked for. Rows that are `newer` are found as if they were of the commit. Of
        other workspaces nothing is found, counted or read; scores know how rare words are in all.
        """
        if not 1 <= limit <= SEARCH_HITS_MAX:
            raise QueryError(f"limit must be from 1 to {SEARCH_HITS_MAX}, not {limit}.")
        if sort not in get_args(Sort):
            raise QueryError(f"sort must be one of {', '.join(get_args(Sort))}, not {sort!r}.")
        if where and facets:
            raise QueryError(
                "facets count what the index finds, and a condition is not in it; say it in the query, such as "
                "service:checkout, or leave facets out."
            )
        name = name_of_search(query, where, service, sort, *by.told, *workspace_token(workspace))
        token = read_token(page, name) if page is not None else None
        asked_ns = time.time_ns() if now is None else nanoseconds(now)
        offset, now_ns = (token.offset, token.now_ns) if token is not None else (0, asked_ns)
        searcher, beside = self._searcher_with(newer), "" if newer is None else newer.name
        if searcher is None:
            check_request(query, sort, facets, now_ns, by)
            return SearchResults(commit=self.commit_id)
        hits, size = list[tuple[int, Hit]](), limit
        asked = make_request(searcher, query, service, sort, now_ns, by, workspace)
        while len(hits) < limit and (raw_hits := asked.hits(size, offset)):
            hits += [
                (offset + place, hit)
                for place, hit in self._rows_of(raw_hits, where, query, searcher.analyzer, newer, workspace)
                if service in (None, hit.service)  # which the index finds in any case
            ]
            if len(raw_hits) < size:
                break
            offset, size = offset + size, min(size * 4, SEARCH_HITS_MAX)
        counted = asked.count(facets) if not where else None
        total = None if counted is None else counted.total
        following = hits[limit - 1][0] + 1 if len(hits) >= limit else None
        if following is not None and service is workspace is None and following >= (total or following + 1):
            following = None
        return SearchResults(
            (hit for _, hit in hits[:limit]),
            total,
            {} if counted is None else {facet: _facet(raw) for facet, raw in counted.facets.items()},
            self.commit_id,
            None if following is None else str(PageToken(self.commit_id, following, now_ns, name, beside)),
            searcher.analyzer.public_name,
            asked.parts,
            searcher.vectors,
            _NOT_BY_MEANING if beside and by.mode == "semantic" else None,
            None if hits or page else _hint(query, by, searcher.analyzer),
        )

    def completions(self, typed: str, workspace: str | None = None) -> list[str]:
        """Return queries that go on where one that is being typed ends."""
        searcher = self.open_searcher()
        return [] if searcher is None else searcher.completions(typed, workspace)

    def open_index(self) -> None:
        """Open the parts of the index, where there is one, so that who searches does not wait for them."""
        if (searcher := self.open_searcher()) is not None:
            searcher.open()

    def open_searcher(self) -> Searcher | None:
        """Return who searches the index, where there is one."""
        if self._searcher is None and isinstance(self._entries.get(INDEX_ENTRY), IndexAt):
            self._searcher = self._new_searcher(None)
        return self._searcher

    def _searcher_with(self, newer: UncommittedRows | None) -> Searcher | None:
        """Return who searches the index, and rows beside it."""
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
        # Of the table and not of this view: a searcher that held its view would keep its lease for long.
        of_span = partial(texts_of, table, newer)
        objects = self._stores.objects
        return Searcher(objects, manifest, self._index, every, of_span, at_once=False, unpublished=parts)

    def analyzer(self, default: Analyzer) -> Analyzer:
        """Return what makes words of texts here, the default where there is no index."""
        return default if (searcher := self.open_searcher()) is None else searcher.analyzer

    def indexed_claims(self, claims: pa.Table) -> pa.Table:
        """Return the rows that the index has of the spans that some rows of SPANS are about, and `_row_id`."""
        searcher, table = self.open_searcher(), self._tables[TABLE_SPANS.name]
        traces = [str(trace_id) for trace_id in claims["trace_id"].unique().to_pylist()]
        here = [] if searcher is None else sorted(searcher.traces_among(traces))
        return table.about(claims, here)

    def _rows_of(
        self,
        raw_hits: list[RawHit],
        where: str | None,
        query: str,
        analyzer: Analyzer,
        newer: UncommittedRows | None,
        workspace: str | None,
    ) -> list[tuple[int, Hit]]:
        """Join hits with their rows, in order, each with its place. One whose row is not there is dropped."""
        table = self._tables[TABLE_SPANS.name]
        told = [*_TOLD_COLUMNS, *TEXT_COLUMNS] if not where else table.schema.names
        columns, ids = [ROW_ID.name, *told], [hit.row for hit in raw_hits]
        committed = {hit.trace_id for hit in raw_hits if hit.transaction < FIRST_UNCOMMITTED}
        check_cancelled()  # tantivy cannot be interrupted
        with connection() as db:
            # Of a trace of very many spans those of the hits alone are held.
            of_hits = table.lookup(sorted(committed), columns, row_ids=np.array(ids, np.int64))
            db.register("found_rows", of_hits)
            db.register("wanted", pa.table({ROW_ID.name: pa.array(ids, pa.int64())}))
            sql = f"select * from found_rows semi join wanted using ({ROW_ID.name})"
            if newer is not None:
                db.register("newer_rows", newer.rows_of(ids, columns))
                sql = f"select * from ({sql} union all by name select * from newer_rows)"
            sql = workspace_sql(sql, workspace)
            selected = select(db, sql + (f" where {condition(where)}" if where else "")).to_arrow_table()
        by_id = {row[ROW_ID.name]: row for row in to_rows(selected)}
        hits = []
        for place, hit in enumerate(raw_hits):
            check_cancelled()  # an excerpt may take long
            if (row := by_id.get(hit.row)) is not None:
                excerpt = highlight(texts_to_show(row), query, analyzer)
                of_row = {column: row[column] for column in _TOLD_COLUMNS}
                hits.append((place, Hit(hit.trace_id, hit.span_id, hit.score, highlight=excerpt, **of_row)))
        return hits


def _hint(query: str, by: Ranking, analyzer: Analyzer) -> str | None:
    """Return why a search that found nothing may have missed texts; None if the index is not the reason."""
    return None if by.mode != "text" else hint_of(analyzer, [text.text for text in texts_wanted(query)])


def _facet(raw: RawFacet) -> Facet:
    return Facet(tuple(FacetValue(*value) for value in raw.values), raw.others, raw.exact)


def named_by(repository: Repository, commit_id: str | None) -> dict[str, Reference]:
    """Return the indexes and tables that a commit names; datasets beside them may have a million entries."""
    folders = ("indexes", "tables") if commit_id else ()
    return {
        path: reference
        for folder in folders
        for path, reference in repository.scan(commit_id or "", *below(folder))
    }
