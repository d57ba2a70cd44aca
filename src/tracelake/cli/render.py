"""Tables and texts that the commands print for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from tracelake import results
from tracelake.cli.output import WrappingTable, plain

if TYPE_CHECKING:
    from tracelake.archive.model import ArchiveDue, ArchiveSettings
    from tracelake.archive.store import ArchiveSpace
    from tracelake.doctor.stores import CheckResult, Diagnosis
    from tracelake.lake.sources import SourceInfo
    from tracelake.lake.transaction_history import (
        OutputAccount,
        ReplayReport,
        TransactionAccount,
        TransactionInfo,
    )
    from tracelake.search.results import Hit

TRACE_SHOWN: Final = 12
"""Digits of a trace id in a list; `trace show` accepts a unique prefix."""
COMMIT_SHOWN: Final = 12
"""Digits of a commit id in a list; a unique prefix is enough to name a commit."""


def grid(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, ids: Sequence[str] = ()) -> Table:
    """Return a table: numbers right-aligned, columns in `ids` unwrapped, all other text folded."""
    rows = list(rows)
    table = WrappingTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for position, header in enumerate(headers):
        values = [row[position] for row in rows]
        numeric = any(isinstance(value, (int, float)) for value in values)
        table.add_column(
            Text(plain(header)),
            justify="right" if numeric else "left",
            no_wrap=header in ids,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(cell, row))
    return table


def records(headers: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> Iterator[Table | Text]:
    """Yield rows as a table, or one field a line if the table is wider than `width` cells."""
    columns = [[Text(plain(header)), *(cell(row[at]) for row in rows)] for at, header in enumerate(headers)]
    widths = [max(text.cell_len for text in column) for column in columns]
    if sum(widths) + 3 * (len(columns) - 1) <= width or not rows:
        yield grid(headers, rows)
        return
    for number, row in enumerate(rows, 1):
        yield Text(f"row {number:,}", "dim")
        yield fields(
            (header, "" if value is None else value) for header, value in zip(headers, row, strict=True)
        )


def traces(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return traces, one a row, with the beginnings of their ids."""
    headers = ("trace", "start", "duration", "name", "service", "spans", "errors", "tokens")
    return grid(
        headers,
        [
            (
                row["trace_id"][:TRACE_SHOWN],
                moment(row["start_ns"]).partition(".")[0],
                duration(row["duration_ns"]),
                row["name"],
                row["service"],
                row["span_count"],
                row["error_count"] or None,
                (row["input_tokens"] or 0) + (row["output_tokens"] or 0) or None,
            )
            for row in rows
        ],
        ids=("trace", "start"),
    )


def cell(value: Any) -> Text:
    """Return one value as terminal-safe text; an empty text for None."""
    match value:
        case Text():
            return value
        case None:
            return Text("")
        case bool():
            return Text(str(value).lower())
    return Text(plain(str(value)))


