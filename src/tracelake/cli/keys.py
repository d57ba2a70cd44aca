"""Commands for API keys, sign-in sessions and the audit log."""

from __future__ import annotations

import getpass
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from tracelake import limits
from tracelake._errors import TracelakeError
from tracelake.access.audit import audit_record, since_ns, with_outcome
from tracelake.access.keys import ALL_WORKSPACES, AuditRecord, KeyInfo, Role, display_name, expiry_ns
from tracelake.cli import render
from tracelake.cli.options import JsonOption, LakeOption, examples, opened
from tracelake.cli.output import console, print_json

if TYPE_CHECKING:
    from tracelake.lake.lake import Lake

logger = logging.getLogger("tracelake.access")

COMMAND_EPILOG = examples(
    "tracelake key audit --since 7d", "tracelake key audit --key 1f2e3d4c5b6a --limit 1000 --json"
)


def list_audit(
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Only of the last, such as 7d; without, all.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only of this key or session; without, of all.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(help="How many at most.")] = limits.AUDIT_SHOWN_DEFAULT,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List audit records, newest first.

    Records are changes, sign-ins, and counts of refused requests.
    """
    with opened(lake) as open_lake:
        records = open_lake.audit.newest(limit, since_ns(since, time.time_ns()), key)
    if as_json:
        print_json([msgspec.to_builtins(record) for record in records])
        return
    headers = ("time", "key", "name", "workspace", "action", "object", "came of it", "times", "address")
    console().print(render.grid(headers, map(_audit_row, records), ids=("key",)))


@contextmanager
def recorded(lake: Lake, action: str, object: str) -> Iterator[list[str]]:
    """Write an audit record before a command's change, and its outcome after it; the block may append objects to the
    list."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # the process runs under a numeric user id without a name
        user = ""
    record = audit_record("change", "command", action, name=user, object=object)
    lake.audit.write([record])
    objects = [object]
    try:
        yield objects
    except TracelakeError as error:
        _end(lake, with_outcome(record, type(error).__name__))
        raise
    _end(lake, with_outcome(record, "done", ", ".join(objects)))


def _end(lake: Lake, record: AuditRecord) -> None:
    try:
        lake.audit.write([record])
    except TracelakeError as error:  # the change is done, and its first record exists
        logger.warning("the audit does not say what came of %r: %s", record.action, error)


def _audit_row(record: AuditRecord) -> tuple[object, ...]:
    at = datetime.fromtimestamp(record.at_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        *(at, record.key_id, record.name, record.workspace, record.action, record.object),
        *(record.outcome or "not known", record.times, record.address),
    )


app = typer.Typer()
key_app = typer.Typer(help="Say who may use the servers of a lake, and for what.", no_args_is_help=True)
app.add_typer(key_app, name="key")
session_app = typer.Typer(help="See who is signed in by a provider, and end it.", no_args_is_help=True)
app.add_typer(session_app, name="session")

key_app.command("audit", epilog=COMMAND_EPILOG)(list_audit)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id of the key, as `key list` has it.")]


