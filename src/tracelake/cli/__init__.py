"""The `tracelake` command line.

Exit codes: 0 done, 1 failed, 2 usage error, 130 interrupted. With `--json`, standard output carries exactly one JSON
document. An error leaves it empty and writes `{"error": {"kind": …, "message": …}}` to standard error.

Commands import heavy packages only when they run, so that `tracelake --help` is quick.
"""

from __future__ import annotations

import gc
import sys
from functools import cache
from importlib.abc import MetaPathFinder
from typing import Annotated, Any, Final

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


_OPTIONS: Final[dict[str, Any]] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # plain help saves a third of the start-up time, and examples keep their lines
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(**_OPTIONS)


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


_GC_THRESHOLD: Final = 200_000
"""New objects between two collections. With Python's 700, imports spend a tenth of a short command on collections; most
commands end before the first of this threshold."""


_PIPELINES: Final = ("demo", "executor", "ingest", "pipeline run")
"""Commands that run code of users, such as sinks, whose frames pyarrow must convert completely. A server runs its
pipeline in another process."""


class _NoPandas(MetaPathFinder):
    """Keep pyarrow from importing pandas for its first array, which takes a fifth of a second.

    Pyarrow looks for pandas once, and again when a caller asks it for a frame. The first search fails here, as soon as
    a module imports `pyarrow.compute`. Other imports of pandas succeed.
    """

    _is_hidden = False

    def find_spec(self, name: str, *_: object) -> None:
        """Raise ModuleNotFoundError for pandas during pyarrow's search; otherwise leave modules to other finders."""
        if name == "pandas" and self._is_hidden:
            raise ModuleNotFoundError(name=name)
        if name == "pyarrow.compute":
            import pyarrow as pa  # noqa: PLC0415  it is imported already

            self._is_hidden = True
            pa.chunked_array([[0]]).to_numpy()  # each of the two calls searches by itself
            sys.meta_path.remove(self)


def main() -> None:
    """Run the command line of this process and exit."""
    gc.set_threshold(_GC_THRESHOLD)
    if not " ".join(sys.argv[1:3]).startswith(_PIPELINES):
        sys.meta_path.insert(0, _NoPandas())
    # A shell that completes a command line sets an environment variable: this call prints suggestions and exits.
    _command()._main_shell_completion({}, "tracelake")
    code = run(sys.argv[1:])
    gc.disable()  # Python collects once more before it ends, when all memory is freed anyway
    sys.exit(code)


@cache
def _command(name: str | None = None) -> typer.core.TyperGroup:
    """Build the commands, once per process: all of them, or those of this name, which takes a fraction of the time."""
    chosen = app
    if name is not None:
        parts = [group.typer_instance for group in app.registered_groups if group.typer_instance]
        chosen = typer.Typer(**_OPTIONS)
        chosen.registered_callback = app.registered_callback
        chosen.registered_commands = [c for each in parts for c in each.registered_commands if c.name == name]
        chosen.registered_groups = [g for each in parts for g in each.registered_groups if g.name == name]
        if not (chosen.registered_commands or chosen.registered_groups or name == "--version"):
            return _command()
    command = typer.main.get_command(chosen)
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
        chosen = _command(args[0] if args else None)
        with chosen.make_context("tracelake", args or ["--help"], obj=run) as context:
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