def fields(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Return names and values side by side, without the None values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            table.add_row(Text(plain(name)), cell(value))
    return table


def size(count: float) -> str:
    """Return a byte count in a suitable unit: `512 B`, `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(ns: int) -> str:
    """Return nanoseconds in a suitable unit: `850 ns`, `1.20 ms`, `3.5 s`, `2 min 5 s`."""
    if abs(ns) >= 60_000_000_000:
        minutes, seconds = divmod(ns // 1_000_000_000, 60)
        return f"{minutes} min {seconds} s"
    for unit, factor in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if abs(ns) >= factor:
            return f"{ns / factor:.2f} {unit}"
    return f"{ns} ns"


def moment(ns: int) -> str:
    """Return nanoseconds since 1970 as UTC to the millisecond, or the plain number if it is out of the calendar's
    range."""
    try:
        time = datetime.fromtimestamp(ns // 1_000_000_000, UTC)
    except (OverflowError, OSError, ValueError):
        return f"{ns} ns"
    return f"{time:%Y-%m-%d %H:%M:%S}.{ns % 1_000_000_000 // 1_000_000:03d}"


def tables(infos: Iterable[results.TableInfo]) -> Table:
    """Return the tables of a lake, one a row."""
    return grid(
        ("table", "rows", "parts", "size", "upper"),
        [(info.name, info.rows, info.parts, size(info.bytes), info.upper) for info in infos],
    )


def replicas(infos: Iterable[results.ReplicaInfo]) -> Table:
    """Return the replicas of the pipeline, one a row."""
    return grid(
        ("replica", "status", "frontier", "behind", "waiting", "won", "peers", "dropped", "moved"),
        [
            (
                info.name,
                info.status,
                info.frontier,
                info.transactions_behind,
                _waiting(info),
                info.batches_won,
                info.batches_of_peers,
                info.rows_dropped,
                info.moved_at[11:19],
            )
            for info in infos
        ],
        ids=("replica", "status", "moved"),
    )


def _waiting(info: results.ReplicaInfo) -> str:
    if not info.waiting_inputs:
        return "0"
    oldest = "" if info.oldest_waiting_s is None else f", {info.oldest_waiting_s:.1f} s"
    return f"{info.waiting_inputs:,} ({size(info.waiting_bytes)}{oldest})"


def replica_notes(infos: Iterable[results.ReplicaInfo]) -> Iterable[str]:
    """Yield a line for each problem of a replica."""
    for info in infos:
        if info.reason:
            between = " " if info.status == "waiting" else ": "
            yield plain(f"{info.name} is {info.status}{between}{info.reason}")
        if info.namesake:
            yield plain(f"{info.name} is not unique: {info.namesake} uses it too; see --replica")


def replica_run(info: results.ReplicaInfo, totals: Mapping[str, int]) -> Table:
    """Return the totals of a replica's run."""
    spans = f"{totals['spans_read']:,} read, {totals['spans_new']:,} new"
    spans += f", {totals['spans_replaced']:,} replaced, {totals['spans_repeated']:,} repeated"
    return fields(
        [
            ("replica", info.name),
            ("transactions", f"{totals['transactions']:,}, {totals['recovered']:,} of them begun by others"),
            ("spans", spans),
            ("batches", f"{info.batches_won:,} won, {info.batches_of_peers:,} of peers"),
            ("rows dropped", f"{info.rows_dropped:,} below the upper"),
            ("bad inputs", totals["bad_inputs"] or None),
            ("failures", info.failures or None),
        ]
    )


def inbox(info: results.InboxInfo) -> Text:
    """Return a line about the pending input of the inbox."""
    if info.oldest_s is None:
        return Text("The inbox is empty.")
    many = "segment waits" if info.segments == 1 else "segments wait"
    return Text(
        f"{info.segments:,} {many} in the inbox ({size(info.bytes)}), the oldest for {info.oldest_s:.1f} s."
    )


def ingest_report(report: results.IngestReport) -> Table:
    """Return the result of an ingest."""
    seconds = max(report.seconds, 1e-3)
    speed = (
        f"{report.spans_read / seconds:,.0f} spans/s, {report.input_bytes / 1e6 / seconds:.1f} MB/s as stored"
    )
    files = f"{report.files:,} ({size(report.input_bytes)})"
    if report.files_known:
        files += f", {report.files_known:,} of them ingested before"
    spans = f"{report.spans_read:,} read, {report.spans_new:,} new"
    spans += f", {report.spans_replaced:,} replaced, {report.spans_repeated:,} repeated"
    return fields(
        [
            ("files", files),
            ("spans", spans),
            ("traces", f"{report.traces_touched:,}"),
            ("transactions", _numbers(report.transactions)),
            ("recovered", _numbers(report.recovered) if report.recovered else None),
            ("commit", report.commit or _no_commit(report)),
            ("engine", report.engine or None),
            ("time", f"{report.seconds:.1f} s, {speed}"),
            ("bad files", len(report.bad) or None),
            ("set aside", len(report.set_aside) or None),
        ]
    )


def _no_commit(report: results.IngestReport) -> str:
    """Return why an ingest has no commit."""
    if report.open_transaction is None:
        return "none: there was nothing to commit"
    return f"none yet: transaction {report.open_transaction} is open until its client commits it"


def _numbers(numbers: Sequence[int]) -> str:
    """Return consecutive numbers as a range: `3 (5..7)`."""
    return f"{len(numbers)} ({numbers[0]}..{numbers[-1]})" if numbers else "0"


def bad_inputs(report: results.IngestReport) -> Table:
    """Return the problems of the inputs with their positions, and how many are not shown."""
    rows: list[tuple[str, Any, Any, str]] = []
    for bad in report.bad:
        rows += [(bad.path, problem.line, problem.offset, problem.reason) for problem in bad.problems]
        more = bad.problems_total - len(bad.problems)
        if more > 0:
            rows.append((bad.path, None, None, f"… and {more:,} more"))
    return grid(("file", "line", "offset", "reason"), rows)


def commits(infos: Iterable[results.CommitInfo]) -> Table:
    """Return a log, one commit a row."""
    return grid(
        ("commit", "created", "transaction", "committer", "stays", "message"),
        [
            (
                c.id[:COMMIT_SHOWN],
                c.created_at[:19].replace("T", " "),
                c.metadata.get("transaction"),
                c.committer,
                c.retention,
                c.message,
            )
            for c in infos
        ],
        ids=("commit", "created"),
    )


def reference(target: Mapping[str, Any] | None) -> str:
    """Return the target of an entry in short: a table's `as_of`, an index's manifest number, or a file's checksum and
    size."""
    match target:
        case None:
            return ""
        case {"type": "table", "as_of": as_of}:
            return str(as_of)
        case {"type": "index", "manifest": manifest}:
            return str(manifest).rpartition("/")[2].removesuffix(".json")
        case {"sha256": sha256, "size_bytes": size_bytes}:
            return f"{sha256[:COMMIT_SHOWN]}, {size(size_bytes)}"
    return str(target)


def changes(entries: Iterable[results.EntryChange]) -> Table:
    """Return the entries that differ, one a row."""
    rows = [
        (
            Text(entry.change, _CHANGE_STYLES[entry.change]),
            entry.path,
            " → ".join(filter(None, (reference(entry.before), reference(entry.after)))),
        )
        for entry in entries
    ]
    return grid(("change", "entry", "names"), rows, ids=("change",))


def conflicts(paths: Iterable[results.MergeConflict]) -> Table:
    """Return the conflicting entries of a merge, one a row."""
    rows = [(c.path, *(reference(side) or "not there" for side in (c.base, c.ours, c.theirs))) for c in paths]
    return grid(("entry", "before both", "dest", "source"), rows)


_CHANGE_STYLES: Final = {"added": "green", "changed": "yellow", "removed": "red", "damaged": "red"}


def hits(hits_of_search: Iterable[Hit]) -> Text:
    """Return hits, best first; each has its position, then the excerpt with the matches marked."""
    text = Text()
    for hit in hits_of_search:
        text.append(hit.id, "cyan")
        text.append(f"  {plain(hit.service or '-')}  ", "dim").append(plain(hit.name), "bold")
        detail = f"{hit.score:.2f}" if hit.score else moment(hit.start_ns)
        if hit.session_id:
            detail += f"  session {plain(hit.session_id)}"
        text.append(f"  {detail}\n    ", "dim").append(highlighted(hit.highlight)).append("\n")
    text.rstrip()
    return text


def highlighted(text: str) -> Text:
    """Return an excerpt with bold [[matches]]; the brackets stay, because some screens have no bold."""
    excerpt = Text(plain(text))
    excerpt.highlight_regex(r"\[\[.*?\]\]", "bold yellow")
    return excerpt


def verify_report(report: results.VerifyReport) -> Table:
    """Return the totals of a verification."""
    return fields(
        [
            ("commits", f"{report.commits:,}"),
            ("transactions", f"{report.transactions:,}"),
            ("parts", f"{report.parts:,} of tables, {report.index_parts:,} of indexes"),
            ("files", f"{report.files:,}" if report.files else None),
            ("rows", f"{report.rows:,}"),
            ("read", size(report.bytes_read)),
            ("set aside", len(report.set_aside) or None),
            ("findings", len(report.findings)),
        ]
    )


def findings(report: results.VerifyReport) -> Table:
    """Return the findings of a verification, one a row."""
    rows = [(f.kind, f.what, f.path, f.detail) for f in report.findings]
    return grid(("kind", "what", "path", "detail"), rows)


def compact_reports(reports: Sequence[results.CompactReport]) -> Table:
    """Return the results of compaction, one table a row."""
    headers = ("table", "batches", "parts before", "parts after", "read", "written", "readable from")
    rows = [
        (
            report.table,
            report.batches,
            report.parts_before,
            report.parts_after,
            size(report.read_bytes),
            size(report.written_bytes),
            f"transaction {report.since}",
        )
        for report in reports
    ]
    return grid(headers, rows)


def gc_reports(reports: Sequence[results.GcReport]) -> Table:
    """Return the deletions of garbage collection, one table a row."""
    headers = ("table", "replaced", "orphans", "bytes", "held by readers")
    return grid(headers, [(r.table, r.replaced, r.orphans, size(r.bytes), r.held) for r in reports])


def gc_damage(reports: Sequence[results.GcReport]) -> list[str]:
    """Return a line for each thing that garbage collection could not read."""
    return [
        f"{plain(report.table)}: {plain(what)} Objects that it may reference were not collected."
        for report in reports
        for what in report.damage
    ]


_STATUS_STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "bold red"}


