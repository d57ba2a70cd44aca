"""Keys as they are kept and shown. What a client shows, the token, is kept nowhere: only its hash is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

Role: TypeAlias = Literal["ingest", "read", "annotate", "admin"]
Standing: TypeAlias = Literal["active", "expired", "revoked"]
ALL_WORKSPACES: Final = "*"
"""The workspace of a key that is of all of them."""
KEY_VERSION: Final = 2
"""1 noted a workspace that limited nothing: such keys are of all workspaces."""


AUDIT_VERSION: Final = 1


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key, in partition `keys`, under its id."""

    id: str
    name: str
    role: Role
    workspace: str
    secret_sha256: str
    created_ns: int
    expires_ns: int | None = None
    revoked_ns: int | None = None
    spans_per_s: int | None = None
    bytes_per_day: int | None = None
    person: str | None = None
    """Of a session: whose it is, for good. Its name is what people read."""
    format_version: int = KEY_VERSION


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """One key, as it may be shown."""

    id: str
    name: str
    role: Role
    workspace: str
    standing: Standing
    created_ns: int
    expires_ns: int | None
    revoked_ns: int | None
    spans_per_s: int | None
    bytes_per_day: int | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made, with its token: what clients send. It is shown this once."""

    key: KeyInfo
    token: str


AuditKind: TypeAlias = Literal["change", "annotation", "sign-in", "counted"]
"""Each has bounds of its own: who may annotate cannot push out what admins did, and who is refused nothing at all."""


class AuditRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who did what, in partition `audit`, under its id."""

    id: str
    """Kind, a number that falls with time, and something of its own."""
    at_ns: int
    kind: AuditKind
    key_id: str
    """Of the key or session; `local` where none is asked for, `command` for a command, empty where none was shown."""
    name: str
    workspace: str
    """Of the key; `*` for all."""
    action: str
    """Such as `POST /api/v1/branches`, or `key create` of the command line."""
    object: str = ""
    """What the action does not name."""
    outcome: str | None = None
    """The status of the answer, of a command `done` or the error; None: not known, as while it goes on."""
    times: int = 1
    """How often, where like things are counted."""
    address: str = ""
    person: str | None = None
    format_version: int = AUDIT_VERSION
