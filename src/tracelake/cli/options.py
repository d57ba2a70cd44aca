"""Options that several commands share, and helpers that open the lake and read sign-in settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from tracelake import limits
from tracelake._errors import UsageError

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


LakeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--lake",
        metavar="DIR|URL",
        help="Place of the lake; else TRACELAKE_LAKE, else tracelake.toml, else ./.tracelake.",
    ),
]
TEXTS: Final = "english|whitespace|cjk"
"""Names of the text analyzers. `search.analyzers` imports too much for a list of names."""
VECTORS: Final = "MODULE:FUNCTION|attributes.KEY|none"
"""Sources of vectors."""
DimensionsOption: TypeAlias = Annotated[
    int | None, typer.Option(help="Length of the vectors in an attribute.")
]
MetricOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="cosine|dot", help="Similarity metric of the vectors in an attribute.")
]
WatchOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GLOB",
        help="Also ingest new OTLP files, objects of a bucket, or messages of a topic; may be repeated.",
    ),
]
MasterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Spark master, such as local[2], spark://host:7077 or sc://host:15002 (Spark Connect).",
    ),
]
ConfOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="Setting of Spark, before those of tracelake.toml and spark-defaults.conf; may be repeated.",
    ),
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output.")
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
    str | None, typer.Option("--message", "-m", help="Message of the commit.")
]
CommitterOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help=(
            "Name of the committer; else TRACELAKE_COMMITTER, else tracelake.toml, else the name of the user."
        )
    ),
]
RequestIdOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="ID",
        help="Id of this request. A retry with the same id creates no second commit.",
    ),
]


def format_examples(*lines: str) -> str:
    """Return the examples at the end of a help page, one a line."""
    # The backspace character tells the help formatter to keep the lines of this paragraph.
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


def spark_conf(settings: list[str] | None) -> dict[str, str]:
    """Return Spark settings by name. Raises UsageError for one without a name or a value."""
    conf = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--conf {text!r} is not a Spark setting: write it as NAME=VALUE.")
        conf[name] = value
    return conf


HostOption: TypeAlias = Annotated[str, typer.Option(help="Listen on this address.")]
PortOption: TypeAlias = Annotated[
    int, typer.Option(min=0, max=limits.PORT_MAX, help="Listen on this port; 0 chooses a free one.")
]
GrpcOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--grpc/--no-grpc", help="Also receive OTLP/gRPC; else TRACELAKE_GRPC, else tracelake.toml, else on."
    ),
]
GrpcPortOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=limits.PORT_MAX,
        help="Port of OTLP/gRPC; else TRACELAKE_GRPC_PORT, else tracelake.toml, else 4317, or a free one with "
        "--port 0.",
    ),
]
AllowedHostOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        help="Accept this host name; may be repeated, * for any. Else TRACELAKE_ALLOWED_HOSTS, else "
        "tracelake.toml, else those of this machine and --host.",
    ),
]
AllowedOriginOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-origin",
        metavar="ORIGIN",
        help="Accept traces from pages of this site, such as https://shop.example; may be repeated, * for any. "
        "Else TRACELAKE_ALLOWED_ORIGINS, else tracelake.toml, else none.",
    ),
]
TlsCertOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Serve TLS with this certificate (PEM), on both ports; else TRACELAKE_TLS_CERT, else tracelake.toml.",
    ),
]
TlsKeyOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Private key of the certificate (PEM, no password); else TRACELAKE_TLS_KEY, else tracelake.toml.",
    ),
]
OidcIssuerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--oidc-issuer",
        metavar="URL",
        help="Let users sign in through this OpenID Connect provider; else TRACELAKE_OIDC_ISSUER, else "
        "tracelake.toml, which also has the admission rules ([[oidc_admit]]).",
    ),
]
OidcClientOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--oidc-client-id",
        metavar="ID",
        help="Client id of this server at the provider; else TRACELAKE_OIDC_CLIENT_ID, else tracelake.toml. "
        "Its secret comes from TRACELAKE_OIDC_CLIENT_SECRET, or the file that "
        "TRACELAKE_OIDC_CLIENT_SECRET_FILE names.",
    ),
]
PipelineOption: TypeAlias = Annotated[
    bool, typer.Option("--pipeline/--no-pipeline", help="Also run the pipeline, in a separate process.")
]
PipelineHangOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=limits.PIPELINE_HANG_MIN_S,
        help="Restart a pipeline that makes no progress for this many seconds; else TRACELAKE_PIPELINE_HANG_S, "
        "else tracelake.toml, else 3600.",
    ),
]
HotTierOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--hot-tier/--no-hot-tier",
        help="Keep what comes in a tracking store, where it can be read at once; without, in the inbox "
        "until the pipeline takes it. By default where the lake is in a directory, has its metadata in PostgreSQL, "
        "or TRACELAKE_TRACKING names a database.",
    ),
]
IntervalOption: TypeAlias = Annotated[
    float, typer.Option(min=limits.PIPELINE_POLL_MIN_S, help="Poll the inbox every this many seconds.")
]
SegmentWaitOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=limits.INBOX_ACK_TIMEOUT_S / 2,
        help="Wait at most this many seconds to write requests together; else TRACELAKE_SEGMENT_WAIT_S, else "
        "tracelake.toml, else 0.05.",
    ),
]
SegmentBytesOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=limits.INBOX_QUEUE_MAX_BYTES,
        help="Write at most this many bytes of requests together; else TRACELAKE_SEGMENT_MAX_BYTES, else "
        "tracelake.toml, else 32 MiB.",
    ),
]
ArchiveOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--archive/--no-archive",
        help="Run archive passes automatically; else TRACELAKE_ARCHIVE, else tracelake.toml, else on. Without "
        "a retention (`tracelake archive retention`) they archive only traces marked archiveNow.",
    ),
]
ArchiveIntervalOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=limits.ARCHIVE_INTERVAL_MIN_S,
        max=limits.ARCHIVE_INTERVAL_MAX_S,
        help="Seconds between archive passes; else TRACELAKE_ARCHIVE_INTERVAL_S, else tracelake.toml, else 300.",
    ),
]
