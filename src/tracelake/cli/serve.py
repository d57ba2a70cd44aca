"""Commands that keep running: serve, demo, and the Spark executor of a Kubernetes pod.

`openid_of` reads the options that configure sign-in through OpenID Connect.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracelake import limits
from tracelake._errors import UsageError
from tracelake.cli import options
from tracelake.cli.output import ignore_closed_stream, log_lines, print_json
from tracelake.limits import PIPELINE_POLL_S

if TYPE_CHECKING:
    from tracelake._settings import Settings
    from tracelake.access.oidc import OpenId
    from tracelake.lake.lake import Lake
    from tracelake.server.run import Exposure, Served

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


app = typer.Typer()
logger = logging.getLogger("tracelake.server")

PROGRAM: Final = (sys.executable, "-m", str(__package__))
"""Command that starts the command line in a new process, also if the script is not on the path."""


@app.command(
    epilog=options.format_examples(
        "tracelake serve",
        "tracelake serve --lake ./lake --port 8080 --no-pipeline",
        "tracelake serve --watch '/data/otlp/*.gz' --watch 's3://bucket/otlp/**'",
        "tracelake serve --host 0.0.0.0 --allowed-host traces.example --tls-cert cert.pem --tls-key key.pem",
    )
)
def serve(
    *,
    lake: options.LakeOption = None,
    host: options.HostOption = "127.0.0.1",
    port: options.PortOption = 4318,
    grpc: options.GrpcOption = None,
    grpc_port: options.GrpcPortOption = None,
    allowed_host: options.AllowedHostOption = None,
    allowed_origin: options.AllowedOriginOption = None,
    tls_cert: options.TlsCertOption = None,
    tls_key: options.TlsKeyOption = None,
    oidc_issuer: options.OidcIssuerOption = None,
    oidc_client_id: options.OidcClientOption = None,
    pipeline: options.PipelineOption = True,
    pipeline_hang: options.PipelineHangOption = None,
    hot_tier: options.HotTierOption = None,
    watch: options.WatchOption = None,
    interval: options.IntervalOption = PIPELINE_POLL_S,
    segment_wait: options.SegmentWaitOption = None,
    segment_bytes: options.SegmentBytesOption = None,
    archive: options.ArchiveOption = None,
    archive_interval: options.ArchiveIntervalOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Serve OTLP, the API and the web pages.

    Receives traces over OTLP/HTTP and OTLP/gRPC, and runs the pipeline in a separate process, until Ctrl-C.
    """
    from tracelake._settings import load_settings
    from tracelake.server.run import serve as serve_lake

    settings = load_settings()
    grpc = settings.grpc if grpc is None else grpc
    if grpc_port is None:
        grpc_port = settings.grpc_port if port else 0
    with options.opened(lake) as open_lake, log_lines():

        def say(served: Served) -> None:
            try:
                _say(served, open_lake, as_json=as_json)
            except OSError as error:  # clients that send traces are served all the same
                ignore_closed_stream(sys.stdout)
                logger.warning("could not print the address of the server, %s: %s", served.url, error)

        serve_lake(
            open_lake,
            host=host,
            port=port,
            pipeline=pipeline,
            apart=True,
            pipeline_hang_s=settings.pipeline_hang_s if pipeline_hang is None else pipeline_hang,
            watch=watch,
            interval_s=interval,
            on_listening=say,
            segment_wait_s=settings.segment_wait_s if segment_wait is None else segment_wait,
            segment_max_bytes=segment_bytes or settings.segment_max_bytes,
            hot_tier=hot_tier,
            archive_interval_s=(
                archive_interval or settings.archive_interval_s
                if (settings.archive if archive is None else archive)
                else None
            ),
            grpc_port=grpc_port if grpc else None,
            exposure=replace(
                _exposure(settings, allowed_host, allowed_origin, tls_cert, tls_key),
                openid=openid_of(settings, oidc_issuer, oidc_client_id),
            ),
        )


