"""Commands about a lake as a whole: tables, log, verify, doctor, version."""

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from tracelake.cli import render
from tracelake.cli.exits import FAILED
from tracelake.cli.options import (
    AtOption,
    ConfOption,
    JsonOption,
    LakeOption,
    MasterOption,
    examples,
    opened,
    spark_conf,
)
from tracelake.cli.output import console, plain, print_json
from tracelake.cli.pipelines import print_replicas
from tracelake.cli.progress import progress_bar

app = typer.Typer()


@app.command(epilog=examples("tracelake tables", "tracelake tables --at 4f2a91 --json"))
def tables(lake: LakeOption = None, at: AtOption = "main", as_json: JsonOption = False) -> None:
    """List the tables, and the replicas of the pipeline.

    With rows, parts, size, and `upper`: the number of the next transaction. --json has the tables only;
    `tracelake pipeline status --json` has the replicas."""
    with opened(lake) as open_lake:
        infos = open_lake.tables(at=at)
        replicas = [] if as_json else open_lake.replicas()
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    console().print(render.tables(infos))
    if replicas:
        console().print()
        print_replicas(replicas)


@app.command(epilog=examples("tracelake log", "tracelake log --limit 5", "tracelake log --at 4f2a91 --json"))
def log(
    lake: LakeOption = None,
    at: AtOption = "main",
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many, newest first.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the commits of a branch, newest first."""
    with opened(lake) as open_lake:
        infos = open_lake.log(at, limit=limit)
    if as_json:
        print_json([asdict(info) for info in infos])
        return
    console().print(render.commits(infos))


@app.command(epilog=examples("tracelake verify", "tracelake verify --lake ./lake --json"))
def verify(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Check the whole lake.

    Reads everything and names what is missing, damaged or contradictory; exits with 1 if anything is."""
    with opened(lake) as open_lake, progress_bar() as show:
        report = open_lake.verify(progress=show)
    if as_json:
        print_json(report.to_dict())
    else:
        console().print(render.verify_report(report))
        console().print("The lake is whole." if report.ok else render.findings(report))
        for line in (
            *(item.explain() for item in report.set_aside),
            *report.left_out,
            *(f"Not checked: {each}." for each in report.unread),
        ):
            console().print(plain(line), soft_wrap=True)
    if not report.ok:
        raise typer.Exit(FAILED)


@app.command(
    epilog=examples(
        "tracelake doctor",
        "tracelake doctor --lake ./lake --no-spark --json",
        "tracelake doctor --lake s3://bucket/traces --master spark://host:7077",
    )
)
def doctor(
    lake: LakeOption = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Start Spark and run a small job.")
    ] = True,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the lake's stores and this machine.

    Whether the stores are reached and honour conditional writes; clock, free space, versions, Java, Spark;
    and how to mend what is wrong. With --master, whether every executor of that cluster has the same versions, the
    lake in reach, a clock and space. Exits with 1 if a check failed. Writes below `doctor/` and removes it."""
    from tracelake.doctor import diagnose

    with progress_bar() as show:
        diagnosis = diagnose(lake, spark=spark, master=master, conf=spark_conf(conf), progress=show)
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        console().print(render.diagnosis(diagnosis))
    if not diagnosis.ok:
        raise typer.Exit(FAILED)


@app.command(epilog=examples("tracelake version", "tracelake version --json"))
def version(as_json: JsonOption = False) -> None:
    """Print the version."""
    number = version_of("tracelake")
    if as_json:
        print_json({"version": number, "python": platform.python_version()})
    else:
        print(f"tracelake {number} (Python {platform.python_version()})")
