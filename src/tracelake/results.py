"""Results of the public API. Times are nanoseconds since 1970 UTC unless the name says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import pandas as pd

Row: TypeAlias = dict[str, Any]
"""One row of a table; maps are dicts, lists are lists, column names as in docs/reference/tables.md."""


def public_names(owner: object, *internal: str) -> list[str]:
    """Return the attributes of an object for `dir()` and completion: none that is private or internal."""
    names = object.__dir__(owner)
    return [name for name in names if name.startswith("__") or not (name.startswith("_") or name in internal)]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in an input, with its position. Lines count from 1, offsets from 0.

    Offsets refer to the decompressed data. For a damaged compressed stream, the offset is the end of the readable
    data.
    """

    reason: str
    line: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        """Return the problem in one line: `line 3: not JSON: …`."""
        where = f"line {self.line}: " if self.line is not None else ""
        if not where and self.offset is not None:
            where = f"byte {self.offset}: "
        return where + self.reason


@dataclass(frozen=True, slots=True)
class BadInput:
    """An input file with problems: descriptions of the first few, and the total number."""

    path: str
    problems: tuple[Problem, ...]
    problems_total: int


@dataclass(frozen=True, slots=True)
class SetAsideInput:
    """A quarantined input, which no task could process. No table has its spans, unless it is `taken`. `at` is ISO
    8601, UTC."""

    path: str
    source: str
    size_bytes: int
    sha256: str
    transaction: int
    state: str
    """set aside (quarantined) | offered (the next run retries it) | discarded (for good) | taken (nothing is left to
    ingest, and it cannot be deleted)"""
    tries: int
    reason: str
    at: str

    def explain(self) -> str:
        """Return the problem, its reason and the remedy in words."""
        what = f"{self.path} ({self.size_bytes} bytes, transaction {self.transaction})"
        why = self.reason.rstrip(".")
        if self.state != "set aside":
            return f"{what} is {self.state}{' again to the next run' * (self.state == 'offered')}: {why}."
        todo = (
            "Fix it, or the software, and run `tracelake pipeline retry {0}`; or discard it with `… discard "
            "{0}`."
        )
        return f"{what} is set aside after {self.tries} tries: {why}. {todo.format(self.transaction)}"


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Result of compaction for one table."""

    table: str
    batches: int
    """Batches merged into one; 0 if there was nothing to gain."""
    parts_before: int
    parts_after: int
    read_bytes: int
    written_bytes: int
    since: int
    """The earliest transaction at which the table is readable."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """Result of an index rebuild."""

    commit: str
    upper: int
    """The transaction after the last indexed one."""
    documents: int
    parts: int
    text: str
    """Text analyzer."""
    vectors: int = 0  # spans with a vector
    without_vector: int = 0  # spans that should have one; the task log gives the reasons


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """The full-text index at a commit."""

    manifest: str
    upper: int
    """The transaction after the last indexed one."""
    documents: int
    """Documents, including replaced rows until the index is rebuilt."""
    parts: int
    parts_max: int | None
    """Number of parts that a process on this machine can open, or None if the system does not report it."""
    text: str | None = "english"
    """Text analyzer, or None if another version built the index."""
    vectors: str | None = None
    """Source and metric of the vectors, or None without vectors."""
    without_vector: int = 0  # spans that should have one: `tracelake index rebuild` tries again


@dataclass(frozen=True, slots=True)
class RepricedModel:
    """Spans of a model whose cost changes by the current prices, with the sums of their costs in US dollars."""

    model: str
    spans: int
    cost_before: float
    cost_after: float


@dataclass(frozen=True, slots=True)
class RepricingReport:
    """Correction of the costs of stored spans, done or planned."""

    models: tuple[RepricedModel, ...]
    """In order of their names."""
    transactions: tuple[int, ...] = ()
    """The transactions that wrote the costs."""

    @property
    def spans(self) -> int:
        """The number of spans whose cost changes."""
        return sum(each.spans for each in self.models)


@dataclass(frozen=True, slots=True)
class GcReport:
    """Deletions of garbage collection in one table, done or planned."""

    table: str
    replaced: int
    """Objects that compaction replaced; for the journal, transactions whose records are no longer needed."""
    orphans: int  # objects of writers that died before publishing them
    bytes: int
    held: int
    """Compactions whose replaced parts stay because a reader's lease protects them."""
    damage: tuple[str, ...] = ()  # unreadable objects; nothing that they may reference was deleted
    expired: int = 0
    """Commits that expired; for the line about commits only."""


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """An erasure: its selection, its state, and what was removed where."""

    id: str
    criterion: str
    """`trace`, `session`, `user` or `where`."""
    value: str
    """The selected value; a salted hash once the erasure is finished."""
    state: str
    """`open`, or `finished`. Readers hide the traces in both states."""
    step: str | None
    """What an open erasure does next, or waits for."""
    traces: int
    requested: str
    finished: str | None
    removed: dict[str, int]
    """Removed rows, documents, objects and bytes, by place."""
    not_removed: tuple[str, ...]
    """Places in the lake that may still have bytes of the traces, and places that it cannot reach."""


