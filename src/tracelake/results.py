"""What the public API returns. Times are nanoseconds since 1970 UTC unless the name says otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

Row: TypeAlias = dict[str, Any]
"""One row of a table; maps are dicts, lists are lists, column names as in docs/reference/tables.md."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing in an input that could not be taken, and where. Lines count from 1, offsets from 0.

    Offsets are in the decompressed data; a damaged compressed stream is reported at the one up to which it was read.
    """

    reason: str
    line: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        """Say it in one line: `line 3: not JSON: …`."""
        where = f"line {self.line}: " if self.line is not None else ""
        if not where and self.offset is not None:
            where = f"byte {self.offset}: "
        return where + self.reason


@dataclass(frozen=True, slots=True)
class BadInput:
    """An input file with problems: the first few in words, all of them counted."""

    path: str
    problems: tuple[Problem, ...]
    problems_total: int


@dataclass(frozen=True, slots=True)
class SetAsideInput:
    """An input that no task could do: its spans are in no table, unless it is `taken`. `at` is ISO 8601, UTC."""

    path: str
    source: str
    size_bytes: int
    sha256: str
    transaction: int
    state: str
    """set aside | offered (it is taken again by the next run) | discarded (given up for ever)
    | taken (nothing is left to take, and it cannot be deleted)"""
    tries: int
    reason: str
    at: str

    def explain(self) -> str:
        """Say what is the matter, why, and what to do."""
        what = f"{self.path} ({self.size_bytes} bytes, transaction {self.transaction})"
        why = self.reason.rstrip(".")
        if self.state != "set aside":
            return f"{what} is {self.state}{' again to the next run' * (self.state == 'offered')}: {why}."
        todo = "Mend it, or the software, and run `tracelake pipeline retry {0}`; or give it up by `… discard {0}`."
        return f"{what} is set aside after {self.tries} tries: {why}. {todo.format(self.transaction)}"


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did to one table."""

    table: str
    batches: int
    """Batches that became one; 0 where there was nothing to gain."""
    parts_before: int
    parts_after: int
    read_bytes: int
    written_bytes: int
    since: int
    """The earliest transaction at which the table can be read."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What building the index anew made."""

    commit: str
    upper: int
    """The transaction after the last that is in it."""
    documents: int
    parts: int
    text: str
    """How texts become words."""
    vectors: int = 0  # spans that have one
    without_vector: int = 0  # that should have one; the log of the tasks says why not


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """The full-text index as of a commit."""

    manifest: str
    upper: int
    """The transaction after the last that is in it."""
    documents: int
    """Of rows that were replaced since, too, until it is built anew."""
    parts: int
    parts_max: int | None
    """How many parts a process on this machine can open, None where the system does not say."""
    text: str | None = "english"
    """How texts become words; None where the index was built by another version."""
    vectors: str | None = None
    """Where its vectors come from, and how they are compared; None where it has none."""
    without_vector: int = 0  # spans that should have one: `tracelake index rebuild` tries again


@dataclass(frozen=True, slots=True)
class GcReport:
    """What garbage collection deleted of one table, or would delete."""

    table: str
    replaced: int
    """Objects that compaction replaced; of the journal, transactions whose records nobody needs any more."""
    orphans: int  # objects of writers that died before they published them
    bytes: int
    held: int
    """Compactions whose replaced parts stay, because a reader holds a lease on them."""
    damage: tuple[str, ...] = ()  # what could not be read: of what may lie behind it nothing was deleted


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest did; `open_transaction`, if any, has what was read last, and takes more before its commit."""

    files: int
    files_known: int
    """Files whose bytes the lake holds already: not decoded again, their spans are repeats."""
    spans_read: int
    spans_new: int
    spans_replaced: int
    spans_repeated: int
    traces_touched: int
    input_bytes: int
    transactions: tuple[int, ...]
    recovered: tuple[int, ...]
    """Transactions of an earlier run that this one finished first."""
    commit: str | None
    bad: tuple[BadInput, ...]
    seconds: float
    set_aside: tuple[SetAsideInput, ...] = ()
    open_transaction: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One table at one commit. `upper` is the transaction number that the next batch will have."""

    name: str
    rows: int
    parts: int
    bytes: int
    upper: int