@key_app.command(
    "create",
    epilog=examples(
        "tracelake key create ada --role admin",
        "tracelake key create shop --role ingest --expires-in 90d --spans-per-s 2000 --bytes-per-day 5000000000",
    ),
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.")],
    role: Annotated[
        str,
        typer.Option(
            metavar="ingest|read|annotate|admin",
            help="What it may do: send traces; read; read, and write tags and assessments; everything.",
        ),
    ],
    workspace: Annotated[
        str, typer.Option(help="The one workspace that it writes into and reads; * for all.")
    ] = ALL_WORKSPACES,
    expires_in: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="When it ends, such as 90d; without, never.", show_default=False
        ),
    ] = None,
    spans_per_s: Annotated[
        int | None,
        typer.Option(
            help="How many spans a second each server takes from it; without, any.", show_default=False
        ),
    ] = None,
    bytes_per_day: Annotated[
        int | None,
        typer.Option(help="How many bytes, decompressed, in a day; without, any.", show_default=False),
    ] = None,
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key, and print its token this once."""
    with opened(lake) as open_lake:
        expires = expiry_ns(expires_in, time.time_ns())
        with recorded(open_lake, "key create", f"name {name}, role {role}, workspace {workspace}") as objects:
            new_key = open_lake.keys.create(
                name, cast("Role", role), workspace, expires, spans_per_s, bytes_per_day
            )
            objects.append(display_name(new_key.key.id))
    if as_json:
        print_json({"key": asdict(new_key.key), "token": new_key.token})
        return
    console().print(
        f"Key {new_key.key.id} for {new_key.key.name}, role {new_key.key.role}. It is shown this once:"
    )
    print(new_key.token)


@key_app.command("list", epilog=examples("tracelake key list", "tracelake key list --json"))
def list_keys(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List all keys, including those that ended."""
    with opened(lake) as open_lake:
        keys = open_lake.keys.all()
    if as_json:
        print_json([asdict(key) for key in keys])
        return
    headers = ("id", "name", "role", "workspace", "is", "made", "ends", "spans/s", "bytes/day")
    console().print(render.grid(headers, map(_key_row, keys), ids=("id",)))


@key_app.command("revoke", epilog=examples("tracelake key revoke 1f2e3d4c5b6a"))
def revoke(key_id: IdArgument, lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """Revoke a key for good; running servers refuse it within seconds."""
    with opened(lake) as open_lake, recorded(open_lake, "key revoke", key_id):
        _tell(open_lake.keys.revoke(key_id), as_json=as_json)


@key_app.command(
    "expire",
    epilog=examples(
        "tracelake key expire 1f2e3d4c5b6a --in 30d", "tracelake key expire 1f2e3d4c5b6a --in never"
    ),
)
def expire(
    key_id: IdArgument,
    ends_in: Annotated[str, typer.Option("--in", metavar="DURATION", help="Such as 30d, 12h, 0m; or never.")],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set when a key expires, counted from now."""
    with opened(lake) as open_lake, recorded(open_lake, "key expire", f"{key_id} in {ends_in}"):
        _tell(open_lake.keys.expire(key_id, expiry_ns(ends_in, time.time_ns())), as_json=as_json)


@session_app.command("list", epilog=examples("tracelake session list", "tracelake session list --json"))
def list_sessions(lake: LakeOption = None, as_json: JsonOption = False) -> None:
    """List the sessions of users who signed in through a provider."""
    with opened(lake) as open_lake:
        sessions = open_lake.sessions.all()
    if as_json:
        print_json([asdict(session) for session in sessions])
        return
    headers = ("id", "who", "role", "workspace", "is", "since", "ends")
    rows = (_key_row(session)[:7] for session in sessions)
    console().print(render.grid(headers, rows, ids=("id",)))


@session_app.command("end", epilog=examples("tracelake session end s1f2e3d4c5b6a"))
def end_session(
    session_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the session, as `session list` has it.")
    ],
    lake: LakeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a session for good; running servers refuse it within seconds."""
    with opened(lake) as open_lake, recorded(open_lake, "session end", session_id):
        _tell(open_lake.sessions.revoke(session_id), as_json=as_json)


def _tell(key: KeyInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(key))
        return
    ends = "never ends" if key.expires_ns is None else f"ends {_time(key.expires_ns)}"
    what = display_name(key.id)
    console().print(f"{what[0].upper()}{what[1:]} for {key.name} is {key.standing}, and {ends}.")


def _key_row(key: KeyInfo) -> tuple[Any, ...]:
    ends = key.revoked_ns if key.revoked_ns is not None else key.expires_ns
    return (
        *(key.id, key.name, key.role, key.workspace, key.standing),
        *(_time(key.created_ns), None if ends is None else _time(ends), key.spans_per_s, key.bytes_per_day),
    )


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M")
