"""Keys as they are kept and shown. What a client shows, the token, is kept nowhere: only its hash is.

The keys of a lake, in its records.

What a key may do, and until when; what its token looks like; how much it may send. Pure.

A token is `tlk_`, the id of its key, and 256 random bits. Whoever reads the lake's records finds only its SHA-256:
there is nothing to guess it from, as there would be of a password, so a slow hash would only cost each request time.
The id of a session, which is a key that a sign-in made, begins with `s`.

When a key ends, as people say it.
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

from tracelake import limits
from tracelake._errors import (
    ContentionError,
    DamageError,
    ForbiddenError,
    LimitError,
    NoKeyError,
    NotFoundError,
    UsageError,
)
from tracelake.durations import duration_ns
from tracelake.formats import decode, encode
from tracelake.storage import ABSENT, Conflict, Done, Entry, KeyValueStore, settle
from tracelake.storage.object_records import whole_of

Role: TypeAlias = Literal["ingest", "read", "annotate", "admin"]
KeyStatus: TypeAlias = Literal["active", "expired", "revoked"]
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
    standing: KeyStatus
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


Need: TypeAlias = Literal["public", "ingest", "read", "annotate", "admin"]
"""What a route asks for."""
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
    """Return what a client sends."""
    return f"tlk_{key_id}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def parse_key_id(token: str) -> str | None:
    """Return the id of the key that a token is of; None where it is no token."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else None


def is_session(key_id: str) -> bool:
    """Whether a key is the session of somebody who signed in."""
    return key_id.startswith("s")


def display_name(key_id: str) -> str:
    """Return what a key is called where people read of it."""
    return f"{'session' if is_session(key_id) else 'key'} {key_id}"


def hash_token(token: str) -> str:
    """Return what is kept of a token, all of which is hashed, its id too."""
    return hashlib.sha256(token.encode()).hexdigest()


def key_status(record: KeyRecord, now_ns: int) -> KeyStatus:
    """Return whether a key counts."""
    if record.revoked_ns is not None:
        return "revoked"
    return "expired" if record.expires_ns is not None and record.expires_ns <= now_ns else "active"


def check_token(record: KeyRecord | None, token: str, now_ns: int) -> KeyRecord:
    """Return the key of a token. Raises NoKeyError where there is none, or it does not count."""
    if record is None or not hmac.compare_digest(record.secret_sha256, hash_token(token)):
        if is_session(parse_key_id(token) or ""):
            raise NoKeyError("this session is over; sign in again")
        raise NoKeyError("this key is not one of the lake; ask who keeps the lake for one")
    standing = key_status(record, now_ns)
    if standing != "active":
        then = "sign in again" if is_session(record.id) else "ask who keeps the lake for another"
        raise NoKeyError(f"{display_name(record.id)} is {standing}; {then}")
    return record


def matches_token(record: KeyRecord, token: str) -> bool:
    """Whether a token is of a key, whether or not that counts."""
    return hmac.compare_digest(record.secret_sha256, hash_token(token))


def key_workspace(record: KeyRecord) -> str | None:
    """Return the workspace that a key is of; None for one of all workspaces."""
    return None if record.workspace == ALL_WORKSPACES else record.workspace


def check_all_workspaces(key_id: str, workspace: str | None) -> None:
    """Raises ForbiddenError where a key of one workspace asks for what is of the whole lake."""
    if workspace is not None:
        raise ForbiddenError(
            f"{display_name(key_id)} is of workspace {workspace!r}, and this is of the whole lake; ask with a key of "
            "all "
            "workspaces, which `tracelake key create` makes without --workspace"
        )


def check_need(key_id: str, role: Role, need: Need) -> None:
    """Raises ForbiddenError where a role does not hold what a route needs."""
    if need not in GRANTS[role]:
        raise ForbiddenError(f"{display_name(key_id)} has role {role}, and this needs a key that may {need}")


@dataclass
class Allowance:
    """So much a second, some of it at once. What is spent is known only afterwards, so it may go into debt.

    While it is in debt nothing more may be sent: over a long time no more goes through than is allowed.
    """

    per_s: float
    burst: float
    left: float
    at_s: float

    @classmethod
    def of(cls, per_s: float, burst: float, now_s: float) -> Allowance:
        """Begin with all of it."""
        return cls(per_s, burst, burst, now_s)

    def wait_s(self, now_s: float) -> float:
        """Return after how many seconds something may be sent; 0 where it may now."""
        self._refill(now_s)
        return 0.0 if self.left > 0 else max(1.0 - self.left, 0.0) / self.per_s

    def spend(self, amount: float, now_s: float) -> None:
        """Count what was sent."""
        self._refill(now_s)
        self.left -= amount

    def _refill(self, now_s: float) -> None:
        self.left = min(self.burst, self.left + max(0.0, now_s - self.at_s) * self.per_s)
        self.at_s = now_s


def allowances(record: KeyRecord, now_s: float) -> tuple[Allowance | None, Allowance | None]:
    """Return what a key may send: spans, and bytes; None where it is not limited."""
    spans, size_bytes = record.spans_per_s, record.bytes_per_day
    return (
        None if spans is None else Allowance.of(spans, spans * limits.QUOTA_BURST_S, now_s),
        None if size_bytes is None else Allowance.of(size_bytes / limits.QUOTA_DAY_S, size_bytes, now_s),
    )


