"""Commands of the archive: run and plan passes, restore and delete traces, set the retention."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tracelake._errors import TracelakeError, UsageError
from tracelake.cli import render
from tracelake.cli.options import JsonOption, LakeOption, MasterOption, format_examples, opened
from tracelake.cli.output import FAILED, console, plain, print_json
from tracelake.limits import ARCHIVE_UPLOAD_GRACE_S, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX

app = typer.Typer()
archive_app = typer.Typer(help="Archive traces from the hot tier, and restore them.")
app.add_typer(archive_app, name="archive")

ExperimentOption = Annotated[
    str | None, typer.Option("--experiment", metavar="ID", help="Archive only this experiment.")
]
OlderOption = Annotated[
    str | None,
    typer.Option("--older-than", metavar="DURATION", help="Use this age instead of the retention."),
]


@archive_app.command(
    "run", epilog=format_examples("tracelake archive run", "tracelake archive run --older-than 7d --json")
)
def run(
    lake: LakeOption = None,
    experiment: ExperimentOption = None,
    older_than: OlderOption = None,
    max_traces: Annotated[int | None, typer.Option(min=1, help="Archive at most this many traces.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; list the due traces.")] = False,
    master: MasterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Archive all due traces in one pass.

    You may run it during servers, pipelines and other passes, and kill it at any step: each trace is either hot or
    archived as a whole. A trace that cannot be archived stays hot and is listed. The command exits with 1 if the
    repository failed.
    """
    with opened(lake) as open_lake:
        report = open_lake.archive.run(
            dry_run=dry_run,
            experiment=experiment,
            older_than=older_than,
            traces_max=max_traces,
            master=master,
        )
    if as_json:
        print_json(asdict(report))
    else:
        if dry_run:
            console().print(render.archive_plan(report.due[:PAGE_ROWS_DEFAULT]))
            if len(report.due) > PAGE_ROWS_DEFAULT:
                console().print(
                    f"{len(report.due) - PAGE_ROWS_DEFAULT:,} more experiments; --json lists all."
                )
            console().print("Nothing was archived.")
        else:
            console().print(report.line, soft_wrap=True)
        for trace_id, reason in report.failures.items():
            console().print(plain(f"{trace_id} stays hot: {reason}"), soft_wrap=True)
    if "failed" in report.fates:
        raise typer.Exit(FAILED)


