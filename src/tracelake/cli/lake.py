"""Commands for a whole lake: init, tables, log, verify, doctor, version."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake._errors import LakeExistsError, UsageError
from tracelake.cli import options, render
from tracelake.cli.command import Renderable, command, plain_record
from tracelake.cli.output import console, plain, progress_bar
from tracelake.cli.pipeline import replica_lines
from tracelake.limits import BUCKETS_DEFAULT, BUCKETS_MAX

if TYPE_CHECKING:
    from tracelake import Lake
    from tracelake.doctor.stores import Diagnosis
    from tracelake.location import LakeConfig
    from tracelake.results import VerifyReport

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


app = typer.Typer()

_BucketsOption = Annotated[
    int,
    typer.Option(
        min=1,
        max=BUCKETS_MAX,
        help="Set the number of hash buckets of its tables, which cannot change later: at most this many "
        "cluster tasks process a transaction in parallel.",
    ),
]


@dataclass(frozen=True)
class _InitResult:
    """Result of `init`: a new lake, or an existing one."""

    place: str
    url: str
    is_new: bool
    config: LakeConfig
    metadata: str | None
    """The metadata location that the options and settings name."""
    has_written: bool
    """Whether ./tracelake.toml is written."""


def _init_lines(it: _InitResult) -> Iterator[Renderable]:
    yield (
        f"Created a lake in {it.place}."
        if it.is_new
        else (f"{it.place} is already a lake; nothing was changed.")
    )
    yield from _say_what_was_chosen(it.config, it.metadata)
    yield from _default_lake_lines(it.place, wrote=it.has_written)


def _init_json(it: _InitResult) -> dict[str, Any]:
    from tracelake._settings import find_lake

    return {
        "lake": it.place,
        "url": it.url,
        "created": it.is_new,
        "metadata": it.config.metadata,
        "buckets": it.config.buckets,
        "text": it.config.text,
        "vectors": None if it.config.vectors is None else str(it.config.vectors),
        "settings_written": it.has_written,
        "found_by_default": find_lake() == it.place,
    }


@command(
    app,
    "init",
    text=_init_lines,
    json=_init_json,
    examples=[
        "tracelake init ./lake",
        "tracelake init",
        "tracelake init --text cjk",
        "tracelake init ./lake --vectors my_vectors:embed",
        "tracelake init ./lake --vectors attributes.embedding --dimensions 384",
        "tracelake init s3://bucket/traces",
        "tracelake init s3://bucket/traces --metadata postgresql://ada@db.internal/lakes",
        "tracelake init s3://bucket/traces --buckets 64",
        "tracelake init --lake ./lake --exist-ok --json",
    ],
)
def init(
    place: Annotated[
        str | None, typer.Argument(metavar="[DIR|URL]", help=("Place of the lake; by default as --lake."))
    ] = None,
    lake: options.LakeOption = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            metavar="URL|objects",
            help="Place of its metadata; else TRACELAKE_METADATA, else tracelake.toml, else the lake itself: a "
            "SQLite file in a directory, objects in a bucket.",
        ),
    ] = None,
    buckets: _BucketsOption = BUCKETS_DEFAULT,
    text: Annotated[
        str | None,
        typer.Option(
            metavar=options.TEXTS,
            help="Choose the text analyzer of its full-text index; else TRACELAKE_TEXT, else tracelake.toml, "
            "else english. `tracelake index rebuild --text` changes it.",
        ),
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar=options.VECTORS,
            help="Build vectors for searches by meaning, with this function or from this attribute; else "
            "TRACELAKE_VECTORS, else tracelake.toml, else none. `tracelake index rebuild --vectors` "
            "changes it.",
        ),
    ] = None,
    dimensions: options.DimensionsOption = None,
    metric: options.MetricOption = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed without changes if the lake already exists.")
    ] = False,
) -> _InitResult:
    """Create a lake in a directory or a bucket.

    Writes its place to ./tracelake.toml if that file does not exist, so that other commands find the lake.
    """
    from tracelake._settings import find_lake, find_metadata

    where = find_lake(place or lake)
    if where.startswith("memory://"):
        raise UsageError(f"{where} would go with this command; give a directory or the URL of a bucket.")
    requested = find_metadata(metadata)
    index = {"text": text, "vectors": vectors, "dimensions": dimensions, "metric": metric}
    there, is_new = _make(where, requested, exist_ok=exist_ok, buckets=buckets, **index)
    there.close()
    return _InitResult(where, there.url, is_new, there.config, requested, _write_settings(where))


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


def _default_lake_lines(where: str, *, wrote: bool) -> Iterator[Renderable]:
    """Yield which lake other commands in this directory use by default."""
    from tracelake._settings import SETTINGS_FILE, find_lake

    if wrote:
        yield f"Wrote {SETTINGS_FILE} here, so that commands in this directory use it without --lake."
    more = "" if find_lake() == where else f" --lake {shlex.quote(where)}"
    if more:
        yield f"Other commands here use {find_lake()}: give them{more}."
    yield f"Next: tracelake ingest 'traces/*.otlp.jsonl.gz'{more}"


def _say_what_was_chosen(chosen: LakeConfig, requested: str | None) -> Iterator[Renderable]:
    """Yield the vectors of the lake, and the place of its metadata if it is outside the lake."""
    stored = chosen.metadata
    if chosen.vectors is not None:
        yield plain(f"Spans have vectors from {chosen.vectors}.")
    if "://" in stored:
        yield f"Its metadata is in {stored}."
        if "://" in (requested or "") and requested != stored and stored.startswith("postgres"):
            yield "The password is not stored; other commands need it in PGPASSWORD or ~/.pgpass."


# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


def _tables(of: dict[str, Any]) -> Iterator[Renderable]:
    yield render.tables(of["tables"])
    if of["replicas"]:
        yield ""
        yield from replica_lines(of["replicas"])


@command(
    app,
    "tables",
    text=_tables,
    json=lambda of: plain_record(of["tables"]),
    examples=["tracelake tables", "tracelake tables --at 4f2a91 --json"],
)
def tables(lake: Lake, at: options.AtOption = "main", *, as_json: bool) -> dict[str, Any]:
    """List the tables, and the replicas of the pipeline.

    Shows rows, parts, size and `upper`, the number of the next transaction. --json has the tables only; use
    `tracelake pipeline status --json` for the replicas.
    """
    return {"tables": lake.tables(at=at), "replicas": [] if as_json else lake.replicas()}


def _log(of: dict[str, Any]) -> Iterator[Renderable]:
    yield render.commits(of["commits"])
    if (expired := of["expired"]) is not None:
        yield plain(expired.line)


@command(
    app,
    "log",
    text=_log,
    json=lambda of: plain_record(of["commits"]),
    examples=["tracelake log", "tracelake log --limit 5", "tracelake log --at 4f2a91 --json"],
)
def log(
    lake: Lake,
    at: options.AtOption = "main",
    limit: Annotated[int | None, typer.Option(min=1, help="Show at most this many.")] = None,
) -> dict[str, Any]:
    """List the commits of a branch, newest first, and why each stays.

    Without --limit, it also says how many older commits have expired.
    """
    return {
        "commits": lake.log(at, limit=limit, reasons=True),
        "expired": lake.branch().expired() if limit is None else None,
    }


def _verified(report: VerifyReport) -> Iterator[Renderable]:
    yield render.verify_report(report)
    yield "The lake is intact." if report.ok else render.findings(report)
    yield from (plain(item.explain()) for item in report.set_aside)
    yield from map(plain, report.left_out)
    yield from (plain(f"Not checked: {each}.") for each in report.unread)


@command(
    app,
    "verify",
    text=_verified,
    failed=lambda report: not report.ok,
    examples=["tracelake verify", "tracelake verify --lake ./lake --json"],
)
def verify(lake: Lake) -> VerifyReport:
    """Check the whole lake.

    Reads everything and lists what is missing, damaged or contradictory. Exits with 1 if it finds anything.
    """
    with progress_bar() as show_progress:
        return lake.verify(progress=show_progress)


@command(
    app,
    "doctor",
    text=render.diagnosis,
    failed=lambda diagnosis: not diagnosis.ok,
    examples=[
        "tracelake doctor",
        "tracelake doctor --lake ./lake --no-spark --json",
        "tracelake doctor --lake s3://bucket/traces --master spark://host:7077",
    ],
)
def doctor(
    lake: options.LakeOption = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Start Spark and run a small job.")
    ] = True,
    master: options.MasterOption = None,
    conf: options.ConfOption = None,
) -> Diagnosis:
    """Check the lake's stores and this machine.

    Checks whether the stores respond and honour conditional writes; clock, free space, versions, Java and Spark. Each
    problem comes with its fix. With --master, also checks each executor of that cluster: the same versions, access to
    the lake, clock and space. Exits with 1 if a check failed. Writes below `doctor/` and removes it.
    """
    from tracelake.doctor.doctor import diagnose

    with progress_bar() as show_progress:
        return diagnose(
            lake, spark=spark, master=master, conf=options.spark_conf(conf), progress=show_progress
        )


@command(
    app,
    "version",
    text="tracelake {version} (Python {python})",
    examples=["tracelake version", "tracelake version --json"],
)
def version() -> dict[str, Any]:
    """Print the version."""
    import tracelake

    return {"version": tracelake.__version__, "python": platform.python_version()}
