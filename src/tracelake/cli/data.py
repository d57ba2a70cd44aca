"""The command that brings files in: ingest."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelake.cli import render
from tracelake.cli.exits import FAILED
from tracelake.cli.options import (
    ConfOption,
    JsonOption,
    LakeOption,
    MasterOption,
    examples,
    opened,
    spark_conf,
)
from tracelake.cli.output import console, plain, print_json
from tracelake.cli.progress import progress_bar
from tracelake.limits import TRANSACTION_LEAST_MB
from tracelake.results import IngestReport

app = typer.Typer()


@app.command(
    epilog=examples(
        "tracelake ingest traces.otlp.jsonl.gz",
        "tracelake ingest 'traces/**/*.jsonl' 'archive/*.pb' --lake ./lake",
        "tracelake ingest big.jsonl.gz --transaction-mb 256 --json",
        "tracelake ingest monday.pb --transaction nightly",
        "tracelake ingest 's3://bucket/otlp/2026-11-*/**/*.gz' gs://bucket/one.pb",
        "tracelake ingest traces.pb --lake s3://bucket/traces",
        "tracelake ingest /data/mlflow-archive s3://bucket/mlflow-archive",
    )
)
def ingest(
    files: Annotated[list[str], typer.Argument(help="OTLP files, objects of buckets, archive repositories.")],
    lake: LakeOption = None,
    transaction_mb: Annotated[
        float | None,
        typer.Option(
            min=TRANSACTION_LEAST_MB, help="Input, as stored, for one transaction.", show_default=False
        ),
    ] = None,
    transaction: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Put them into this explicit transaction, or nowhere.", show_default=False
        ),
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ingest files of OTLP traces.

    Each name, or pattern in quotes, is a file of OTLP JSON lines or protobuf, compressed or not, here or in a bucket:
    s3://, gs:// or az://, with credentials from the environment. A directory, or prefix in a bucket, stands for the
    traces that MLflow archived below it. Files that were taken before add nothing.
    While another client's transaction is open, nothing is taken unless --transaction names it.
    Exits with 1 if some of the input could not be taken."""
    with opened(lake) as open_lake, progress_bar() as show:
        report = open_lake.ingest(
            *files,
            transaction_bytes=None if transaction_mb is None else int(transaction_mb * 1e6),
            transaction=transaction,
            master=master,
            conf=spark_conf(conf),
            progress=show,
        )
    print_report(report, as_json=as_json)
    if report.bad:
        raise typer.Exit(FAILED)


def print_report(report: IngestReport | None, *, as_json: bool) -> None:
    """Print what an ingest, or one run of the pipeline, did; None: there was nothing to do."""
    if as_json:
        print_json(None if report is None else report.to_dict())
        return
    if report is None:
        console().print("The inbox is empty.")
        return
    console().print(render.ingest_report(report))
    if report.bad:
        console().print(render.bad_inputs(report))
    for item in report.set_aside:
        console().print(plain(item.explain()), soft_wrap=True)