@archive_app.command(
    "plan", epilog=format_examples("tracelake archive plan", "tracelake archive plan --json")
)
def plan(
    lake: LakeOption = None,
    limit: Annotated[
        int, typer.Option(min=1, max=PAGE_ROWS_MAX, help="Show at most this many experiments, largest first.")
    ] = PAGE_ROWS_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show what the next pass would archive.

    For each experiment with hot traces: the effective retention, its origin, and the due traces.
    """
    with opened(lake) as open_lake:
        due = open_lake.archive.plan(limit=limit + 1)
    if as_json:
        print_json([asdict(each) for each in due[:limit]])
        return
    console().print(render.archive_plan(due[:limit]))
    if len(due) > limit:
        console().print("More experiments have hot traces; --limit shows them.")


@archive_app.command(
    "status", epilog=format_examples("tracelake archive status", "tracelake archive status --json")
)
def status(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Show how much is hot and how much is archived.

    Traces and bytes of both tiers, failed traces, and the size of the database. On SQLite, the file shrinks after
    each pass. On PostgreSQL, later rows reuse the freed space.
    """
    with opened(lake) as open_lake:
        settings, space = open_lake.archive.settings(), open_lake.archive.space()
    if as_json:
        print_json({"settings": asdict(settings), "space": asdict(space)})
    else:
        console().print(render.archive_status(settings, space))


@archive_app.command(
    "restore", epilog=format_examples("tracelake archive restore 4bf92f3577b34da6a3ce929d0e0e4736")
)
def restore(
    traces: Annotated[list[str], typer.Argument(help="Ids of traces.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore archived traces to the hot tier.

    Restored traces accept spans again. The next pass may archive them again, so first give their experiment a longer
    retention. A trace whose archive is missing or damaged is listed and stays unchanged.
    """
    restored: dict[str, bool] = {}
    failed: dict[str, str] = {}
    with opened(lake) as open_lake:
        for trace_id in traces:
            try:
                restored[trace_id] = open_lake.archive.restore(trace_id)
            except TracelakeError as error:
                failed[trace_id] = str(error)
    if as_json:
        print_json({"restored": restored, "failed": failed})
    else:
        for trace_id, was_archived in restored.items():
            console().print(plain(f"{trace_id} {'is hot again' if was_archived else 'was hot already'}"))
        for trace_id, reason in failed.items():
            console().print(plain(f"{trace_id} stays as it is: {reason}"), soft_wrap=True)
    if failed:
        raise typer.Exit(FAILED)


@archive_app.command(
    "retry", epilog=format_examples("tracelake archive retry 4bf92f3577b34da6a3ce929d0e0e4736")
)
def retry(
    traces: Annotated[list[str], typer.Argument(help="Ids of traces.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the next pass retry traces that are marked as failed.

    A malformed trace could not be decoded. An incomplete trace has spans that the tables will never contain, because
    their input was discarded or damaged. In layout lake, spans that the tables lack stay hot; the other layouts
    archive the trace as it is.
    """
    with opened(lake) as open_lake:
        marked = open_lake.archive.retry(traces)
    if as_json:
        print_json(marked)
        return
    for trace_id in marked:
        console().print(plain(trace_id))
    console().print(f"{len(marked)} of {len(set(traces))} traces were marked.")


@archive_app.command(
    "delete", epilog=format_examples("tracelake archive delete 4bf92f3577b34da6a3ce929d0e0e4736")
)
def delete(
    traces: Annotated[list[str], typer.Argument(help="Ids of traces.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete traces from the hot tier and the archive repository.

    Prints the deleted traces, and those that stay because their repository cannot be opened. This does not erase all
    copies: tables, search index and copies elsewhere keep the spans. Standard error lists what was removed and what
    stays.
    """
    failed: dict[str, str] = {}
    with opened(lake) as open_lake:
        deleted = open_lake.archive.delete(
            traces, lambda trace_id, error: failed.update({trace_id: str(error)})
        )
    if as_json:
        print_json(deleted)
    else:
        for trace_id in deleted:
            console().print(plain(trace_id))
        console().print(f"{len(deleted)} of {len(set(traces))} traces deleted.")
    errors = console(stderr=True)
    if deleted:
        from tracelake.archive.model import DELETION_KEPT, DELETION_REMOVED  # noqa: PLC0415  heavy

        for heading, places in (("Removed from", DELETION_REMOVED), ("Still in", DELETION_KEPT)):
            errors.print(f"{heading}:")
            for place in places:
                errors.print(plain(f"  {place}"), soft_wrap=True)
    for trace_id in dict.fromkeys(traces):
        if trace_id not in deleted and trace_id not in failed:
            errors.print(
                plain(f"{trace_id} is not in the tracking store; nothing was removed"), soft_wrap=True
            )
    for trace_id, reason in failed.items():
        errors.print(plain(f"{trace_id} stays as it is: {reason}"), soft_wrap=True)
    if failed:
        raise typer.Exit(FAILED)


@archive_app.command(
    "sweep", epilog=format_examples("tracelake archive sweep", "tracelake archive sweep --grace-minutes 5")
)
def sweep(
    lake: LakeOption = None,
    grace_minutes: Annotated[
        float, typer.Option(min=0, help="Delete unfinished uploads that are older than this.")
    ] = ARCHIVE_UPLOAD_GRACE_S / 60,
    as_json: JsonOption = False,
) -> None:
    """Delete leftovers of killed passes from the archive repository.

    Never deletes an object that a trace references, or an object with a foreign name.
    """
    with opened(lake) as open_lake:
        deleted = open_lake.archive.sweep(grace_minutes * 60)
    if as_json:
        print_json({"deleted": deleted})
    else:
        console().print(f"{deleted} objects deleted.")


@archive_app.command(
    "retention",
    epilog=format_examples(
        "tracelake archive retention 30d",
        "tracelake archive retention --layout pack --location s3://bucket/archive",
        "tracelake archive retention --allow 7 --allow 9",
        "tracelake archive retention 1d --experiment 7",
    ),
)
def retention(
    duration: Annotated[
        str | None, typer.Argument(help="Retention such as 30d, 12h or 5m; none keeps traces hot forever.")
    ] = None,
    lake: LakeOption = None,
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
    as_json: JsonOption = False,
) -> None:
    """Show or set the archive settings of a lake.

    Options that you omit stay unchanged. A workspace or an experiment may have a shorter retention, or a longer one
    if --allow lists it. Set it by DURATION with --experiment or --workspace; `none` removes it.
    """
    retention = "" if duration == "none" else duration
    if experiment is not None or workspace is not None:
        if retention is None or (layout, location, allow) != (None, None, None):
            raise UsageError("with --experiment or --workspace, give only a duration or none")
        with opened(lake) as open_lake:
            open_lake.archive.set_retention(retention, experiment=experiment, workspace=workspace)
            counts = [each for each in open_lake.archive.retentions() if each.experiment_id == experiment]
        if as_json:
            print_json({"experiment": experiment, "workspace": workspace, "retention": retention or None})
            return
        console().print("It is set." if retention else "It is removed.")
        for each in counts:
            source = f", set for the {each.source}" if each.source else ""
            console().print(
                plain(
                    f"Traces of experiment {each.experiment_id} stay hot for {each.retention or 'ever'}{source}."
                )
            )
        return
    with opened(lake) as open_lake:
        if (duration, layout, location, allow) == (None, None, None, None):
            settings = open_lake.archive.settings()
        else:
            settings = open_lake.archive.configure(
                layout=layout, location=location, retention=retention, allowlist=allow
            )
    if as_json:
        print_json(asdict(settings))
    else:
        console().print(render.archive_settings(settings))