def _say(served: Served, lake: Lake, *, as_json: bool) -> None:
    if as_json:
        print_json({"url": served.url, "grpc_url": served.grpc_url, "lake": lake.url})
    else:
        ways = f"{served.url}/v1/traces" + (f", or by gRPC to {served.grpc_url}" if served.grpc_url else "")
        print(f"Serving {lake.place} at {served.url}; send traces to {ways}. Ctrl-C ends it.")
    sys.stdout.flush()


def _exposure(
    settings: Settings,
    allowed_host: list[str] | None,
    allowed_origin: list[str] | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> Exposure:
    from tracelake.server.connections import Tls
    from tracelake.server.run import Exposure

    cert, key = tls_cert or settings.tls_cert, tls_key or settings.tls_key
    if (cert is None) != (key is None):
        raise typer.BadParameter("TLS needs both, --tls-cert and --tls-key")
    return Exposure(
        settings.allowed_hosts if allowed_host is None else allowed_host,
        settings.allowed_origins if allowed_origin is None else allowed_origin,
        settings.http_locations,
        None if cert is None or key is None else Tls(cert, key),
    )


@app.command(
    epilog=options.format_examples(
        "tracelake demo", "tracelake demo --no-stay", "tracelake demo --lake /tmp/lake"
    )
)
def demo(
    context: typer.Context,
    lake: Annotated[
        str, typer.Option("--lake", metavar="DIR", help="Place of the demo's lake, created if missing.")
    ] = "./demo-lake",
    fresh: Annotated[
        bool | None,
        typer.Option("--fresh/--no-fresh", help="Start empty; by default if the demo created the lake."),
    ] = None,
    stay: Annotated[
        bool | None, typer.Option("--stay/--no-stay", help="Serve until Ctrl-C; by default in a terminal.")
    ] = None,
    spans: Annotated[int, typer.Option(min=1, help="Number of spans of the generated batch.")] = 20_000,
    as_json: options.JsonOption = False,
) -> None:
    """Run a small workload, and explore it.

    An agent answers questions from Python's documentation by retrieval, traced with OpenTelemetry. Its traces go to a
    server, and a generated batch is ingested as well.
    """
    from tracelake.demo.run import CommandLine, run_demo

    commands = CommandLine(context.obj, PROGRAM)
    stay = sys.stdout.isatty() and not as_json if stay is None else stay
    # Under --json the story goes to standard error and the facts to standard output.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        facts = run_demo(commands, lake, fresh=fresh, stay=stay, spans=spans)
    if as_json:
        print_json(facts)


@app.command()
def executor() -> None:
    """Run a Spark executor in a Kubernetes pod.

    Spark's environment variables configure it. Spark starts this command itself in the executor pods, whose image
    `spark.kubernetes.container.image` names.
    """
    from tracelake.tasks.java import be_executor

    be_executor()


def openid_of(settings: Settings, issuer: str | None, client_id: str | None) -> OpenId | None:
    """Return the OpenID Connect settings, or None if no provider is configured. Raises UsageError if they are
    incomplete or invalid."""
    issuer, client_id = issuer or settings.oidc_issuer, client_id or settings.oidc_client_id
    if issuer is None:
        if client_id is not None:
            raise UsageError("oidc_client_id needs oidc_issuer, the address of the provider")
        return None
    from tracelake.access.oidc import Admission, OpenId

    admissions = [
        Admission(each.claim, each.value, each.role, each.workspace) for each in settings.oidc_admit
    ]
    return OpenId(issuer, client_id or "", admissions, _secret(settings), settings.oidc_scopes)


def _secret(settings: Settings) -> str | None:
    value, path = settings.oidc_client_secret, settings.oidc_client_secret_file
    if value is not None and path is not None:
        raise UsageError("give oidc_client_secret or oidc_client_secret_file, not both")
    if path is None:
        return None if value is None else value.get_secret_value()
    try:
        with Path(path).open(encoding="utf-8") as file:
            secret = file.read(limits.CLIENT_SECRET_MAX_CHARS + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"oidc_client_secret_file {path} cannot be read: {error}") from None
    if not 1 <= len(secret) <= limits.CLIENT_SECRET_MAX_CHARS:
        raise UsageError(
            f"oidc_client_secret_file {path} must have 1 to {limits.CLIENT_SECRET_MAX_CHARS} characters"
        )
    return secret
