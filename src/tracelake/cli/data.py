"""Commands that bring data in: ingest, pipeline run."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tracelake._errors import UsageError
from tracelake.cli import render
from tracelake.cli.options import JsonOption, LakeOption, examples, opened
from tracelake.cli.output import console, print_json
from tracelake.cli.progress import progress_bar
from tracelake.records import IngestReport

app = typer.Typer()
pipeline_app = typer.Typer(help="Run the pipeline.")
app.add_typer(pipeline_app, name="pipeline")


@app.command(
    epilog=examples(
        "tracelake ingest traces.otlp.jsonl.gz",
        "tracelake ingest 'traces/**/*.jsonl' 'archive/*.pb' --lake ./lake",
        "tracelake ingest big.jsonl.gz --transaction-mb 256 --json",
        "tracelake ingest traces.pb --lake s3://bucket/traces",
    )
)
def ingest(
    files: Annotated[list[str], typer.Argument(help="OTLP files; patterns may be quoted.")],
    lake: LakeOption = None,
    transaction_mb: Annotated[
        float | None,
        typer.Option(min=0.001, help="Input, as stored, for one transaction.", show_default=False),
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Spark master, such as local[2].", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ingest files of OTLP traces.

    Each name, or pattern in quotes, is a file of OTLP JSON lines or protobuf, compressed or not.
    Files that were taken before add nothing. Exits with 1 if some of the input could not be taken."""
    with opened(lake) as open_lake, progress_bar() as show:
        report = open_lake.ingest(
            *files,
            transaction_bytes=None if transaction_mb is None else int(transaction_mb * 1e6),
            master=master,
            progress=show,
        )
    _print_report(report, as_json=as_json)
    if report.bad:
        raise typer.Exit(1)


def _print_report(report: IngestReport | None, *, as_json: bool) -> None:
    if as_json:
        print_json(None if report is None else report.to_dict())
        return
    if report is None:
        console().print("The inbox is empty.")
        return
    console().print(render.ingest_report(report))
    if report.bad:
        console().print(render.bad_inputs(report))


@pipeline_app.command(
    "run", epilog=examples("tracelake pipeline run", "tracelake pipeline run --once --json")
)
def pipeline_run(
    lake: LakeOption = None,
    once: Annotated[bool, typer.Option("--once", help="Take what is in the inbox, then end.")] = False,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between looks at the inbox.")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Turn what servers received into tables, until Ctrl-C or with --once one time."""
    if as_json and not once:
        raise UsageError("--json prints one document, so it needs an end: add --once.")
    with opened(lake) as open_lake:
        pipeline: Any = open_lake.pipeline()
        try:
            report = pipeline.run_once()
            if once or report is not None:
                _print_report(report, as_json=as_json)
            while not once:
                time.sleep(interval)
                report = pipeline.run_once()
                if report is not None:
                    _print_report(report, as_json=False)
        finally:
            pipeline.close()
    if report is not None and report.bad:
        raise typer.Exit(1)
