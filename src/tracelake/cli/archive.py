"""Commands that archive, delete and erase traces: passes, restores, deletions, the retention, and erasures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake._errors import TracelakeError, UsageError
from tracelake.cli import render
from tracelake.cli.command import Renderable, Rendered, command, plain_record
from tracelake.cli.keys import recorded
from tracelake.cli.options import MasterOption
from tracelake.cli.output import console, plain
from tracelake.limits import ARCHIVE_UPLOAD_GRACE_S, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX
from tracelake.results import ErasureCheck, ErasureReport

if TYPE_CHECKING:
    from tracelake.archive.model import ArchiveReport
    from tracelake.lake.lake import Lake

app = typer.Typer()
archive_app = typer.Typer(help="Archive traces from the hot tier, and restore them.")
app.add_typer(archive_app, name="archive")

TracesArgument = Annotated[list[str], typer.Argument(help="Ids of traces.")]


def _passed(report: ArchiveReport) -> Iterator[Renderable]:
    if report.dry_run:
        yield render.archive_plan(report.due[:PAGE_ROWS_DEFAULT])
        if len(report.due) > PAGE_ROWS_DEFAULT:
            yield f"{len(report.due) - PAGE_ROWS_DEFAULT:,} more experiments; --json lists all."
        yield "Nothing was archived."
    else:
        yield report.line
    for trace_id, reason in report.failures.items():
        yield plain(f"{trace_id} stays hot: {reason}")


@command(
    archive_app,
    "run",
    text=_passed,
    failed=lambda report: "failed" in report.fates,
    examples=["tracelake archive run", "tracelake archive run --older-than 7d --json"],
)
def run(
    lake: Lake,
    experiment: Annotated[
        str | None, typer.Option("--experiment", metavar="ID", help="Archive only this experiment.")
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="DURATION", help="Use this age instead of the retention."),
    ] = None,
    max_traces: Annotated[int | None, typer.Option(min=1, help="Archive at most this many traces.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; list the due traces.")] = False,
    master: MasterOption = None,
) -> ArchiveReport:
    """Archive all due traces in one pass.

    You may run it during servers, pipelines and other passes, and kill it at any step: each trace is either hot or
    archived as a whole. A trace that cannot be archived stays hot and is listed. The command exits with 1 if the
    repository failed.
    """
    return lake.archive.run(
        dry_run=dry_run, experiment=experiment, older_than=older_than, traces_max=max_traces, master=master
    )


def _plan(of: dict[str, Any]) -> Iterator[Renderable]:
    yield render.archive_plan(of["due"])
    if of["more"]:
        yield "More experiments have hot traces; --limit shows them."


@command(
    archive_app,
    "plan",
    text=_plan,
    json=lambda of: plain_record(of["due"]),
    examples=["tracelake archive plan", "tracelake archive plan --json"],
)
def plan(
    lake: Lake,
    limit: Annotated[
        int, typer.Option(min=1, max=PAGE_ROWS_MAX, help="Show at most this many experiments, largest first.")
    ] = PAGE_ROWS_DEFAULT,
) -> dict[str, Any]:
    """Show what the next pass would archive.

    For each experiment with hot traces: the effective retention, its origin, and the due traces.
    """
    due = lake.archive.plan(limit=limit + 1)
    return {"due": due[:limit], "more": len(due) > limit}


def _status(of: dict[str, Any]) -> Rendered:
    return render.archive_status(of["settings"], of["space"])


@command(
    archive_app,
    "status",
    text=_status,
    examples=["tracelake archive status", "tracelake archive status --json"],
)
def status(lake: Lake) -> dict[str, Any]:
    """Show how much is hot and how much is archived.

    Traces and bytes of both tiers, failed traces, and the size of the database. Later rows reuse the freed
    space; on SQLite, the file also shrinks after a pass if a quarter of it is free.
    """
    return {"settings": lake.archive.settings(), "space": lake.archive.space()}


def _restored(of: dict[str, Any]) -> Iterator[Renderable]:
    for trace_id, was_archived in of["restored"].items():
        yield plain(f"{trace_id} {'is hot again' if was_archived else 'was hot already'}")
    for trace_id, reason in of["failed"].items():
        yield plain(f"{trace_id} stays as it is: {reason}")


@command(
    archive_app,
    "restore",
    text=_restored,
    failed=lambda of: of["failed"],
    examples=["tracelake archive restore 4bf92f3577b34da6a3ce929d0e0e4736"],
)
def restore(lake: Lake, traces: TracesArgument) -> dict[str, Any]:
    """Restore archived traces to the hot tier.

    Restored traces accept spans again. The next pass may archive them again, so first give their experiment a longer
    retention. A trace whose archive is missing or damaged is listed and stays unchanged.
    """
    restored: dict[str, bool] = {}
    failed: dict[str, str] = {}
    for trace_id in traces:
        try:
            restored[trace_id] = lake.archive.restore(trace_id)
        except TracelakeError as error:
            failed[trace_id] = str(error)
    return {"restored": restored, "failed": failed}


def _marked(of: dict[str, Any]) -> Iterator[Renderable]:
    yield from map(plain, of["marked"])
    yield f"{len(of['marked'])} of {of['given']} traces were marked."


@command(
    archive_app,
    "retry",
    text=_marked,
    json=lambda of: of["marked"],
    examples=["tracelake archive retry 4bf92f3577b34da6a3ce929d0e0e4736"],
)
def retry(lake: Lake, traces: TracesArgument) -> dict[str, Any]:
    """Let the next pass retry traces that are marked as failed.

    A malformed trace could not be decoded. An incomplete trace has spans that the tables will never contain, because
    their input was discarded or damaged. In layout lake, spans that the tables lack stay hot; the other layouts
    archive the trace as it is.
    """
    return {"marked": lake.archive.retry(traces), "given": len(set(traces))}


def _deleted(of: dict[str, Any]) -> Iterator[Renderable]:
    yield from map(plain, of["deleted"])
    yield (
        f"{len(of['deleted'])} of {of['given']} traces deleted from the hot tier and the archive; tables and search "
        "keep their spans."
    )


@command(
    archive_app,
    "delete",
    text=_deleted,
    json=lambda of: of["deleted"],
    failed=lambda of: of["failed"],
    examples=["tracelake archive delete 4bf92f3577b34da6a3ce929d0e0e4736"],
)
def delete(lake: Lake, traces: TracesArgument) -> dict[str, Any]:
    """Delete traces from the hot tier and the archive repository.

    Prints the deleted traces. Tables, search index and copies elsewhere keep the spans; `tracelake erase` removes them
    there, too. Standard error lists the places from which the traces were removed, the places that keep copies, and
    each trace that was not deleted, with the reason.
    """
    failed: dict[str, str] = {}
    deleted = lake.archive.delete(traces, lambda trace_id, error: failed.update({trace_id: str(error)}))
    for line in _deletion_notes(traces, deleted, failed):
        console(stderr=True).print(plain(line), soft_wrap=True)
    return {"deleted": deleted, "given": len(set(traces)), "failed": failed}


def _deletion_notes(traces: list[str], deleted: list[str], failed: dict[str, str]) -> Iterator[str]:
    """Yield the lines for standard error, also with --json: where copies were removed, where others stay."""
    if deleted:
        from tracelake.archive.model import DELETION_KEPT, DELETION_REMOVED  # noqa: PLC0415  heavy

        for heading, places in (("Removed from", DELETION_REMOVED), ("Still in", DELETION_KEPT)):
            yield f"{heading}:"
            yield from (f"  {place}" for place in places)
    for trace_id in dict.fromkeys(traces):
        if trace_id not in deleted and trace_id not in failed:
            yield f"{trace_id} is not in the tracking store; nothing was removed"
    for trace_id, reason in failed.items():
        yield f"{trace_id} stays as it is: {reason}"


@command(
    archive_app,
    "sweep",
    text="{deleted} objects deleted.",
    examples=["tracelake archive sweep", "tracelake archive sweep --grace-minutes 5"],
)
def sweep(
    lake: Lake,
    grace_minutes: Annotated[
        float, typer.Option(min=0, help="Delete unfinished uploads that are older than this.")
    ] = ARCHIVE_UPLOAD_GRACE_S / 60,
) -> dict[str, Any]:
    """Delete leftovers of killed passes from the archive repository.

    Never deletes an object that a trace references, or an object with a foreign name.
    """
    return {"deleted": lake.archive.sweep(grace_minutes * 60)}


def _retention(of: dict[str, Any]) -> Iterator[Renderable]:
    if "settings" in of:
        yield render.archive_settings(of["settings"])
        return
    yield "It is set." if of["set"]["retention"] else "It is removed."
    for each in of["counts"]:
        source = f", set for the {each.source}" if each.source else ""
        yield plain(
            f"Traces of experiment {each.experiment_id} stay hot for {each.retention or 'ever'}{source}."
        )


@command(
    archive_app,
    "retention",
    text=_retention,
    json=lambda of: plain_record(of.get("settings") or of["set"]),
    examples=[
        "tracelake archive retention 30d",
        "tracelake archive retention --layout pack --location s3://bucket/archive",
        "tracelake archive retention --allow 7 --allow 9",
        "tracelake archive retention 1d --experiment 7",
    ],
)
def retention(
    lake: Lake,
    duration: Annotated[
        str | None, typer.Argument(help="Retention such as 30d, 12h or 5m; none keeps traces hot forever.")
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(metavar="lake|trace|pack", help=("Set the layout of traces archived from now on.")),
    ] = None,
    location: Annotated[
        str | None, typer.Option(metavar="URL", help="Set the repository of layouts trace and pack.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Set the complete list of experiments that may stay hot longer."),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="ID", help="Set it for this experiment alone.")
    ] = None,
    workspace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Set it for this workspace alone.")
    ] = None,
) -> dict[str, Any]:
    """Show or set the archive settings of a lake.

    Options that you omit stay unchanged. Without a retention, layout lake archives ten minutes after the last span,
    and the other layouts archive nothing. A workspace or an experiment may have a shorter retention, or a longer one
    if --allow lists it. Set it by DURATION with --experiment or --workspace; `none` removes it.
    """
    retention = "" if duration == "none" else duration
    if experiment is not None or workspace is not None:
        if retention is None or (layout, location, allow) != (None, None, None):
            raise UsageError("with --experiment or --workspace, give only a duration or none")
        lake.archive.set_retention(retention, experiment=experiment, workspace=workspace)
        return {
            "set": {"experiment": experiment, "workspace": workspace, "retention": retention or None},
            "counts": [each for each in lake.archive.retentions() if each.experiment_id == experiment],
        }
    if (duration, layout, location, allow) == (None, None, None, None):
        return {"settings": lake.archive.settings()}
    return {
        "settings": lake.archive.configure(
            layout=layout, location=location, retention=retention, allowlist=allow
        )
    }


class Action(StrEnum):
    """Action on existing erasures."""

    LIST = "list"
    SHOW = "show"
    RUN = "run"
    VERIFY = "verify"


def _shown(reports: Sequence[ErasureReport] | ErasureCheck) -> Iterator[Renderable]:
    if isinstance(reports, ErasureCheck):
        yield f"{reports.scanned:,} objects, records, rows and files were scanned: {reports.bytes:,} bytes."
        yield from (plain(f"{each.what} {each.path}: {each.detail}") for each in reports.findings)
        yield from (plain(f"not read: {each}") for each in reports.unread)
        if not reports.findings and not reports.unread:
            yield "None of the erased values is left."
        return
    if not reports:
        yield "There is no erasure to show or to continue."
    for report in reports:
        traces = "1 trace" if report.traces == 1 else f"{report.traces:,} traces"
        yield plain(f"{report.id} {report.state}: {traces}, by {report.criterion} {report.value}")
        if report.step is not None:
            yield f"  next: {report.step}"
        for place, count in report.removed.items():
            yield f"  removed: {count:,} {place}"
    if reports and reports[0].not_removed:
        yield "Not in the lake's reach:"
        yield from (f"  {place}" for place in reports[0].not_removed)
    if any(report.state == "open" for report in reports):
        yield "Readers no longer see the traces. `tracelake erase run` continues the removal of their bytes."


@command(
    app,
    "erase",
    text=_shown,
    failed=lambda result: isinstance(result, ErasureCheck) and (result.findings or result.unread),
    examples=[
        "tracelake erase --trace 4bf92f3577b34da6a3ce929d0e0e4736",
        "tracelake erase --user alice",
        "tracelake erase --where \"attributes['customer'] = '17'\" --json",
        "tracelake erase run",
        "tracelake erase verify 0c1f5a3be2d94f68 --value alice",
    ],
)
def erase(
    lake: Lake,
    action: Annotated[Action | None, typer.Argument(help="Act on existing erasures.")] = None,
    erasure: Annotated[str | None, typer.Argument(help="Id of an erasure.")] = None,
    trace: Annotated[str | None, typer.Option(metavar="ID", help="Erase this trace.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Erase the traces of a session.")] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", help="Erase the traces of a user.")] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="Erase the traces with a span that matches this DuckDB condition."
        ),
    ] = None,
    value: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="`verify` looks for this text, too; repeatable.")
    ] = None,
) -> list[ErasureReport] | ErasureCheck:
    """Erase whole traces from every commit, the search index, the hot tier and the archive.

    Readers stop seeing the traces at once. If the pipeline has input from before the request, the bytes go later:
    `erase run` continues all open erasures, `erase list` and `erase show` report them. `erase verify` scans every
    byte of the lake for the erased trace ids, and exits with 1 if one is left.
    """
    criteria = {"trace": trace, "session": session, "user": user, "where": where}
    if action is None:
        if erasure is not None:
            raise UsageError("name an action before the id: list, show, run or verify.")
        with recorded(
            lake, "erase", next((name for name, value in criteria.items() if value), "")
        ) as objects:
            report = lake.erase(trace=trace, session=session, user=user, where=where)
            objects.append(report.id)
        return [report]
    if any(value is not None for value in criteria.values()):
        raise UsageError(f"`erase {action}` acts on existing erasures; leave out what to erase.")
    if action is Action.RUN:
        return lake.erasures.run(erasure)
    if action in (Action.SHOW, Action.VERIFY) and erasure is None:
        raise UsageError(f"name the erasure to {action}; `tracelake erase list` lists all.")
    if action is Action.VERIFY and erasure is not None:
        return lake.erasures.verify(erasure, value or ())
    return lake.erasures.all() if erasure is None else [lake.erasures.get(erasure)]
