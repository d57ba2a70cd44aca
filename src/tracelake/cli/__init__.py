"""The `tracelake` command line.

Exit codes: 0 done, 1 failed, 2 usage error, 130 interrupted. With `--json`, standard output carries exactly one JSON
document. An error leaves it empty and writes `{"error": {"kind": …, "message": …}}` to standard error.

Commands import heavy packages only when they run, so that `tracelake --help` is quick.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Annotated, Any

import typer

import tracelake
from tracelake._errors import ConflictError, QueryError, TracelakeError
from tracelake.cli import (
    archive,
    datasets,
    keys,
    lake,
    maintenance,
    pipeline,
    query,
    serve,
    transactions,
    versions,
)
from tracelake.cli.output import (
    DONE,
    FAILED,
    INTERRUPTED,
    exit_code,
    ignore_closed_stream,
    prepare_streams,
    print_error,
)


def _print_version(is_requested: bool) -> None:
    """Print the version and end the command, for `--version`."""
    if is_requested:
        typer.echo(f"tracelake {tracelake.__version__}")
        raise typer.Exit


app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help saves a third of the start-up time, and examples keep their lines
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Keep every trace: captured once, kept for good, found in milliseconds, versioned like code."""


app.add_typer(lake.app)
app.add_typer(pipeline.app)
app.add_typer(transactions.app)
app.add_typer(query.app)
app.add_typer(serve.app)
app.add_typer(maintenance.app)
app.add_typer(archive.app)
app.add_typer(versions.app)
app.add_typer(datasets.app)
app.add_typer(keys.app)


def main() -> None:
    """Run the command line of this process and exit."""
    # A shell that completes a command line sets an environment variable: this call prints suggestions and exits.
    _command()._main_shell_completion({}, "tracelake")
    sys.exit(run(sys.argv[1:]))


@cache
def _command() -> typer.core.TyperGroup:
    """Build the commands, once per process."""
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup), "it needs a subcommand"
    return command


def run(args: list[str]) -> int:
    """Run one command and return its exit code; print expected errors without a traceback.

    A command that runs other commands, such as the demo, finds this function in its context.
    """
    prepare_streams()
    as_json = "--json" in args
    try:
        code = _outcome(args, as_json)
        sys.stdout.flush()
    except OSError as error:
        if ignore_closed_stream(sys.stdout, sys.stderr):
            return FAILED  # the reader closed the pipe, as in `| head`
        print_error(str(error), kind=type(error).__name__, as_json=as_json)
        return exit_code(type(error))
    return code


def _outcome(args: list[str], as_json: bool) -> int:
    try:
        # Click's `main` would end the process itself on any broken pipe, also one of another program.
        with _command().make_context("tracelake", args or ["--help"], obj=run) as context:
            code = context.command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        where = getattr(error, "ctx", None)
        hint = f"\nTry `{where.command_path} --help`." if where else ""
        print_error(_usage_message(error) + hint, kind="UsageError", as_json=as_json)
        return error.exit_code
    except TracelakeError as error:
        print_error(str(error), kind=type(error).__name__, as_json=as_json, **_told_by(error))
        return exit_code(type(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return code if isinstance(code, int) else DONE


def _usage_message(error: typer.TyperException) -> str:
    """Return the message of a usage error, with similar names of options."""
    similar = [name for name in getattr(error, "possibilities", None) or () if name.startswith("--")]
    if not similar:
        return error.format_message()
    return f"{error.message}. Did you mean {', '.join(map(repr, similar))}?"


def _told_by(error: TracelakeError) -> dict[str, Any]:
    """Return the fields that an error adds to its message."""
    match error:
        case ConflictError():
            return {"paths": error.paths}
        case QueryError(character=int()):
            return {"character": error.character}
    return {}
