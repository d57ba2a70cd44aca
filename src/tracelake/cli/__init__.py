"""The command line: `tracelake`.

Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted. With `--json`, standard output carries exactly one
JSON document; an error leaves it empty and writes `{"error": {"kind": …, "message": …}}` to standard error.
Heavy packages are imported inside the commands, so that `tracelake --help` is quick.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import typer

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
    sources,
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
from tracelake.storage.descriptors import raise_limit

app = typer.Typer(
    help="Keep every trace: captured once, kept for good, found in milliseconds, versioned like code.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: a third of the start-up time, and examples keep their lines
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(lake.app)
app.add_typer(pipeline.app)
app.add_typer(transactions.app)
app.add_typer(sources.app)
app.add_typer(query.app)
app.add_typer(serve.app)
app.add_typer(maintenance.app)
app.add_typer(archive.app)
app.add_typer(versions.app)
app.add_typer(datasets.app)
app.add_typer(keys.app)


def main() -> None:
    """Run the command line of this process and exit."""
    raise_limit()
    sys.exit(run(sys.argv[1:]))


@cache
def _command() -> typer.core.TyperGroup:
    """Build the commands, once for all that a process runs."""
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup), "it has commands below it"
    return command


def run(args: list[str]) -> int:
    """Run one command and return its exit code; errors made on purpose are shown without a traceback.

    A command that runs others, as the demo does, finds this function in its context.
    """
    prepare_streams()
    as_json = "--json" in args
    try:
        code = _outcome(args, as_json)
        sys.stdout.flush()
    except OSError as error:
        if ignore_closed_stream(sys.stdout, sys.stderr):
            return FAILED  # nobody reads any more, as behind `| head`
        print_error(str(error), kind=type(error).__name__, as_json=as_json)
        return exit_code(type(error))
    return code


def _outcome(args: list[str], as_json: bool) -> int:
    try:
        # Not by its own `main`, which ends the process itself where a pipe is broken, whoever it is from.
        with _command().make_context("tracelake", args or ["--help"], obj=run) as context:
            code = context.command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        where = getattr(error, "ctx", None)
        hint = f"\nTry `{where.command_path} --help`." if where else ""
        print_error(error.format_message() + hint, kind="UsageError", as_json=as_json)
        return error.exit_code
    except TracelakeError as error:
        print_error(str(error), kind=type(error).__name__, as_json=as_json, **_told_by(error))
        return exit_code(type(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    return code if isinstance(code, int) else DONE


def _told_by(error: TracelakeError) -> dict[str, Any]:
    """Return what an error tells beside its message."""
    match error:
        case ConflictError():
            return {"paths": error.paths}
        case QueryError(character=int()):
            return {"character": error.character}
    return {}
