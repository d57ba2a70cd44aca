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
