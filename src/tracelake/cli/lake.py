"""Commands for a whole lake: init, tables, log, verify, doctor, version."""

from __future__ import annotations

import json
import platform
import shlex
from dataclasses import asdict
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake._errors import LakeExistsError, UsageError
from tracelake.cli import render
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
from tracelake.cli.output import FAILED, console, plain, print_json, progress_bar
from tracelake.cli.pipeline import print_replicas
from tracelake.limits import BUCKETS_DEFAULT, BUCKETS_MAX

if TYPE_CHECKING:
    from tracelake import Lake
    from tracelake.lake.location import LakeConfig

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


app = typer.Typer()

_BucketsOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=BUCKETS_MAX,
        help="Into how many buckets its tables are hashed, for its life: as many tasks of a cluster can shape a "
        "transaction at once.",
    ),
]


@app.command(
    epilog=examples(
        "tracelake init ./lake",
        "tracelake init",
        "tracelake init --text cjk",
        "tracelake init ./lake --vectors my_vectors:embed",
        "tracelake init ./lake --vectors attributes.embedding --dimensions 384",
        "tracelake init s3://bucket/traces",
        "tracelake init s3://bucket/traces --metadata postgresql://ada@db.internal/lakes",
        "tracelake init s3://bucket/traces --buckets 64",
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
    buckets: _BucketsOption = BUCKETS_DEFAULT,
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

    Writes its place to ./tracelake.toml if that file does not exist, so that other commands find the lake.
    """
    from tracelake._settings import find_lake, find_metadata

    where = find_lake(place or lake)
    if where.startswith("memory://"):
        raise UsageError(f"{where} would go with this command; give a directory or the URL of a bucket.")
    asked = find_metadata(metadata)
    index = {"text": text, "vectors": vectors, "dimensions": dimensions, "metric": metric}
    there, is_new = _make(where, asked, exist_ok=exist_ok, buckets=buckets, **index)
    there.close()
    chosen = there.config
    wrote = _write_settings(where)
    if as_json:
        told = {"lake": where, "url": there.url, "created": is_new, "metadata": chosen.metadata}
        had = None if chosen.vectors is None else str(chosen.vectors)
        place_told = {"settings_written": wrote, "found_by_default": find_lake() == where}
        print_json({**told, "buckets": chosen.buckets, "text": chosen.text, "vectors": had, **place_told})
        return
    done = f"Created a lake in {where}." if is_new else f"{where} is a lake, left as it is."
    console().print(done, soft_wrap=True)
    _say_what_was_chosen(chosen, asked)
    _say_how_it_is_found(where, wrote=wrote)


def _make(where: str, metadata: str | None, *, exist_ok: bool, **chosen: Any) -> tuple[Lake, bool]:
    """Create a lake or open the existing one; return it and whether it is new."""
    import tracelake

    try:
        return tracelake.init(where, metadata=metadata, **chosen), True
    except LakeExistsError:
        if not exist_ok:
            raise
        return tracelake.open(where, metadata=metadata), False


def _write_settings(where: str) -> bool:
    """Write the lake's place to ./tracelake.toml, if it is needed and absent; return whether it did."""
    from tracelake._settings import SETTINGS_FILE, find_lake

    settings = Path(SETTINGS_FILE)
    if find_lake() == where or settings.exists():
        return False
    try:
        settings.write_text(f"lake = {json.dumps(where)}\n", encoding="utf-8")
    except OSError as error:  # the lake exists all the same
        console(stderr=True).print(f"{SETTINGS_FILE} cannot be written here: {error}", soft_wrap=True)
        return False
    return True


def _say_how_it_is_found(where: str, *, wrote: bool) -> None:
    """Print which lake other commands in this directory use by default."""
    from tracelake._settings import SETTINGS_FILE, find_lake

    out = console()
    if wrote:
        out.print(f"Wrote {SETTINGS_FILE} here, so that commands in this directory use it without --lake.")
    more = "" if find_lake() == where else f" --lake {shlex.quote(where)}"
    if more:
        out.print(f"Other commands here use {find_lake()}: give them{more}.", soft_wrap=True)
    out.print(f"Next: tracelake ingest 'traces/*.otlp.jsonl.gz'{more}", soft_wrap=True)


def _say_what_was_chosen(chosen: LakeConfig, asked: str | None) -> None:
    """Print the vectors of the lake, and the place of its metadata if it is outside the lake."""
    out, kept = console(), chosen.metadata
    if chosen.vectors is not None:
        out.print(plain(f"Spans have vectors of {chosen.vectors}."), soft_wrap=True)
    if "://" in kept:
        out.print(f"Its metadata is in {kept}.", soft_wrap=True)
        if "://" in (asked or "") and asked != kept and kept.startswith("postgres"):
            out.print("The password is not kept; other commands need it by PGPASSWORD or ~/.pgpass.")


# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


@app.command(epilog=examples("tracelake tables", "tracelake tables --at 4f2a91 --json"))
def tables(lake: LakeOption = None, at: AtOption = "main", as_json: JsonOption = False) -> None:
    """List the tables, and the replicas of the pipeline.

    Shows rows, parts, size and `upper`, the number of the next transaction. --json has the tables only; use
    `tracelake pipeline status --json` for the replicas.
    """
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

    Reads everything and lists what is missing, damaged or contradictory. Exits with 1 if it finds anything.
    """
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

    Checks whether the stores respond and honour conditional writes; clock, free space, versions, Java and Spark. Each
    problem comes with its fix. With --master, also checks each executor of that cluster: the same versions, access to
    the lake, clock and space. Exits with 1 if a check failed. Writes below `doctor/` and removes it.
    """
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