@dataclass(frozen=True, slots=True)
class ErasureCheck:
    """Result of a scan for erased values."""

    id: str
    scanned: int
    """Number of objects, records, rows and files."""
    bytes: int
    """Scanned bytes, decompressed ones too."""
    findings: tuple[Finding, ...]
    """Places that still have an erased value."""
    unread: tuple[str, ...] = ()
    """Places that could not be read."""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Result of an ingest. If `open_transaction` is set, that transaction contains the last input and accepts more
    until it is committed."""

    files: int
    files_known: int
    """Files whose bytes the lake has already: they are not decoded again, and their spans are repeats."""
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
    engine: str = ""
    """Where its tasks ran: `Spark`, `this process`, or both."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table at a commit. `upper` is the transaction number of the next batch."""

    name: str
    rows: int
    parts: int
    bytes: int
    upper: int


@dataclass(frozen=True, slots=True)
class InboxInfo:
    """Received input that no transaction contains yet."""

    segments: int
    bytes: int
    oldest_s: float | None
    """Age of the oldest pending segment in seconds, or None without one."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica of the pipeline, as it last reported itself. Times are ISO 8601, UTC."""

    name: str
    status: str
    """running | idle | stuck | gone"""
    reason: str
    """Reason for being stuck or gone; empty otherwise."""
    frontier: int
    """The transaction that it works on, or waits to begin."""
    transactions_behind: int
    """Committed transactions that it has not passed yet."""
    waiting_inputs: int
    """Inbox segments and watched files that no transaction contains yet."""
    waiting_bytes: int
    oldest_waiting_s: float | None
    """Age of the oldest of them in seconds, or None without one."""
    batches_won: int
    """Table batches that this process appended."""
    batches_of_peers: int
    """Batches that peers wrote, in the transactions that it passed."""
    rows_dropped: int
    """Rows read or merged in vain, because their transaction turned out to be below the upper."""
    doing: str | None
    moved_at: str
    """Time of its last progress."""
    failures: int
    last_error: str | None
    last_error_at: str | None
    instance: str
    """Random id of the process."""
    host: str
    pid: int
    started_at: str
    heartbeat_at: str
    namesake: str | None
    """Another live process with the same name; give each a different name."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """A commit: content id, parents, entries (table or index → reference), committer and time."""

    id: str
    parents: tuple[str, ...]
    message: str
    committer: str
    created_at: str
    """ISO 8601, UTC."""
    metadata: dict[str, str]
    """At least `transaction` for a commit of the pipeline."""
    retained_because: str = ""
    """The reason why it does not expire now, such as `head of main`; empty if it was not computed."""
    retained_until: str | None = None
    """The time at which this reason ends, ISO 8601, UTC; None if it does not end by itself."""

    @property
    def retention(self) -> str:
        """Return the reason and its end in short."""
        if self.retained_until is None:
            return self.retained_because
        until = f"until {self.retained_until[:16].replace('T', ' ')}"
        return until if self.retained_because == "young" else f"{self.retained_because}, {until}"


@dataclass(frozen=True, slots=True)
class ExpiredCommits:
    """Commits that have expired, so that they can no longer be read."""

    commits: int
    oldest: str
    """The oldest commit of `main` that can be read; empty if `main` has none."""
    oldest_at: str
    """Its time, ISO 8601, UTC."""

    @property
    def line(self) -> str:
        """Return one sentence about them."""
        oldest = (
            f"; the oldest that can be read is {self.oldest[:12]} of {self.oldest_at}" if self.oldest else ""
        )
        return f"{self.commits:,} older commits have expired{oldest}."


@dataclass(frozen=True, slots=True)
class BranchInfo:
    """A branch."""

    name: str
    head: str | None
    """Its newest commit; None for `main` of an empty lake."""
    protected: bool
    staged: int
    """Staged entries that are not committed."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A commit request of a branch that is not built yet."""

    id: str
    operation: str
    """`change`, `merge`, `revert` or `pick`."""
    message: str
    committer: str
    created_at: str


@dataclass(frozen=True, slots=True)
class EntryChange:
    """An entry that differs between two commits, or between a commit and the staged changes.

    `before` and `after` are references as in docs/reference/formats.md, or None for an absent entry.
    """

    path: str
    before: Row | None
    after: Row | None
    problem: str | None = None
    """Reason why the staged entry is unreadable; `after` is then unknown."""

    @property
    def change(self) -> str:
        """Kind of the change: `added`, `removed`, `changed` or `damaged`."""
        if self.problem is not None or self.before is None:
            return "added" if self.problem is None else "damaged"
        return "removed" if self.after is None else "changed"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with `change`."""
        problem = {} if self.problem is None else {"problem": self.problem}
        return {
            "path": self.path,
            "change": self.change,
            "before": self.before,
            "after": self.after,
            **problem,
        }


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """An entry that both sides of a merge changed differently: its base and the reference on each side."""

    path: str
    base: Row | None
    ours: Row | None
    theirs: Row | None


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A dataset at a commit and, on a branch, its staged changes."""

    name: str
    description: str
    examples: int
    """Committed examples."""
    staged: int
    """Examples staged to be added, changed or removed."""


