"""Commands for API keys, sign-in sessions and the audit log."""

from __future__ import annotations

import getpass
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

from tracelake import limits
from tracelake._errors import TracelakeError
from tracelake.cli import render
from tracelake.cli.command import Renderable, Rendered, command

if TYPE_CHECKING:
    from tracelake.access.keys import AuditRecord, KeyInfo, Role
    from tracelake.lake.lake import Lake

# ruff: noqa: PLC0415  heavy packages are imported by the commands that need them


logger = logging.getLogger("tracelake.access")


def command_user() -> str:
    """Return the name of the user who runs the command; empty if unknown."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the process runs under a numeric user id without a name
        return ""


@contextmanager
def recorded(lake: Lake, action: str, object: str) -> Iterator[list[str]]:
    """Write an audit record before a command's change, and its outcome after it; the block may append objects to the
    list."""
    from tracelake.access.audit import audit_record, with_outcome

    record = audit_record("change", "command", action, name=command_user(), object=object)
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
        logger.warning("the outcome of %r is missing in the audit: %s", record.action, error)


def _audit_row(record: AuditRecord) -> tuple[object, ...]:
    at = datetime.fromtimestamp(record.at_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        *(at, record.key_id, record.name, record.workspace, record.action, record.object),
        *(record.outcome or "not known", record.times, record.address),
    )


app = typer.Typer()
key_app = typer.Typer(help="Manage the API keys of a lake.", no_args_is_help=True)
app.add_typer(key_app, name="key")
session_app = typer.Typer(
    help="List and end sessions of users who signed in through a provider.", no_args_is_help=True
)
app.add_typer(session_app, name="session")


def _audit(records: Sequence[AuditRecord]) -> Rendered:
    headers = ("time", "key", "name", "workspace", "action", "object", "came of it", "times", "address")
    return render.grid(headers, map(_audit_row, records), ids=("key",))


@command(
    key_app,
    "audit",
    text=_audit,
    json=msgspec.to_builtins,
    examples=["tracelake key audit --since 7d", "tracelake key audit --key 1f2e3d4c5b6a --limit 1000 --json"],
)
def list_audit(
    lake: Lake,
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Show only records of this last period, such as 7d."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="ID", help="Show only records of this key or session.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many.")] = limits.AUDIT_SHOWN_DEFAULT,
) -> list[AuditRecord]:
    """List audit records, newest first.

    Records are changes, sign-ins, and counts of refused requests.
    """
    from tracelake.access.audit import since_ns

    return lake.audit.newest(limit, since_ns(since, time.time_ns()), key)


IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the key, as in `key list`.")]


def _created(of: dict[str, Any]) -> Iterator[Renderable]:
    key = of["key"]
    yield f"Key {key.id} for {key.name}, role {key.role}. It is shown this once:"
    yield of["token"]


@command(
    key_app,
    "create",
    text=_created,
    examples=[
        "tracelake key create ada --role admin",
        "tracelake key create shop --role ingest --expires-in 90d --spans-per-s 2000 --bytes-per-day 5000000000",
    ],
)
def create(
    lake: Lake,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of its user.")],
    role: Annotated[
        str,
        typer.Option(
            metavar="ingest|read|annotate|admin",
            help="Allow: send traces; read; read, and write tags and assessments; everything.",
        ),
    ],
    workspace: Annotated[str, typer.Option(help="Restrict it to this workspace; * for all.")] = "*",
    expires_in: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help=("Let it expire, such as after 90d; by default never.")),
    ] = None,
    spans_per_s: Annotated[
        int | None, typer.Option(help="Limit the spans per second that each server accepts from it.")
    ] = None,
    bytes_per_day: Annotated[int | None, typer.Option(help="Limit its decompressed bytes per day.")] = None,
) -> dict[str, Any]:
    """Create a key, and print its token this once."""
    from tracelake.access.keys import display_name, expiry_ns

    expires = expiry_ns(expires_in, time.time_ns())
    with recorded(lake, "key create", f"name {name}, role {role}, workspace {workspace}") as objects:
        new_key = lake.keys.create(name, cast("Role", role), workspace, expires, spans_per_s, bytes_per_day)
        objects.append(display_name(new_key.key.id))
    return {"key": new_key.key, "token": new_key.token}


def _keys(keys: Sequence[KeyInfo]) -> Rendered:
    headers = ("id", "name", "role", "workspace", "is", "made", "ends", "spans/s", "bytes/day")
    return render.grid(headers, map(_key_row, keys), ids=("id",))


@command(key_app, "list", text=_keys, examples=["tracelake key list", "tracelake key list --json"])
def list_keys(lake: Lake) -> list[KeyInfo]:
    """List all keys, including those that ended."""
    return lake.keys.all()


def _state(key: KeyInfo) -> Rendered:
    ends = "never ends" if key.expires_ns is None else f"ends {_time(key.expires_ns)}"
    from tracelake.access.keys import display_name

    what = display_name(key.id)
    return f"{what[0].upper()}{what[1:]} for {key.name} is {key.standing}, and {ends}."


@command(key_app, "revoke", text=_state, examples=["tracelake key revoke 1f2e3d4c5b6a"])
def revoke(lake: Lake, key_id: IdArgument) -> KeyInfo:
    """Revoke a key for good; running servers refuse it within seconds."""
    with recorded(lake, "key revoke", key_id):
        return lake.keys.revoke(key_id)


@command(
    key_app,
    "expire",
    text=_state,
    examples=["tracelake key expire 1f2e3d4c5b6a --in 30d", "tracelake key expire 1f2e3d4c5b6a --in never"],
)
def expire(
    lake: Lake,
    key_id: IdArgument,
    ends_in: Annotated[
        str,
        typer.Option(
            "--in", metavar="DURATION", help=("Time until it expires, such as 30d, 12h, 0m; or never.")
        ),
    ],
) -> KeyInfo:
    """Set when a key expires, counted from now."""
    from tracelake.access.keys import expiry_ns

    with recorded(lake, "key expire", f"{key_id} in {ends_in}"):
        return lake.keys.expire(key_id, expiry_ns(ends_in, time.time_ns()))


def _sessions(sessions: Sequence[KeyInfo]) -> Rendered:
    headers = ("id", "who", "role", "workspace", "is", "since", "ends")
    return render.grid(headers, (_key_row(session)[:7] for session in sessions), ids=("id",))


@command(
    session_app, "list", text=_sessions, examples=["tracelake session list", "tracelake session list --json"]
)
def list_sessions(lake: Lake) -> list[KeyInfo]:
    """List the sessions of users who signed in through a provider."""
    return lake.sessions.all()


@command(session_app, "end", text=_state, examples=["tracelake session end s1f2e3d4c5b6a"])
def end_session(
    lake: Lake,
    session_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the session, as in `session list`.")],
) -> KeyInfo:
    """End a session for good; running servers refuse it within seconds."""
    with recorded(lake, "session end", session_id):
        return lake.sessions.revoke(session_id)


def _key_row(key: KeyInfo) -> tuple[Any, ...]:
    ends = key.revoked_ns if key.revoked_ns is not None else key.expires_ns
    return (
        *(key.id, key.name, key.role, key.workspace, key.standing),
        *(_time(key.created_ns), None if ends is None else _time(ends), key.spans_per_s, key.bytes_per_day),
    )


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M")