def diagnosis(findings: Diagnosis) -> Table:
    """Return the checks of `doctor`, one a row, each problem followed by its fix."""
    rows = [
        (
            checked.check,
            Text(checked.status, _STATUS_STYLES[checked.status]),
            _check_text(checked),
            f"{checked.seconds:.1f} s",
        )
        for checked in findings.checks
    ]
    table = grid(("check", "status", "message", "time"), rows, ids=("check", "status", "time"))
    table.columns[-1].justify = "right"
    return table


def _check_text(checked: CheckResult) -> Text:
    text = Text(plain(checked.message))
    return text.append(f"\n→ {plain(checked.mend)}", _STATUS_STYLES["warning"]) if checked.mend else text


def archive_plan(due: Sequence[ArchiveDue]) -> Table:
    """Return what the next pass would archive, one experiment a row."""
    headers = ("experiment", "workspace", "hot for", "set for", "at once", "due", "bytes", "problem")
    return grid(
        headers,
        [
            (
                each.experiment_id,
                each.workspace,
                each.retention or "ever",
                each.source or "",
                "yes" if each.is_now else "",
                f"{each.traces:,}",
                size(each.size_bytes),
                each.problem or "",
            )
            for each in due
        ],
    )


def archive_status(settings: ArchiveSettings, space: ArchiveSpace) -> Table:
    """Return the totals of both tiers and the archive settings."""
    free = f", {size(space.free_bytes)} of it free" if space.free_bytes else ""
    return fields(
        [
            ("hot", f"{space.hot_traces:,} traces, {size(space.hot_bytes)} of OTLP"),
            ("archived", f"{space.archived_traces:,} traces, {size(space.archived_bytes)} in the repository"),
            ("failed", f"{space.failed_traces:,} traces"),
            ("unfinished", f"{space.uploads:,} uploads, for `tracelake archive sweep`"),
            ("database", f"{size(space.database_bytes)}{free}"),
            *_settings(settings),
        ]
    )


