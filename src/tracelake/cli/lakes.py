"""Commands about a lake as a whole: init, tables, log, verify, doctor, version."""

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated

import typer

from tracelake._errors import LakeExistsError, UsageError
from tracelake.cli import render
from tracelake.cli.exits import FAILED
from tracelake.cli.options import (
    TEXTS,
    VECTORS,
    AtOption,
    ConfOption,
    DimensionsOption,
    JsonOption,
    LakeOption,
    MasterOption,
    MetricOption,
    examples,
    opened,
    spark_conf,
)
from tracelake.cli.output import console, plain, print_json
from tracelake.cli.pipelines import print_replicas
from tracelake.cli.progress import progress_bar

app = typer.Typer()


@app.command(
    epilog=examples(
        "tracelake init ./lake",
        "tracelake init",
        "tracelake init --text cjk",
        "tracelake init ./lake --vectors my_vectors:embed",
        "tracelake init ./lake --vectors attributes.embedding --dimensions 384",
        "tracelake init s3://bucket/traces",
        "tracelake init s3://bucket/traces --metadata postgresql://ada@db.internal/lakes",
        "tracelake init --lake ./lake --exist-ok --json",
    )
)
def init(
    place: Annotated[
        str | None, typer.Argument(metavar="[DIR|URL]", help="Where; else as --lake.", show_default=False)
    ] = None,
    lake: LakeOption = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            metavar="URL|objects",
            help="Where its metadata is; else TRACELAKE_METADATA, else tracelake.toml, else in the lake itself: a "
            "SQLite file in a directory, objects in a bucket.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar=TEXTS,
            help="How texts become words in its full-text index; else TRACELAKE_TEXT, else tracelake.toml, else "
            "english. `tracelake index rebuild --text` changes it.",
            show_default=False,
        ),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar=VECTORS,
            help="Have vectors for searches by meaning, by this function or of this attribute; else TRACELAKE_VECTORS, "
            "else tracelake.toml, else none. `tracelake index rebuild --vectors` changes it.",
            show_default=False,
        ),
    ] = None,
    dimensions: DimensionsOption = None,
    metric: MetricOption = None,
    exist_ok: Annotated[
        bool,
        typer.Option("--exist-ok", help="Leave a lake that is there already as it is, and call that done."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a lake in a directory or a bucket.

    Names it in ./tracelake.toml, where there is none yet, so that other commands find it."""
    import tracelake
    from tracelake._settings import SETTINGS_FILE, find_lake, find_metadata

    where = find_lake(place or lake)
    if where.startswith("memory://"):
        raise UsageError(f"{where} would go with this command; give a directory or the URL of a bucket.")
    asked = find_metadata(metadata)
    is_new = True
    try:
        there = tracelake.init(
            where, metadata=asked, text=text, vectors=vectors, dimensions=dimensions, metric=metric
        )
    except LakeExistsError:
        if not exist_ok:
            raise
        is_new, there = False, tracelake.open(where, metadata=asked)
    url, kept, chosen = there.url, there.config.metadata, there.config
    there.close()
    settings = Path(SETTINGS_FILE)
    if wrote := find_lake() != where and not settings.exists():
        settings.write_text(f"lake = {json.dumps(where)}\n", encoding="utf-8")
    is_found = find_lake() == where
    if as_json:
        told = {"lake": where, "url": url, "created": is_new, "metadata": kept, "text": chosen.text}
        had = None if chosen.vectors is None else str(chosen.vectors)
        print_json({**told, "vectors": had, "settings_written": wrote, "found_by_default": is_found})
        return
    out = console()
    out.print(
        f"Created a lake in {where}." if is_new else f"There is a lake in {where}; it is left as it is.",
        soft_wrap=True,
    )
    _say_where_metadata_is(kept, asked)
    if chosen.vectors is not None:
        out.print(plain(f"Spans have vectors of {chosen.vectors}."), soft_wrap=True)
    if wrote:
        out.print(f"Wrote {SETTINGS_FILE} here, so that commands in this directory use it without --lake.")
    if not is_found:
        out.print(f"Other commands here use {find_lake()}: give them --lake {where}.", soft_wrap=True)
    out.print("Next: tracelake ingest 'traces/*.otlp.jsonl.gz'")


def _say_where_metadata_is(kept: str, asked: str | None) -> None:
    """Say it where that is not in the lake itself."""
    out = console()
    if "://" in kept:
        out.print(f"Its metadata is in {kept}.", soft_wrap=True)
        if "://" in (asked or "") and asked != kept and kept.startswith("postgres"):
            out.print("The password is not kept; other commands need it by PGPASSWORD or ~/.pgpass.")


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
        for line in (*(item.explain() for item in report.set_aside), *report.left_out):
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
