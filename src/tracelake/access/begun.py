"""What a browser holds while it is at the provider: its secret, since when, and where it goes on to, signed.

Servers of a lake sign it by a secret of the lake, so any of them knows what any of them has set, for this address and
provider, and how long ago; who makes one up has nothing. Nothing is kept for it: anybody could fill the lake.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from tracelake import limits
from tracelake._errors import ContentionError, DamageError
from tracelake.access.protocol import SECRET_BYTES
from tracelake.formats import decode, encode
from tracelake.storage import ABSENT, KeyValueStore
from tracelake.storage.ports import Expected

logger = logging.getLogger("tracelake.access")

PARTITION: Final = "secrets"
NAME: Final = "sign-in"
SECRET_VERSION: Final = 1
BEGUN_PATTERN: Final = (
    r"[A-Za-z0-9_-]{43}\.[0-9]{1,12}\."
    rf"[A-Za-z0-9_-]{{0,{limits.SIGN_IN_NEXT_MAX_BYTES * 2}}}\.[A-Za-z0-9_-]{{43}}"
)
"""How it is written: the secret, seconds since the epoch, where it goes on to, and the signature."""


class SecretRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret of the lake, in partition `secrets`."""

    secret: str
    format_version: int = SECRET_VERSION


@dataclass(frozen=True, slots=True)
class SignInBegun:
    """What a browser began: its secret, and the page that signing in leads to."""

    secret: str
    after: str


def signed(begun: SignInBegun, by: str, place: str, now_s: float) -> str:
    """Return what a browser holds of what it begins at a place, the address that the provider leads back to."""
    data = begun.after.encode()
    after = data if len(data) <= limits.SIGN_IN_NEXT_MAX_BYTES else b"/"
    body = f"{begun.secret}.{int(now_s)}.{_base64url(after)}"
    return f"{body}.{_signature(body, by, place)}"


def begun_of(held: str, by: str, place: str, now_s: float) -> SignInBegun | None:
    """Return what a browser began; None where no server of this lake let it, for this place, in the last minutes."""
    body, _, signature = held.rpartition(".")
    if not hmac.compare_digest(signature.encode(), _signature(body, by, place).encode()):
        return None
    secret, at_s, after = body.split(".")
    # The clocks of servers may differ, as that of the provider may.
    if not -limits.PROVIDER_SKEW_MAX_S <= now_s - int(at_s) <= limits.SIGN_IN_BEGUN_MAX_S:
        return None
    return SignInBegun(secret, base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)).decode())


class LakeSecret:
    """The secret of a lake by which its servers sign: the first that needs it makes it. Threads may share it."""

    def __init__(
        self, records: Callable[[], KeyValueStore], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._clock = clock
        self._read: tuple[float, str] | None = None

    def secret(self) -> str:
        """Return it, as it was read a minute ago at most: anybody may ask for this.

        Raises StorageError where it cannot be read, ContentionError where others change it again and again.
        """
        kept, now_s = self._read, self._clock()
        if kept is None or now_s - kept[0] >= limits.SIGN_IN_SECRET_KEPT_S:
            self._read = kept = (now_s, self._made())
        return kept[1]

    def _made(self) -> str:
        records = self._records()
        for _ in range(limits.KEY_CHANGE_TRIES_MAX):
            expected: Expected = ABSENT
            try:
                if (entry := records.get(PARTITION, NAME)) is not None:
                    expected = entry.version
                    return decode(SecretRecord, entry.value, "the secret of sign-in", SECRET_VERSION).secret
            except DamageError as error:
                # Only what is begun now rests on it.
                logger.warning("%s It is replaced; who is signing in begins again.", error)
                expected = error.version or expected
            record = SecretRecord(secrets.token_urlsafe(SECRET_BYTES))
            # Whatever comes of it, what is there then counts.
            records.set_if(PARTITION, NAME, encode(record), expected)
        raise ContentionError("the secret of sign-in is changed again and again; sign in again")


def _signature(body: str, by: str, place: str) -> str:
    return _base64url(hmac.digest(by.encode(), f"begun\0{place}\0{body}".encode(), hashlib.sha256))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
