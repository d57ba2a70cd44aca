"""`tracelake key audit`, and the records of commands about keys."""

from __future__ import annotations

import getpass
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tracelake import limits
from tracelake._errors import TracelakeError
from tracelake.access.audit import audit_record, since_ns, with_outcome
from tracelake.access.model import AuditRecord
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
    """List who did what, the newest first: changes by HTTP and of keys, sign-ins, and how often who was refused."""
    with opened(lake) as open_lake:
        records = open_lake.audit.newest(limit, since_ns(since, time.time_ns()), key)
    if as_json:
        print_json([msgspec.to_builtins(record) for record in records])
        return
    headers = ("time", "key", "name", "workspace", "action", "object", "came of it", "times", "address")
    console().print(render.grid(headers, map(_row, records), ids=("key",)))


@contextmanager
def recorded(lake: Lake, action: str, object: str) -> Iterator[list[str]]:
    """Note that a command does something, before it does, and then what came of it; to the list it adds objects."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # it runs as a number without a name
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
    except TracelakeError as error:  # it is done, and there is a record of it
        logger.warning("the audit does not say what came of %r: %s", record.action, error)


def _row(record: AuditRecord) -> tuple[object, ...]:
    at = datetime.fromtimestamp(record.at_ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        *(at, record.key_id, record.name, record.workspace, record.action, record.object),
        *(record.outcome or "not known", record.times, record.address),
    )
