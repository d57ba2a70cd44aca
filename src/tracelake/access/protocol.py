"""What a key may do, and until when; what its token looks like; how much it may send. Pure.

A token is `tlk_`, the id of its key, and 256 random bits. Whoever reads the lake's records finds only its SHA-256:
there is nothing to guess it from, as there would be of a password, so a slow hash would only cost each request time.
The id of a session, which is a key that a sign-in made, begins with `s`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tracelake import limits
from tracelake._errors import ForbiddenError, NoKeyError
from tracelake.access.model import ALL_WORKSPACES, KeyRecord, Role, Standing

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


def token_of(key_id: str, secret: bytes) -> str:
    """Return what a client sends."""
    return f"tlk_{key_id}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def id_of(token: str) -> str | None:
    """Return the id of the key that a token is of; None where it is no token."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else None


def is_session(key_id: str) -> bool:
    """Whether a key is the session of somebody who signed in."""
    return key_id.startswith("s")


def called(key_id: str) -> str:
    """Return what a key is called where people read of it."""
    return f"{'session' if is_session(key_id) else 'key'} {key_id}"


def hash_of(token: str) -> str:
    """Return what is kept of a token, all of which is hashed, its id too."""
    return hashlib.sha256(token.encode()).hexdigest()


def standing_of(record: KeyRecord, now_ns: int) -> Standing:
    """Return whether a key counts."""
    if record.revoked_ns is not None:
        return "revoked"
    return "expired" if record.expires_ns is not None and record.expires_ns <= now_ns else "active"


def check_token(record: KeyRecord | None, token: str, now_ns: int) -> KeyRecord:
    """Return the key of a token. Raises NoKeyError where there is none, or it does not count."""
    if record is None or not hmac.compare_digest(record.secret_sha256, hash_of(token)):
        if is_session(id_of(token) or ""):
            raise NoKeyError("this session is over; sign in again")
        raise NoKeyError("this key is not one of the lake; ask who keeps the lake for one")
    standing = standing_of(record, now_ns)
    if standing != "active":
        then = "sign in again" if is_session(record.id) else "ask who keeps the lake for another"
        raise NoKeyError(f"{called(record.id)} is {standing}; {then}")
    return record


def is_token_of(record: KeyRecord, token: str) -> bool:
    """Whether a token is of a key, whether or not that counts."""
    return hmac.compare_digest(record.secret_sha256, hash_of(token))


def workspace_of(record: KeyRecord) -> str | None:
    """Return the workspace that a key is of; None for one of all workspaces."""
    return None if record.workspace == ALL_WORKSPACES else record.workspace


def check_whole(key_id: str, workspace: str | None) -> None:
    """Raises ForbiddenError where a key of one workspace asks for what is of the whole lake."""
    if workspace is not None:
        raise ForbiddenError(
            f"{called(key_id)} is of workspace {workspace!r}, and this is of the whole lake; ask with a key of all "
            "workspaces, which `tracelake key create` makes without --workspace"
        )


def check_need(key_id: str, role: Role, need: Need) -> None:
    """Raises ForbiddenError where a role does not hold what a route needs."""
    if need not in GRANTS[role]:
        raise ForbiddenError(f"{called(key_id)} has role {role}, and this needs a key that may {need}")


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