@dataclass(frozen=True, slots=True)
class InboxInfo:
    """What servers received and no transaction holds yet."""

    segments: int
    bytes: int
    oldest_s: float | None
    """How long the oldest segment has been waiting, in seconds; None where none waits."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica of the pipeline, by what it last told of itself. Times are ISO 8601, UTC."""

    name: str
    status: str
    """running | idle | stuck | gone"""
    reason: str
    """Why it is stuck or gone; empty for the others."""
    frontier: int
    """The transaction that it works on, or waits to begin."""
    transactions_behind: int
    """Transactions that the tables hold and it has not passed."""
    waiting_inputs: int
    """Segments of the inbox, and watched files, that no transaction holds yet."""
    waiting_bytes: int
    oldest_waiting_s: float | None
    """How long the oldest of them has been waiting, in seconds; None where none waits."""
    batches_won: int
    """Batches of tables that this process appended."""
    batches_of_peers: int
    """Batches of the transactions it passed that somebody else had written."""
    rows_dropped: int
    """Rows that it had read or shaped when their transaction turned out to be below the upper."""
    doing: str | None
    moved_at: str
    """When its work last moved on."""
    failures: int
    last_error: str | None
    last_error_at: str | None
    instance: str
    """Random for each process."""
    host: str
    pid: int
    started_at: str
    heartbeat_at: str
    namesake: str | None
    """Another live process that uses the same name: give each a name of its own."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit: content id, parents, what it names (table or index → reference), and who made it when."""

    id: str
    parents: tuple[str, ...]
    message: str
    committer: str
    created_at: str
    """ISO 8601, UTC."""
    metadata: dict[str, str]
    """At least `transaction` for a commit of the pipeline."""


@dataclass(frozen=True, slots=True)
class BranchInfo:
    """One branch."""

    name: str
    head: str | None
    """Its newest commit; None for `main` of an empty lake."""
    protected: bool
    staged: int
    """Entries that are staged and not committed."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A commit that was begun on a branch, and is not built yet."""

    id: str
    operation: str
    """`change`, `merge`, `revert` or `pick`."""
    message: str
    committer: str
    created_at: str


@dataclass(frozen=True, slots=True)
class EntryChange:
    """An entry of which two commits, or a commit and what is staged, name something else: `before` and `after`,
    as docs/reference/formats.md describes references; None for nothing."""

    path: str
    before: Row | None
    after: Row | None
    problem: str | None = None
    """Why what is staged cannot be read; `after` is not known then."""

    @property
    def change(self) -> str:
        """Whether it was `added`, `removed` or `changed`; or `damaged`."""
        if self.problem is not None or self.before is None:
            return "added" if self.problem is None else "damaged"
        return "removed" if self.after is None else "changed"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with `change`."""
        said = {} if self.problem is None else {"problem": self.problem}
        return {"path": self.path, "change": self.change, "before": self.before, "after": self.after, **said}


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """An entry that both sides of a merge changed, each in its own way: what it was, and what each names."""

    path: str
    base: Row | None
    ours: Row | None
    theirs: Row | None


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """One dataset at one commit, and on a branch what is staged besides."""

    name: str
    description: str
    examples: int
    """Those that are committed."""
    staged: int
    """Examples that are staged: to be added, changed or removed."""


@dataclass(frozen=True, slots=True)
class AddReport:
    """What became of spans that were added to a dataset."""

    dataset: str
    branch: str
    added: int
    replaced: int
    """Examples that were there, and now have the span's newest input and output."""
    known: int
    """Spans whose example was there, and stays as it is."""
    empty: int
    """Spans with neither input nor output: they make no example."""
    commit: str | None
    """The commit that has them; None where they are staged."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """A dataset that was written to a file."""

    dataset: str
    commit: str | None
    """The commit whose examples they are; None where there is none yet."""
    path: str
    format: str
    """jsonl | parquet"""
    examples: int
    bytes: int


SERVER_KINDS: Final = ("SERVER", "CONSUMER")
"""Kinds of the receiving side of a call. With Zipkin's B3 headers, both sides of a call share one span id."""


