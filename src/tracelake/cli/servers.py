"""Commands that keep running: serve, demo."""

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Final, TypeAlias

import typer

from tracelake.cli.options import JsonOption, LakeOption, WatchOption, examples, opened
from tracelake.cli.output import log_lines, print_json
from tracelake.limits import (
    ARCHIVE_INTERVAL_MAX_S,
    ARCHIVE_INTERVAL_MIN_S,
    INBOX_ACK_TIMEOUT_S,
    INBOX_QUEUE_MAX_BYTES,
    PIPELINE_POLL_MIN_S,
    PIPELINE_POLL_S,
)

app = typer.Typer()

PROGRAM: Final = (sys.executable, "-m", str(__package__))
"""What starts the command line in a process of its own, where the script is not on the path either."""


HotTierOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--hot-tier/--no-hot-tier",
        help="Keep what comes in a tracking store, where it can be read at once; without, in the inbox "
        "until the pipeline takes it. By default where the lake is in a directory, has its metadata in PostgreSQL, "
        "or TRACELAKE_TRACKING names a database.",
        show_default=False,
    ),
]
ArchiveOption: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--archive/--no-archive",
        help="Make archive passes by itself; else TRACELAKE_ARCHIVE, else tracelake.toml, else it does. Without a "
        "retention (`tracelake archive retention`) they take nothing but what is marked archiveNow.",
        show_default=False,
    ),
]
ArchiveIntervalOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=ARCHIVE_INTERVAL_MIN_S,
        max=ARCHIVE_INTERVAL_MAX_S,
        help="Seconds between archive passes; else TRACELAKE_ARCHIVE_INTERVAL_S, else tracelake.toml, else 300.",
        show_default=False,
    ),
]


@app.command(
    epilog=examples(
        "tracelake serve",
        "tracelake serve --lake ./lake --port 8080 --no-pipeline",
        "tracelake serve --watch '/data/otlp/*.gz' --watch 's3://bucket/otlp/**'",
    )
)
def serve(
    *,
    lake: LakeOption = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 4318,
    pipeline: Annotated[
        bool, typer.Option("--pipeline/--no-pipeline", help="Run the pipeline in this process too.")
    ] = True,
    hot_tier: HotTierOption = None,
    watch: WatchOption = None,
    interval: Annotated[
        float, typer.Option(min=PIPELINE_POLL_MIN_S, help="Seconds between looks at the inbox.")
    ] = PIPELINE_POLL_S,
    segment_wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=INBOX_ACK_TIMEOUT_S / 2,
            help="Seconds a request waits at most for others that come, to be written with them; else "
            "TRACELAKE_SEGMENT_WAIT_S, else tracelake.toml, else 0.05.",
            show_default=False,
        ),
    ] = None,
    segment_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=INBOX_QUEUE_MAX_BYTES,
            help="Bytes of requests that are written together; else TRACELAKE_SEGMENT_MAX_BYTES, else "
            "tracelake.toml, else 32 MiB.",
            show_default=False,
        ),
    ] = None,
    archive: ArchiveOption = None,
    archive_interval: ArchiveIntervalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve OTLP, API and web pages.

    Takes traces over OTLP/HTTP and runs the pipeline in the same process, until Ctrl-C."""
    from tracelake._settings import load_settings
    from tracelake.server.run import serve as serve_lake

    settings = load_settings()
    with opened(lake) as open_lake, log_lines():

        def say(url: str) -> None:
            if as_json:
                print_json({"url": url, "lake": open_lake.url})
            else:
                print(f"Serving {open_lake.place} at {url}; send traces to {url}/v1/traces. Ctrl-C ends it.")
            sys.stdout.flush()

        serve_lake(
            open_lake,
            host=host,
            port=port,
            pipeline=pipeline,
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
        )


@app.command(epilog=examples("tracelake demo", "tracelake demo --no-stay", "tracelake demo --lake /tmp/lake"))
def demo(
    context: typer.Context,
    lake: Annotated[
        str, typer.Option("--lake", metavar="DIR", help="The demo's lake; made if it is not there.")
    ] = "./demo-lake",
    fresh: Annotated[
        bool | None,
        typer.Option(
            "--fresh/--no-fresh",
            help="Start empty; by default if the demo made the lake.",
            show_default=False,
        ),
    ] = None,
    stay: Annotated[
        bool | None,
        typer.Option(
            "--stay/--no-stay", help="Serve until Ctrl-C; by default in a terminal.", show_default=False
        ),
    ] = None,
    spans: Annotated[int, typer.Option(min=1, help="Spans of the generated batch.")] = 20_000,
    as_json: JsonOption = False,
) -> None:
    """Run a small workload, and look at it.

    An agent answers questions from Python's own documentation by retrieval, traced with OpenTelemetry;
    its traces go to a server, and a generated batch is ingested beside them."""
    from tracelake.demo.run import CommandLine, run_demo

    commands = CommandLine(context.obj, PROGRAM)
    stay = sys.stdout.isatty() and not as_json if stay is None else stay
    # Under --json the story goes to standard error and the facts to standard output.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        facts = run_demo(commands, lake, fresh=fresh, stay=stay, spans=spans)
    if as_json:
        print_json(facts)
