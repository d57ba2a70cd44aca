"""API keys: their records, tokens, roles and quotas.

A token is `tlk_`, the id of its key, and 256 random bits. The lake stores only its SHA-256. A random token cannot be
guessed like a password, so a slow hash would only slow down each request. Sign-in sessions are keys too; their ids
begin with `s`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias, get_args

import msgspec

from tracelake import _errors, limits
from tracelake._settings import duration_ns
from tracelake.formats import decode, encode
from tracelake.storage import ABSENT, Conflict, Done, Entry, KeyValueStore, settle
from tracelake.storage.ports import whole_of

KEY_CHANGE_TRIES_MAX: Final = 20
"""Attempts to change a key while others change it."""
_QUOTA_DAY_S: Final = 86_400.0
"""Time over which a daily quota refills."""

Role: TypeAlias = Literal["ingest", "read", "annotate", "admin"]
KeyStatus: TypeAlias = Literal["active", "expired", "revoked"]
ALL_WORKSPACES: Final = "*"
"""Workspace of a key that covers all workspaces."""
KEY_VERSION: Final = 2
"""Format 1 stored a workspace that restricted nothing; such keys cover all workspaces."""

AUDIT_VERSION: Final = 1


class KeyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored record of a key, in partition `keys` under its id."""

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
    """Permanent identity of a session's user; the name is only for display."""
    format_version: int = KEY_VERSION


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key as shown to users, without its secret."""

    id: str
    name: str
    role: Role
    workspace: str
    standing: KeyStatus
    created_ns: int
    expires_ns: int | None
    revoked_ns: int | None
    spans_per_s: int | None
    bytes_per_day: int | None


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key with its token, which clients send. The token is shown only once."""

    key: KeyInfo
    token: str


AuditKind: TypeAlias = Literal["change", "annotation", "sign-in", "counted"]
"""Kinds of audit records. Each has separate limits, so annotations or refused requests cannot push out the changes of
admins."""


class AuditRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored record of an action, in partition `audit` under its id."""

    id: str
    """Workspace and kind, a number that falls with time, and a random suffix."""
    at_ns: int
    kind: AuditKind
    key_id: str
    """Id of the key or session: `local` without authentication, `command` for a command, empty if the request had no
    key."""
    name: str
    workspace: str
    """Workspace of the key; `*` for all."""
    action: str
    """The request, such as `POST /api/v1/branches`, or the command, such as `key create`."""
    object: str = ""
    """Details that the action does not name."""
    outcome: str | None = None
    """Response status, or for a command `done` or the error; None if unknown, as during the action."""
    times: int = 1
    """Number of equal events in a counted record."""
    address: str = ""
    person: str | None = None
    format_version: int = AUDIT_VERSION


Need: TypeAlias = Literal["public", "ingest", "read", "annotate", "admin"]
"""Permission that a route requires."""
GRANTS: Final[dict[Role, frozenset[Need]]] = {
    "ingest": frozenset({"ingest"}),
    "read": frozenset({"read"}),
    "annotate": frozenset({"read", "annotate"}),
    "admin": frozenset({"ingest", "read", "annotate", "admin"}),
}
SECRET_BYTES: Final = 32
ID_BYTES: Final = 6
_TOKEN: Final = re.compile(r"tlk_(s?[0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)


def format_token(key_id: str, secret: bytes) -> str:
    """Return the token that a client sends."""
    return f"tlk_{key_id}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def parse_key_id(token: str) -> str | None:
    """Return the key id in a token, or None for a malformed token."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else None


def is_session(key_id: str) -> bool:
    """Return whether a key is a sign-in session."""
    return key_id.startswith("s")


def display_name(key_id: str) -> str:
    """Return the display name of a key or session."""
    return f"{'session' if is_session(key_id) else 'key'} {key_id}"


def hash_token(token: str) -> str:
    """Return the stored hash of a token; it covers the whole token, including the id."""
    return hashlib.sha256(token.encode()).hexdigest()


def key_status(record: KeyRecord, now_ns: int) -> KeyStatus:
    """Return whether a key is active, expired or revoked."""
    if record.revoked_ns is not None:
        return "revoked"
    return "expired" if record.expires_ns is not None and record.expires_ns <= now_ns else "active"


def check_token(record: KeyRecord | None, token: str, now_ns: int) -> KeyRecord:
    """Return the key of a token. Raises NoKeyError if the key is unknown or not active."""
    if record is None or not hmac.compare_digest(record.secret_sha256, hash_token(token)):
        if is_session(parse_key_id(token) or ""):
            raise _errors.NoKeyError("this session has ended; sign in again")
        raise _errors.NoKeyError("unknown API key; ask the lake's administrator for one")
    standing = key_status(record, now_ns)
    if standing != "active":
        then = "sign in again" if is_session(record.id) else "ask the lake's administrator for a new one"
        raise _errors.NoKeyError(f"{display_name(record.id)} is {standing}; {then}")
    return record