def is_server_side(span: Mapping[str, Any]) -> bool:
    """Whether a row is on the receiving side of a call, which is part of its key."""
    return span.get("kind") in SERVER_KINDS


@dataclass(frozen=True, slots=True)
class Trace:
    """All spans of one trace, and its row of table `traces`."""

    trace_id: str
    summary: Row
    spans: tuple[Row, ...]
    """In order of start time."""

    def walk(self) -> Iterator[tuple[int, Row]]:
        """Yield (depth, span) parents first, siblings by start time; an orphan stands at depth 0.

        A client and a server span may share one id. The server span is then the child of the client span. A span with
        that parent id is the child of the server span if both have the same service, else of the client span.

        Spans that form a cycle come last, at depth 0, so that every span is yielded once.
        """
        clients, servers = _Places(), _Places()
        for place, span in enumerate(self.spans):
            (servers if is_server_side(span) else clients).add(place, span)
        children: dict[int | None, list[int]] = {}
        for place, span in enumerate(self.spans):
            children.setdefault(self._place_above(span, clients, servers), []).append(place)
        seen: set[int] = set()
        stack = [(0, place) for place in reversed(children.get(None, []))]
        while stack:
            depth, place = stack.pop()
            seen.add(place)
            yield depth, self.spans[place]
            stack.extend((depth + 1, child) for child in reversed(children.get(place, [])))
        yield from ((0, span) for place, span in enumerate(self.spans) if place not in seen)

    def _place_above(self, span: Row, clients: _Places, servers: _Places) -> int | None:
        """Return the place of the parent of a span, None for a root or an orphan."""
        workspace, parent = span.get("workspace"), span["parent_span_id"]
        if is_server_side(span) and (client := clients.find(workspace, span["span_id"])) is not None:
            return client
        client, server = clients.find(workspace, parent), servers.find(workspace, parent)
        if client is None or server is None:
            return server if client is None else client
        own = {place for place in (client, server) if self.spans[place].get("workspace") == workspace}
        if len(own) == 1:
            return own.pop()
        return server if span.get("service") == self.spans[server].get("service") else client


class _Places:
    """Places of the spans of one side in a trace, by id: first those of the same workspace, else of any."""

    def __init__(self) -> None:
        self._own: dict[tuple[str | None, str], int] = {}
        self._any: dict[str, int] = {}

    def add(self, place: int, span: Row) -> None:
        self._own[span.get("workspace"), span["span_id"]] = place
        self._any.setdefault(span["span_id"], place)

    def find(self, workspace: str | None, span_id: str | None) -> int | None:
        return None if span_id is None else self._own.get((workspace, span_id), self._any.get(span_id))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `verify` found wrong: which object, and what is wrong with it."""

    kind: str
    """missing | damaged | mismatch"""
    what: str
    """part | index part | file | batch | commit | journal | table | record | outbox row | archived trace | …"""
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup or a restore copied, and what `verify` found in the copy."""

    place: str
    objects: int
    bytes: int
    records: int
    tracking_rows: int
    verified: VerifyReport

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {**asdict(self), "verified": self.verified.to_dict()}


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` read, and what was wrong. `ok` iff nothing was."""

    commits: int
    transactions: int
    parts: int
    index_parts: int
    files: int
    """Files that entries of any commit name, such as examples of datasets."""
    rows: int
    bytes_read: int
    findings: tuple[Finding, ...] = field(default=())
    set_aside: tuple[SetAsideInput, ...] = ()
    left_out: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Parts of the lake that were not checked, and why."""

    @property
    def ok(self) -> bool:
        """True iff there is no finding."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with `ok`."""
        return {"ok": self.ok, **asdict(self)}
