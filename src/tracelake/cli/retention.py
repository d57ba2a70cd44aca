"""Commands of the retention rules: list, set, remove, preview and apply them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake._errors import UsageError
from tracelake.cli import render
from tracelake.cli.command import Renderable, Rendered, command
from tracelake.cli.keys import command_user, recorded
from tracelake.cli.output import plain, progress_bar

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake
    from tracelake.lake.retention import RetentionReport
    from tracelake.tables.retention import RetentionRule

app = typer.Typer()
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


def _rule_json(rule: RetentionRule) -> dict[str, Any]:
    return rule.to_dict()


def _is_set(rule: RetentionRule) -> Renderable:
    return plain(f"Rule {rule.name}: {rule.condition}, kept for {rule.age}.")


def _is_removed(rule: RetentionRule) -> Renderable:
    return plain(f"Rule {rule.name} of workspace {rule.workspace} is removed.")


def _rules_json(rules: Sequence[RetentionRule]) -> list[dict[str, Any]]:
    return [each.to_dict() for each in rules]


@command(
    retention_app,
    "list",
    text=_rules,
    json=_rules_json,
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
    json=_rule_json,
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
        int | None,
        typer.Option(help="The lowest number decides first; default 100, or 1000 for all traces."),
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


@command(
    retention_app,
    "remove",
    text=_is_removed,
    json=_rule_json,
    examples=["tracelake retention remove checkout"],
)
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


def _report_json(report: RetentionReport) -> dict[str, Any]:
    return report.to_dict()


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
    json=_report_json,
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
    json=_report_json,
    examples=["tracelake retention apply", "tracelake retention apply --json"],
)
def apply(lake: Lake, now: NowOption = None) -> RetentionReport:
    """Delete the traces that the rules do not keep.

    You may run it during servers and pipelines, and kill it at any step: each trace is there or gone as a whole, and
    the next run finishes the rest. It deletes from tables, search index, hot tier and archive repository.
    """
    with progress_bar() as show_progress:
        return lake.retention.apply(_time(now), by=command_user(), progress=show_progress)