def archive_settings(settings: ArchiveSettings) -> Table:
    """Return the archive settings of a lake."""
    return fields(_settings(settings))


def _settings(settings: ArchiveSettings) -> list[tuple[str, str]]:
    default = settings.default_retention and f"{settings.default_retention}, the default"
    return [
        ("layout", settings.layout),
        (
            "repository",
            settings.location or ("the tables" if settings.layout == "lake" else "archive/ in the lake"),
        ),
        ("retention", settings.retention or default or "none: traces stay hot"),
        ("longer for", ", ".join(settings.allowlist) or "no experiment"),
    ]


def transactions(infos: Sequence[TransactionInfo]) -> Table:
    """Return transactions, one a row."""
    headers = ("transaction", "state", "sealed", "committed", "inputs", "spans", "new", "seconds", "commit")
    return grid(
        headers,
        [
            (
                str(info.transaction),
                f"{info.state}{', trimmed' if info.trimmed else ', damaged record' if info.damaged else ''}",
                _time(info.sealed_at),
                _time(info.committed_at),
                _count(info.inputs),
                _count(info.spans_read),
                _count(info.spans_new),
                _stages(info),
                (info.commit or "")[:12],
            )
            for info in infos
        ],
    )


def about(account: TransactionAccount) -> Table:
    """Return the recorded facts of one transaction."""
    info = account.info
    rows = [
        ("transaction", str(info.transaction)),
        ("state", info.state),
        ("commit", info.commit or "none"),
        ("begun", _time(info.began_at)),
        ("sealed", _time(info.sealed_at)),
        ("committed", f"{_time(info.committed_at)}{f' by {plain(account.by)}' if account.by else ''}"),
        ("of client", plain(info.client)),
        ("steps", _count(info.steps)),
        ("inputs", _count(info.inputs)),
        ("spans", _spans(info)),
        ("seconds", _stages(info)),
        ("also in", "; ".join(map(_output, account.outputs))),
    ]
    return fields([(name, value) for name, value in rows if value])