logger = logging.getLogger("tracelake.access")

PARTITION: Final = "keys"


class KeyRecords:
    """Records of keys in one partition. Threads may share it."""

    partition: ClassVar[str]
    list_command: ClassVar[str]

    def __init__(self, records: Callable[[], KeyValueStore]) -> None:
        self._records = records

    def all(self) -> list[KeyInfo]:
        """Return all of them, the oldest first, with those that ended; of damaged ones the log tells."""
        records, problems = self.whole_records()
        for problem in problems:
            logger.warning("%s Nobody can use it.", problem)
        return [_shown(each) for each in sorted(records.values(), key=lambda each: each.created_ns)]

    def revoke(self, key_id: str) -> KeyInfo:
        """End one for good. Raises NotFoundError."""
        now_ns = time.time_ns()
        return self._change(
            key_id,
            lambda record: (
                record
                if record.revoked_ns is not None
                else msgspec.structs.replace(record, revoked_ns=now_ns)
            ),
        )

    def whole_records(self) -> tuple[dict[str, KeyRecord], list[DamageError]]:
        """Return those that can be read, and what is wrong with the others, which nobody can use."""
        problems: list[DamageError] = []
        records: dict[str, KeyRecord] = {}
        for each in whole_of(
            self._records().scan, self.partition, lambda _, problem: problems.append(problem)
        ):
            try:
                records[each.key] = decoded(each)
            except DamageError as error:
                problems.append(error)
        return records, problems

    def _add(self, record: KeyRecord) -> KeyInfo:
        records, data = self._records(), encode(record)
        outcome = records.set_if(self.partition, record.id, data, ABSENT)
        # Of a write whose fate is not known: it is there, or the key is none.
        written = settle(records, self.partition, record.id, outcome, lambda entry: entry.value == data)
        if isinstance(written, Conflict):
            raise ContentionError("the key could not be written; try again")
        return _shown(record)

    def _change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyInfo:
        for _ in range(limits.KEY_CHANGE_TRIES_MAX):
            entry = self._records().get(self.partition, key_id) if key_id else None
            if entry is None:
                shown = key_id[: limits.NAME_QUOTED_MAX_CHARS]
                raise NotFoundError(f"nothing has the id {shown!r}; `{self.list_command}` names all")
            record = decoded(entry)
            changed = change(record)
            if changed == record:  # as it was, or our own write of which the answer was lost
                return _shown(record)
            outcome = self._records().set_if(self.partition, key_id, encode(changed), entry.version)
            if isinstance(outcome, Done):
                return _shown(changed)
        raise ContentionError(f"others changed {display_name(key_id)} again and again; try again")


class Keys(KeyRecords):
    """Makes, lists, revokes keys: `lake.keys`. Threads may share it."""

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
        """Make a key, and return it with its token, which nothing shows again.

        It writes into its workspace, and reads nothing else; `*` is all workspaces. Raises UsageError for a name, role
        or number that cannot be, LimitError where there are too many keys.
        """
        _check(name, role, workspace, expires_ns, spans_per_s, bytes_per_day)
        if sum(map(len, self.whole_records())) >= limits.KEYS_MAX:
            raise LimitError(f"the lake has {limits.KEYS_MAX} keys; revoked ones count too, so use one again")
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
        """Let a key end at a time; with None at none. Raises NotFoundError, UsageError."""
        _check_time(expires_ns)
        return self._change(key_id, lambda record: msgspec.structs.replace(record, expires_ns=expires_ns))


def decoded(entry: Entry) -> KeyRecord:
    """Return a key as it is kept. Raises DamageError."""
    what = display_name(entry.key)
    try:
        return decode(KeyRecord, entry.value, what, KEY_VERSION)
    except DamageError as error:
        with suppress(DamageError):
            noted = decode(KeyRecord, entry.value, what, 1)
            return msgspec.structs.replace(noted, workspace=ALL_WORKSPACES, format_version=KEY_VERSION)
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
            raise UsageError(
                f"a key's {what} has 1 to {limits.KEY_NAME_MAX_CHARS} characters that can be printed, "
                f"not {text[: limits.NAME_QUOTED_MAX_CHARS]!r}"
            )
    if role not in get_args(Role):
        raise UsageError(
            f"{role[: limits.NAME_QUOTED_MAX_CHARS]!r} is no role; choose {', '.join(get_args(Role))}"
        )
    _check_time(expires_ns)
    if any(number is not None and not 1 <= number <= limits.QUOTA_MAX for number in numbers):
        raise UsageError(f"a quota is a number from 1 to {limits.QUOTA_MAX}")


def _check_time(expires_ns: int | None) -> None:
    if expires_ns is not None and not 0 <= expires_ns < limits.KEY_TIME_MAX_NS:
        raise UsageError("a key cannot expire at that time; choose one before the year 2262")


def expiry_ns(text: str | None, now_ns: int) -> int | None:
    """Return when a key ends that ends after `30d`, `12h` or `5m`; None for none, or `never`. Raises UsageError."""
    if text is None or text == "never":
        return None
    return now_ns + duration_ns(text, least=0, most=99_999)