def matches_token(record: KeyRecord, token: str) -> bool:
    """Return whether a token belongs to a key, active or not."""
    return hmac.compare_digest(record.secret_sha256, hash_token(token))


def key_workspace(record: KeyRecord) -> str | None:
    """Return the workspace of a key, or None for all workspaces."""
    return None if record.workspace == ALL_WORKSPACES else record.workspace


def check_all_workspaces(key_id: str, workspace: str | None) -> None:
    """Raise ForbiddenError if a key of one workspace requests data of the whole lake."""
    if workspace is not None:
        raise _errors.ForbiddenError(
            f"{display_name(key_id)} belongs to workspace {workspace!r}, and this request concerns the whole "
            "lake; use a key for all workspaces, which `tracelake key create` makes without --workspace"
        )


def check_need(key_id: str, role: Role, need: Need) -> None:
    """Raise ForbiddenError if a role lacks the permission that a route requires."""
    if need not in GRANTS[role]:
        raise _errors.ForbiddenError(
            f"{display_name(key_id)} has role {role}, and this request needs a key that may {need}"
        )


@dataclass
class Allowance:
    """Token bucket with a rate and a burst. The cost of a request is known only afterwards, so the bucket may go into
    debt.

    While in debt, a client may send no further request, so that the long-term rate is kept.
    """

    per_s: float
    burst: float
    remaining: float
    at_s: float

    @classmethod
    def of(cls, per_s: float, burst: float, now_s: float) -> Allowance:
        """Return a full bucket."""
        return cls(per_s, burst, burst, now_s)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next request may be sent; 0 if it may be sent now."""
        self._refill(now_s)
        return 0.0 if self.remaining > 0 else max(1.0 - self.remaining, 0.0) / self.per_s

    def spend(self, amount: float, now_s: float) -> None:
        """Deduct the cost of a request."""
        self._refill(now_s)
        self.remaining -= amount

    def _refill(self, now_s: float) -> None:
        self.remaining = min(self.burst, self.remaining + max(0.0, now_s - self.at_s) * self.per_s)
        self.at_s = now_s


def allowances(record: KeyRecord, now_s: float) -> tuple[Allowance | None, Allowance | None]:
    """Return the buckets of a key for spans and bytes, or None without a quota."""
    spans, size_bytes = record.spans_per_s, record.bytes_per_day
    return (
        None if spans is None else Allowance.of(spans, spans * limits.QUOTA_BURST_S, now_s),
        None if size_bytes is None else Allowance.of(size_bytes / _QUOTA_DAY_S, size_bytes, now_s),
    )


logger = logging.getLogger("tracelake.access")

PARTITION: Final = "keys"


class KeyRecords:
    """Key records of one partition. Thread-safe."""

    partition: ClassVar[str]
    list_command: ClassVar[str]

    def __init__(self, records: Callable[[], KeyValueStore]) -> None:
        self._records = records

    def all(self) -> list[KeyInfo]:
        """Return all keys, oldest first, including ended ones; log the damaged ones."""
        records, problems = self.whole_records()
        for problem in problems:
            logger.warning("%s The key cannot be used.", problem)
        return [_shown(each) for each in sorted(records.values(), key=lambda each: each.created_ns)]

    def revoke(self, key_id: str) -> KeyInfo:
        """Revoke a key for good. Raises NotFoundError if no key has this id."""
        now_ns = time.time_ns()
        return self._change(
            key_id,
            lambda record: (
                record
                if record.revoked_ns is not None
                else msgspec.structs.replace(record, revoked_ns=now_ns)
            ),
        )

    def whole_records(self) -> tuple[dict[str, KeyRecord], list[_errors.DamageError]]:
        """Return the readable records, and the problems of damaged ones, which cannot be used."""
        problems: list[_errors.DamageError] = []
        records: dict[str, KeyRecord] = {}
        for each in whole_of(
            self._records().scan, self.partition, lambda _, problem: problems.append(problem)
        ):
            try:
                records[each.key] = decoded(each)
            except _errors.DamageError as error:
                problems.append(error)
        return records, problems

    def _add(self, record: KeyRecord) -> KeyInfo:
        records, data = self._records(), encode(record)
        outcome = records.set_if(self.partition, record.id, data, ABSENT)
        # The outcome of the write may be unknown. Either the record exists, or the key is invalid.
        written = settle(records, self.partition, record.id, outcome, lambda entry: entry.value == data)
        if isinstance(written, Conflict):
            raise _errors.ContentionError("the key could not be written; try again")
        return _shown(record)

    def _change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyInfo:
        for _ in range(KEY_CHANGE_TRIES_MAX):
            entry = self._records().get(self.partition, key_id) if key_id else None
            if entry is None:
                shown = key_id[: limits.NAME_QUOTED_MAX_CHARS]
                raise _errors.NotFoundError(
                    f"no record has the id {shown!r}; `{self.list_command}` lists all"
                )
            record = decoded(entry)
            changed = change(record)
            if changed == record:  # unchanged, or our own write whose reply was lost
                return _shown(record)
            outcome = self._records().set_if(self.partition, key_id, encode(changed), entry.version)
            if isinstance(outcome, Done):
                return _shown(changed)
        raise _errors.ContentionError(f"{display_name(key_id)} changed too often at the same time; try again")


class Keys(KeyRecords):
    """Create, list and revoke keys: `lake.keys`. Thread-safe."""

    partition = PARTITION
    list_command = "tracelake key list"

    def create(
        self,
        name: str,
        role: Role,
        workspace: str = ALL_WORKSPACES,
        expires_ns: int | None = None,
        spans_per_s: int | None = None,
        bytes_per_day: int | None = None,
    ) -> NewKey:
        """Create a key, and return it with its token, which is never shown again.

        The key writes to and reads from its workspace only; `*` covers all workspaces. Raises UsageError for an
        invalid name, role or number, LimitError for too many keys.
        """
        _check(name, role, workspace, expires_ns, spans_per_s, bytes_per_day)
        if sum(map(len, self.whole_records())) >= limits.KEYS_MAX:
            raise _errors.LimitError(
                f"the lake already has {limits.KEYS_MAX} keys, including revoked ones; use an existing key"
            )
        key_id = secrets.token_hex(ID_BYTES)
        token = format_token(key_id, secrets.token_bytes(SECRET_BYTES))
        record = KeyRecord(
            id=key_id,
            name=name,
            role=role,
            workspace=workspace,
            secret_sha256=hash_token(token),
            created_ns=time.time_ns(),
            expires_ns=expires_ns,
            spans_per_s=spans_per_s,
            bytes_per_day=bytes_per_day,
        )
        return NewKey(self._add(record), token)

    def expire(self, key_id: str, expires_ns: int | None) -> KeyInfo:
        """Set the expiry of a key; None removes it. Raises NotFoundError if no key has this id, and UsageError for an
        invalid time."""
        _check_time(expires_ns)
        return self._change(key_id, lambda record: msgspec.structs.replace(record, expires_ns=expires_ns))


def decoded(entry: Entry) -> KeyRecord:
    """Return the stored key of an entry; reads format 1 too. Raises DamageError if it does not decode."""
    what = display_name(entry.key)
    try:
        return decode(KeyRecord, entry.value, what, KEY_VERSION)
    except _errors.DamageError as error:
        with suppress(_errors.DamageError):
            record = decode(KeyRecord, entry.value, what, 1)
            return msgspec.structs.replace(record, workspace=ALL_WORKSPACES, format_version=KEY_VERSION)
        raise error from error.__cause__


def _shown(record: KeyRecord) -> KeyInfo:
    return KeyInfo(
        record.id,
        record.name,
        record.role,
        record.workspace,
        key_status(record, time.time_ns()),
        record.created_ns,
        record.expires_ns,
        record.revoked_ns,
        record.spans_per_s,
        record.bytes_per_day,
    )


def _check(name: str, role: str, workspace: str, expires_ns: int | None, *numbers: int | None) -> None:
    for what, text in (("name", name), ("workspace", workspace)):
        if not text.strip() or len(text) > limits.KEY_NAME_MAX_CHARS or not text.isprintable():
            raise _errors.UsageError(
                f"a key's {what} must have 1 to {limits.KEY_NAME_MAX_CHARS} printable characters, not "
                f"{text[: limits.NAME_QUOTED_MAX_CHARS]!r}"
            )
    if role not in get_args(Role):
        raise _errors.UsageError(
            f"{role[: limits.NAME_QUOTED_MAX_CHARS]!r} is not a role; choose {', '.join(get_args(Role))}"
        )
    _check_time(expires_ns)
    if any(number is not None and not 1 <= number <= limits.QUOTA_MAX for number in numbers):
        raise _errors.UsageError(f"a quota must be a number from 1 to {limits.QUOTA_MAX}")


def _check_time(expires_ns: int | None) -> None:
    if expires_ns is not None and not 0 <= expires_ns < limits.KEY_TIME_MAX_NS:
        raise _errors.UsageError("a key cannot expire at that time; choose one before the year 2262")


def expiry_ns(text: str | None, now_ns: int) -> int | None:
    """Return the expiry after a duration such as `30d`, `12h` or `5m`; None for None or `never`. Raises UsageError for
    any other text."""
    if text is None or text == "never":
        return None
    return now_ns + duration_ns(text, least=0, most=99_999)