@dataclass(frozen=True, slots=True)
class AddReport:
    """Result of adding spans to a dataset."""

    dataset: str
    branch: str
    added: int
    replaced: int
    """Existing examples that now have the span's newest input and output."""
    known: int
    """Spans whose existing example stays unchanged."""
    empty: int
    """Spans with neither input nor output, which yield no example."""
    commit: str | None
    """The commit with the examples, or None if they are only staged."""
    warnings: tuple[str, ...] = ()
    """Remarks on an example whose content was given, such as another example with the same input."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Result of exporting a dataset to a file."""

    dataset: str
    commit: str | None
    """The commit of the exported examples, or None without a commit."""
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


_INDENT_MAX: Final = 30
"""Deepest span that a notebook still indents further."""


@dataclass(frozen=True, slots=True)
class Trace:
    """All spans of a trace, and its row of table `traces`."""

    trace_id: str
    summary: Row
    spans: tuple[Row, ...]
    """Sorted by start time."""

    def __repr__(self) -> str:
        """Return the id and the number of spans, because the spans may be megabytes of text."""
        return f"Trace({self.trace_id!r}, {len(self.spans):,} spans)"

    def _repr_html_(self) -> str:
        """Return the tree of spans with a bar for each span's time, for a notebook."""
        first_ns = min((span["start_ns"] for span in self.spans), default=0)
        last_ns = max((max(span["start_ns"], span["end_ns"]) for span in self.spans), default=0)
        length_ns = max(last_ns - first_ns, 1)
        rows = []
        for depth, span in self.walk():
            end_ns = max(span["start_ns"], span["end_ns"] or last_ns)  # a span without an end still runs
            offset, width = (
                (ns * 100 / length_ns) for ns in (span["start_ns"] - first_ns, end_ns - span["start_ns"])
            )
            colour = "#c33" if span["status"] == "ERROR" else "#48c"
            rows.append(
                f'<tr><td style="text-align:left;padding-left:{min(depth, _INDENT_MAX)}em">{escape(span["name"])}</td>'
                f"<td>{escape(span['service'] or '')}</td><td>{escape(span['status'] or '')}</td>"
                f"<td>{(end_ns - span['start_ns']) / 1e6:,.2f} ms</td>"
                f'<td style="min-width:20em"><div style="margin-left:{offset:.2f}%;width:{width:.2f}%;min-width:1px;'
                f'height:.8em;background:{colour}"></div></td></tr>'
            )
        return f"<p>Trace {escape(self.trace_id)}: {len(rows):,} spans</p><table>{''.join(rows)}</table>"

    def to_pandas(self) -> pd.DataFrame:
        """Return the spans as a pandas frame; pandas must be installed."""
        import pandas as pd  # noqa: PLC0415  optional

        return pd.DataFrame.from_records(list(self.spans))

    def walk(self) -> Iterator[tuple[int, Row]]:
        """Yield (depth, span), parents first and siblings by start time. A span without a stored parent has depth 0.

        A client and a server span may share one id. The server span is then the child of the client span. A span with
        that parent id is the child of the server span if both have the same service, otherwise of the client span.

        Spans that form a cycle come last, at depth 0, so that every span is yielded once.
        """
        clients, servers = _Places(), _Places()
        for place, span in enumerate(self.spans):
            (servers if is_server_side(span) else clients).add(place, span)
        children: dict[int | None, list[int]] = {}
        for place, span in enumerate(self.spans):
            children.setdefault(self._place_above(span, clients, servers), []).append(place)
        visited: set[int] = set()
        stack = [(0, place) for place in reversed(children.get(None, []))]
        while stack:
            depth, place = stack.pop()
            visited.add(place)
            yield depth, self.spans[place]
            stack.extend((depth + 1, child) for child in reversed(children.get(place, [])))
        yield from ((0, span) for place, span in enumerate(self.spans) if place not in visited)

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
    """A problem found by `verify`: the object and the details."""

    kind: str
    """missing | damaged | mismatch"""
    what: str
    """part | index part | file | batch | commit | journal | table | record | outbox row | archived trace | …"""
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class BackupReport:
    """Result of a backup or restore: counts of what it copied, and the findings of `verify`."""

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
    """Totals and findings of `verify`. `ok` is true if there are no findings."""

    commits: int
    transactions: int
    parts: int
    index_parts: int
    files: int
    """Files that entries of any commit reference, such as dataset examples."""
    rows: int
    bytes_read: int
    findings: tuple[Finding, ...] = field(default=())
    set_aside: tuple[SetAsideInput, ...] = ()
    left_out: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Areas of the lake that were not checked, with reasons."""

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types, with `ok`."""
        return {"ok": self.ok, **asdict(self)}


def html_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table for a notebook, with every text escaped."""
    head = "".join(f"<th>{escape(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
