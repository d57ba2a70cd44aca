"""The options that many commands share, and how a command opens its lake."""

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from tracelake._errors import UsageError

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake

LakeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--lake",
        metavar="DIR|URL",
        help="The lake; else TRACELAKE_LAKE, else tracelake.toml, else ./.tracelake.",
        show_default=False,
    ),
]
TEXTS: Final = "english|whitespace|cjk"
"""How texts become words; `search.analyzers` imports too much for a list of names."""
VECTORS: Final = "MODULE:FUNCTION|attributes.KEY|none"
"""Where vectors come from."""
DimensionsOption: TypeAlias = Annotated[
    int | None, typer.Option(help="Numbers of a vector in an attribute.", show_default=False)
]
MetricOption: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="cosine|dot", help="How vectors in an attribute are compared.", show_default=False),
]
WatchOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Take OTLP files that appear there too, objects of a bucket, or messages of a topic; may be repeated.",
        show_default=False,
    ),
]
MasterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark master, such as local[2], spark://host:7077 or sc://host:15002 (Spark Connect).",
        show_default=False,
    ),
]
ConfOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="Setting of Spark, before those of tracelake.toml and spark-defaults.conf; may be repeated.",
        show_default=False,
    ),
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output.", show_default=False)
]
AtOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--at",
        metavar="REF",
        help="Read at this branch, tag or commit: main, main~3, main@2026-01-01T00:00Z, main@17 (a "
        "transaction), or the beginning of a commit's id.",
    ),
]
BranchOption: TypeAlias = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch.")]
MessageOption: TypeAlias = Annotated[
    str | None, typer.Option("--message", "-m", help="What the commit says.", show_default=False)
]
CommitterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Who commits; else TRACELAKE_COMMITTER, else tracelake.toml, else the name of the user.",
        show_default=False,
    ),
]
RequestIdOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="ID",
        help="Id of this request. Run again with the same id, the command makes no second commit.",
        show_default=False,
    ),
]


def examples(*lines: str) -> str:
    """Return the epilogue of a help page: examples, a line each."""
    # The \b tells the help formatter to leave the lines of this paragraph alone.
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


@contextmanager
def opened(lake: str | None) -> Iterator[Lake]:
    """Open the lake that the options and settings name; close it afterwards."""
    import tracelake
    from tracelake._settings import find_lake

    opened_lake = tracelake.open(find_lake(lake))
    try:
        yield opened_lake
    finally:
        opened_lake.close()


def spark_conf(given: list[str] | None) -> dict[str, str]:
    """Return settings of Spark by name. Raises UsageError for one without a name or a value."""
    conf = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--conf {text!r} is no setting of Spark: write it as NAME=VALUE.")
        conf[name] = value
    return conf
