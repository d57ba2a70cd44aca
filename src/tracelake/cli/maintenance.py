"""Commands that keep a lake small: compact, index rebuild, gc, and those of the retention rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake._errors import UsageError
from tracelake.cli import render
from tracelake.cli.command import Renderable, Rendered, command, plain_record
from tracelake.cli.keys import command_user, recorded
from tracelake.cli.options import TEXTS, VECTORS, DimensionsOption, MetricOption
from tracelake.cli.output import plain, progress_bar
from tracelake.limits import EPOCH_MIN_S
from tracelake.results import BackupReport, CompactReport, IndexReport

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake
    from tracelake.lake.retention import RetentionReport
    from tracelake.tables.retention import RetentionRule

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


app = typer.Typer()
index_app = typer.Typer(help="Maintain the full-text index.")
app.add_typer(index_app, name="index")


def _compacted(reports: Sequence[CompactReport]) -> Iterator[Renderable]:
    yield render.compact_reports(reports)
    if any(report.batches for report in reports):
        yield "`tracelake gc` deletes the replaced parts once no reader needs them."


@command(
    app,
    "compact",
    text=_compacted,
    examples=["tracelake compact", "tracelake compact --forget-before 4f2a91", "tracelake compact --json"],
)
def compact(
    lake: Lake,
    forget_before: Annotated[
        str | None,
        typer.Option(
            metavar="REF", help="Drop the table history before this commit, unless a branch or tag needs it."
        ),
    ] = None,
) -> list[CompactReport]:
    """Compact the rows of each table into few sorted parts.

    Pipelines compact as they run; this command does all of it at once, during reads and writes. Every commit stays
    readable, unless you drop history with --forget-before. `tracelake gc` then frees the space.
    """
    with progress_bar() as show:
        return lake.maintenance.compact(forget_before=forget_before, progress=show)


def _rebuilt(report: IndexReport) -> Iterator[Renderable]:
    yield (
        f"The index has {report.documents:,} documents in {report.parts:,} parts now, in commit {report.commit[:12]}. "
        f"Texts become words as: {report.text}."
    )
    if report.vectors or report.without_vector:
        without = f"; {report.without_vector:,} should have one but do not" if report.without_vector else ""
        yield f"{report.vectors:,} spans have a vector{without}."


@command(
    index_app,
    "rebuild",
    text=_rebuilt,
    examples=[
        "tracelake index rebuild",
        "tracelake index rebuild --text cjk",
        "tracelake index rebuild --vectors my_vectors:embed",
        "tracelake index rebuild --vectors attributes.embedding --dimensions 384 --json",
    ],
)
def index_rebuild(
    lake: Lake,
    text: Annotated[
        str | None, typer.Option(metavar=TEXTS, help="How texts become words from now on; by default as now.")
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar=VECTORS,
            help="Build vectors for searches by meaning with this function or from this attribute, or none; by "
            "default the current setting stays.",
        ),
    ] = None,
    dimensions: DimensionsOption = None,
    metric: MetricOption = None,
) -> IndexReport:
    """Rebuild the search index.

    Builds it from table spans, during reads and writes, and publishes it in one commit. Run it if the index is
    damaged, has too many parts, was built by another version, or needs other vectors or another text analyzer. Scores
    no longer count rows that were replaced before.
    """
    with progress_bar() as show:
        return lake.maintenance.rebuild_index(
            text=text, vectors=vectors, dimensions=dimensions, metric=metric, progress=show
        )


def _collected(of: dict[str, Any]) -> Iterator[Renderable]:
    yield render.gc_reports(of["reports"])
    yield from render.gc_damage(of["reports"])
    if expired := sum(report.expired for report in of["reports"]):
        verb = "would expire" if of["dry_run"] else "expired"
        yield f"{expired:,} commits {verb}; `tracelake log` shows the others, and `tracelake tag` keeps one."
    if of["dry_run"]:
        yield "Nothing was deleted."


@command(
    app,
    "gc",
    text=_collected,
    json=lambda of: plain_record(of["reports"]),
    failed=lambda of: any(report.damage for report in of["reports"]),
    examples=["tracelake gc --dry-run", "tracelake gc", "tracelake gc --epoch-minutes 0 --json"],
)
def gc(
    lake: Lake,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing; list what would be deleted.")
    ] = False,
    epoch_minutes: Annotated[
        float,
        typer.Option(
            min=0,
            help="Set the minimum time between collections that delete leftovers: the third one after their "
            "upload deletes them. Slower writers must upload again.",
        ),
    ] = EPOCH_MIN_S / 60,
) -> dict[str, Any]:
    """Delete unreferenced files, expired commits and old journal records.

    Commits of transactions expire after history_age (7d); the last of each day stays for history_daily (30d). People's
    commits, tags, heads of branches, and commits that datasets name stay.

    Deletes parts that compaction replaced and no reader holds, and leftovers of killed writers. Also erases journal
    records of transactions before the newest 10,000 (TRACELAKE_JOURNAL_TRANSACTIONS, or journal_transactions in
    tracelake.toml). Safe during reads and writes. Files that a damaged record may reference stay; gc lists the damage
    and exits with 1.
    """
    from tracelake._settings import load_settings

    reports = lake.maintenance.gc(
        dry_run=dry_run,
        epoch_min_s=epoch_minutes * 60,
        journal_transactions=load_settings().journal_transactions,
    )
    return {"reports": reports, "dry_run": dry_run}


def _copied(report: BackupReport) -> Iterator[Renderable]:
    yield (
        f"{report.place}: {report.objects:,} objects, {report.records:,} records, "
        f"{report.tracking_rows:,} rows of the tracking store."
    )
    verified = report.verified
    yield "The copy is intact." if verified.ok else render.findings(verified)
    yield from (plain(f"Not checked: {each}.") for each in verified.unread)


def _is_damaged(report: BackupReport) -> bool:
    return not report.verified.ok


@command(
    app,
    "backup",
    text=_copied,
    failed=_is_damaged,
    examples=["tracelake backup /backup/2026-11-27", "tracelake backup /backup/today --lake ./lake --json"],
)
def backup(
    lake: Lake, directory: Annotated[str, typer.Argument(help="Empty or new directory.")]
) -> BackupReport:
    """Copy the lake while servers and pipelines work on it.

    The copy has everything that was acknowledged before the command began. It is a lake of its own: its databases
    are SQLite files, also if those of the lake are in PostgreSQL. It is verified at the end; exits with 1 if that
    finds anything. A lake whose metadata is `objects` has no snapshot and is refused."""
    with progress_bar() as show:
        return lake.backup(directory, progress=show)


@command(
    app,
    "restore-backup",
    text=_copied,
    failed=_is_damaged,
    examples=[
        "tracelake restore-backup /backup/2026-11-27 ./lake",
        "tracelake restore-backup /backup/today s3://bucket/lake --metadata postgresql://host/database --json",
    ],
)
def restore_backup(
    backup: Annotated[str, typer.Argument(metavar="BACKUP", help="Directory that `tracelake backup` wrote.")],
    place: Annotated[str, typer.Argument(metavar="DIR|URL", help="Empty place for the lake.")],
    metadata: Annotated[
        str | None, typer.Option(metavar="URL", help="PostgreSQL for the metadata; else SQLite.")
    ] = None,
    tracking: Annotated[
        str | None,
        typer.Option(metavar="URL", help="PostgreSQL for the tracking store; else where the metadata is."),
    ] = None,
) -> BackupReport:
    """Make a lake from a backup, in an empty place, and verify it.

    The original must not work any more: both have the same identity, and share an archive repository outside of
    the lake. Exits with 1 if `verify` finds anything."""
    from tracelake.lake.backup import restore_backup as restore

    with progress_bar() as show:
        return restore(backup, place, metadata=metadata, tracking=tracking, progress=show)


retention_app = typer.Typer(help="Delete old traces by rules.")
app.add_typer(retention_app, name="retention")

WorkspaceOption = Annotated[
    str, typer.Option("--workspace", metavar="NAME", help="The workspace of the rule; * for all.")
]
NowOption = Annotated[
    str | None,
    typer.Option("--now", metavar="TIME", help="Compute ages at this time, ISO 8601, instead of now."),
]


def _rules(rules: Sequence[RetentionRule]) -> Rendered:
    if not rules:
        return "No rules: traces are kept forever. `tracelake retention set` adds a rule."
    return render.grid(
        ("priority", "rule", "workspace", "matches", "kept for", "set by", "set at"),
        [
            (each.priority, each.name, each.workspace, each.condition, each.age, each.by, each.set_at[:16])
            for each in rules
        ],
        ids=("rule",),
    )


def _is_set(rule: RetentionRule) -> Renderable:
    return plain(f"Rule {rule.name}: {rule.condition}, kept for {rule.age}.")


def _is_removed(rule: RetentionRule) -> Renderable:
    return plain(f"Rule {rule.name} of workspace {rule.workspace} is removed.")


@command(
    retention_app,
    "list",
    text=_rules,
    examples=["tracelake retention list", "tracelake retention list --json"],
)
def list_rules(
    lake: Lake,
    workspace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the rules that apply to this workspace.")
    ] = None,
) -> list[RetentionRule]:
    """List the retention rules in the order in which they decide.

    The first rule that matches any span of a trace decides about the whole trace. Traces that no rule matches are
    kept forever.
    """
    return lake.retention.rules(workspace)


@command(
    retention_app,
    "set",
    text=_is_set,
    examples=[
        "tracelake retention set errors 1y --where status:error",
        "tracelake retention set rated 1y --feedback",
        "tracelake retention set checkout 180d --service checkout",
        "tracelake retention set rest 30d",
    ],
)
def set_rule(
    lake: Lake,
    name: Annotated[str, typer.Argument(help="Its name; an existing rule is replaced.")],
    age: Annotated[
        str, typer.Argument(help="How long traces are kept after their last span: 12h, 30d, 1y or forever.")
    ],
    where: Annotated[
        str, typer.Option("--where", metavar="QUERY", help="Traces with a span that this query finds.")
    ] = "",
    service: Annotated[str, typer.Option(metavar="NAME", help="Traces with a span of this service.")] = "",
    experiment: Annotated[str, typer.Option(metavar="ID", help="Traces of this experiment.")] = "",
    feedback: Annotated[bool, typer.Option("--feedback", help="Traces with assessments.")] = False,
    priority: Annotated[
        int | None, typer.Option(help="The lowest number decides first; default 100, or 1000 for all traces.")
    ] = None,
    workspace: WorkspaceOption = "*",
) -> RetentionRule:
    """Add a retention rule, or replace the rule of this name.

    Conditions are combined. Preview the rules before they are applied: servers and pipelines apply them once an
    hour.
    """
    with recorded(lake, "retention set", f"{name} of workspace {workspace}, {age}"):
        return lake.retention.set(
            name,
            age,
            query=where,
            service=service,
            experiment=experiment,
            feedback=feedback,
            priority=priority,
            workspace=workspace,
            by=command_user(),
        )


@command(retention_app, "remove", text=_is_removed, examples=["tracelake retention remove checkout"])
def remove_rule(
    lake: Lake, name: Annotated[str, typer.Argument(help="Its name.")], workspace: WorkspaceOption = "*"
) -> RetentionRule:
    """Remove a retention rule. No trace is deleted or restored by that."""
    with recorded(lake, "retention remove", f"{name} of workspace {workspace}"):
        return lake.retention.remove(name, workspace)


def report_lines(report: RetentionReport) -> Iterator[Renderable]:
    """Yield the traces of a report by rule and day, its totals, and what stays."""
    if report.due:
        yield render.grid(
            ("workspace", "rule", "last span", "traces", "spans", "about"),
            [
                (each.workspace, each.rule, each.day, each.traces, each.spans, render.size(each.size_bytes))
                for each in report.due
            ],
        )
    spans = report.spans_deleted if report.applied else report.spans
    total = f"{report.traces:,} {'trace' if report.traces == 1 else 'traces'}"
    outcome = "were deleted" if report.applied else "are due"
    yield f"{total}, {spans:,} spans, about {render.size(report.size_bytes)} {outcome}."
    for reason, traces in sorted(report.stays.items()):
        yield plain(f"{traces:,} due traces stay: {reason} refers to them.")
    if report.traces:
        yield "Older commits show deleted traces until they expire."
    if report.traces and report.readable_at:
        yield plain(f"They stay readable at the commits of tags {', '.join(report.readable_at)}.")


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        now = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--now needs a time such as 2026-01-31T00:00:00+00:00, not {text!r}") from error
    if now.tzinfo is None:
        raise UsageError("--now needs a time with a zone, such as 2026-01-31T00:00:00+00:00")
    return now


@command(
    retention_app,
    "preview",
    text=report_lines,
    examples=[
        "tracelake retention preview",
        "tracelake retention preview --now 2027-01-01T00:00+00:00 --json",
    ],
)
def preview(
    lake: Lake,
    workspace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the traces of this workspace.")
    ] = None,
    now: NowOption = None,
) -> RetentionReport:
    """Show what the rules would delete, by rule and day, and delete nothing."""
    return lake.retention.preview(_time(now), workspace)


@command(
    retention_app,
    "apply",
    text=report_lines,
    examples=["tracelake retention apply", "tracelake retention apply --json"],
)
def apply(lake: Lake, now: NowOption = None) -> RetentionReport:
    """Delete the traces that the rules do not keep.

    You may run it during servers and pipelines, and kill it at any step: each trace is there or gone as a whole, and
    the next run finishes the rest. It deletes from tables, search index, hot tier and archive repository.
    """
    with progress_bar() as show_progress:
        return lake.retention.apply(_time(now), by=command_user(), progress=show_progress)
