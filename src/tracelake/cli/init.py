"""The command that makes a lake: init."""

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelake._errors import LakeExistsError, UsageError
from tracelake.cli.options import (
    TEXTS,
    VECTORS,
    DimensionsOption,
    JsonOption,
    LakeOption,
    MetricOption,
    examples,
)
from tracelake.cli.output import console, plain, print_json
from tracelake.limits import BUCKETS_DEFAULT, BUCKETS_MAX

if TYPE_CHECKING:
    from tracelake import Lake
    from tracelake.lake.location import LakeConfig

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

    Names it in ./tracelake.toml, where there is none yet, so that other commands find it."""
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
    """Make a lake, or open the one that is there; tell which."""
    import tracelake

    try:
        return tracelake.init(where, metadata=metadata, **chosen), True
    except LakeExistsError:
        if not exist_ok:
            raise
        return tracelake.open(where, metadata=metadata), False


def _write_settings(where: str) -> bool:
    """Name the lake in this directory's settings, where it needs that and there are none; return whether it did."""
    from tracelake._settings import SETTINGS_FILE, find_lake

    settings = Path(SETTINGS_FILE)
    if find_lake() == where or settings.exists():
        return False
    try:
        settings.write_text(f"lake = {json.dumps(where)}\n", encoding="utf-8")
    except OSError as error:  # the lake is made all the same
        console(stderr=True).print(f"{SETTINGS_FILE} cannot be written here: {error}", soft_wrap=True)
        return False
    return True


def _say_how_it_is_found(where: str, *, wrote: bool) -> None:
    """Say what commands in this directory take by themselves."""
    from tracelake._settings import SETTINGS_FILE, find_lake

    out = console()
    if wrote:
        out.print(f"Wrote {SETTINGS_FILE} here, so that commands in this directory use it without --lake.")
    more = "" if find_lake() == where else f" --lake {shlex.quote(where)}"
    if more:
        out.print(f"Other commands here use {find_lake()}: give them{more}.", soft_wrap=True)
    out.print(f"Next: tracelake ingest 'traces/*.otlp.jsonl.gz'{more}", soft_wrap=True)


def _say_what_was_chosen(chosen: LakeConfig, asked: str | None) -> None:
    """Say where the metadata is, unless in the lake itself, and which vectors spans have."""
    out, kept = console(), chosen.metadata
    if chosen.vectors is not None:
        out.print(plain(f"Spans have vectors of {chosen.vectors}."), soft_wrap=True)
    if "://" in kept:
        out.print(f"Its metadata is in {kept}.", soft_wrap=True)
        if "://" in (asked or "") and asked != kept and kept.startswith("postgres"):
            out.print("The password is not kept; other commands need it by PGPASSWORD or ~/.pgpass.")