def inputs(account: TransactionAccount) -> Table:
    """Return the inputs of a transaction, one a row."""
    rows = [
        (
            each.source,
            plain(each.path) + (f" … {plain(each.last_path)}" if each.last_path else ""),
            _count(each.inputs),
            size(each.size_bytes),
            _count(each.records),
            _count(each.spans),
            _count(each.problems) if each.problems else "",
            (each.sha256 or "")[:16],
        )
        for each in account.inputs
    ]
    if account.inputs_total > len(account.inputs):
        rows.append(("…", f"{account.inputs_total - len(account.inputs):,} more", "", "", "", "", "", ""))
    return grid(("source", "input", "inputs", "read", "payloads", "spans", "problems", "sha256"), rows)


def parts(account: TransactionAccount) -> Table:
    """Return the table and index parts that contain the transaction's rows."""
    rows = []
    for of in (*account.tables, *([account.index] if account.index else [])):
        alone = of.upper - of.lower == 1
        merged = "" if alone else f"put together with {of.lower} to {of.upper - 1}"
        rows += [(of.name, path, _count(number), merged) for path, number in of.parts]
        if of.parts_total > len(of.parts):
            rows.append((of.name, f"{of.parts_total - len(of.parts):,} more", "", merged))
    return grid(("of", "part", "rows", ""), rows)


def replayed(report: ReplayReport) -> Table:
    """Return what each source delivered originally and in the replay."""
    headers = ("source", "inputs", "payloads", "spans", "payloads now", "spans now", "gone", "difference")
    return grid(
        headers,
        [
            (
                each.source,
                _count(each.inputs),
                _count(each.records),
                _count(each.spans),
                _count(each.read_records),
                _count(each.read_spans),
                _count(each.gone),
                "yes" if each.difference else "",
            )
            for each in report.sources
        ],
    )


def _output(output: OutputAccount) -> str:
    text = f"{plain(output.name)} ({plain(output.to)})"
    if output.messages is None:
        return text
    places = (f"offsets {at.start} to {at.stop - 1} of partition {at.partition}" for at in output.offsets)
    return ", ".join((f"{text}: {output.messages:,} messages", *places))


def _spans(info: TransactionInfo) -> str:
    if info.spans_new is None:
        return "" if info.spans_read is None else f"{info.spans_read:,} read"
    return (
        f"{info.spans_new:,} new, {info.spans_replaced:,} replaced, {info.spans_repeated:,} repeated, "
        f"of {info.traces:,} traces"
    )


def _stages(info: TransactionInfo) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in info.stages_s.items())


def _time(at: str | None) -> str:
    return (at or "")[:23].replace("T", " ")


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def sources(infos: Iterable[SourceInfo]) -> Table:
    """Return the sources of a lake, one a row."""
    return grid(
        ("source", "state", "lag", "taken", "a second", "address"),
        [
            (
                info.name if info.added or not info.address else "(watched)",
                info.state,
                _lag(info),
                f"{info.taken_inputs:,} ({size(info.taken_bytes)})",
                size(info.bytes_per_s),
                info.address or None,
            )
            for info in infos
        ],
        ids=("source", "state"),
    )


def _lag(info: SourceInfo) -> str | None:
    if info.waiting is None:
        return None
    if not info.waiting:
        return "0"
    more = [] if info.waiting_bytes is None else [size(info.waiting_bytes)]
    more += [] if info.oldest_waiting_s is None else [f"{info.oldest_waiting_s:.1f} s"]
    unit = info.unit.removesuffix("s") if info.waiting == 1 else info.unit
    return f"{info.waiting:,} {unit}" + (f" ({', '.join(more)})" if more else "")
