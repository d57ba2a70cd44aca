"""API keys and quotas, cached by a server.

The server reloads keys every few seconds, so a key that another process revoked soon stops working. A server on a
public address always demands a key. A server on a loopback address demands one as soon as the lake has any. Each
server counts quotas separately, from its start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
from anyio.to_thread import run_sync

from tracelake import limits
from tracelake._errors import BackPressureError, DamageError, NoKeyError, QuotaError, StorageError
from tracelake.access.keys import (
    Allowance,
    KeyRecord,
    Keys,
    Need,
    Role,
    allowances,
    check_need,
    check_token,
    key_workspace,
    matches_token,
    parse_key_id,
)
from tracelake.access.oidc import Sessions
from tracelake.server.otlp_http import Meter

KEYS_LOOK_S: Final = 5.0
"""Age of a server's cached keys; a key revoked elsewhere may still work for so long."""
KEYS_MISS_LOOK_S: Final = 1.0
"""Age of the cached keys when a request presents an unknown key."""

logger = logging.getLogger("tracelake.server")

ACTOR: Final = "tracelake.actor"
"""ASGI scope entry with the request's `KeyHolder`."""


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """The authenticated caller of a request, with role and workspace: the holder of an API key or session, or, if the
    server requires no keys, the local user."""

    key_id: str
    name: str
    role: Role
    record: KeyRecord | None = None

    @property
    def workspace(self) -> str | None:
        """Workspace that the caller reads and writes; None for all."""
        return None if self.record is None else key_workspace(self.record)


def key_holder(record: KeyRecord) -> KeyHolder:
    """Return the holder of a key."""
    return KeyHolder(record.id, record.name, record.role, record)


LOCAL: Final = KeyHolder("local", "", "admin")


class KeyRing:
    """Cached API keys of a lake. One event loop at a time uses it."""

    def __init__(
        self,
        keys: Keys,
        sessions: Sessions,
        *,
        demanded: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a cache of keys and sessions. With `demanded`, every request needs a key. Otherwise keys are needed
        once the lake has any."""
        self._keys = keys
        self._sessions = sessions
        self._demanded = demanded
        self._clock = clock
        self._records: dict[str, KeyRecord] = {}
        self._has_keys = False
        self._looked_s = self._tried_s = float("-inf")
        self._changes = 0
        self._seen = -1
        """Number of local changes that preceded the last read, even if that read failed."""
        self._ended: dict[str, int] = {}
        """Keys revoked here, with the number of the change. A read that began earlier may still return them."""
        self._looking = asyncio.Lock()
        self._reader = anyio.CapacityLimiter(1)
        """Dedicated thread, because waiting requests may occupy all request threads."""
        self._allowances: dict[str, tuple[Allowance | None, Allowance | None]] = {}

    async def actor(self, token: str | None, need: Need) -> KeyHolder:
        """Return the caller who sent this token. Raises NoKeyError if a key is required and the token is missing or
        invalid, ForbiddenError if the role lacks the permission `need`, and BackPressureError if keys cannot be read.
        """
        await self._look(KEYS_LOOK_S)
        if not self._demanded and not self._has_keys:
            return LOCAL
        if token is None:
            raise NoKeyError(
                "this server requires a key; send Authorization: Bearer and the key, or sign in at /sign-in"
            )
        key_id = parse_key_id(token) or ""
        if key_id and key_id not in self._records:
            await self._look(KEYS_MISS_LOOK_S)
        record = check_token(self._records.get(key_id), token, time.time_ns())
        check_need(record.id, record.role, need)
        return key_holder(record)

    def holder(self, token: str | None) -> KeyHolder | None:
        """Return the holder of a token's cached key, even if the key is no longer valid; None for an unknown token."""
        record = self._records.get(parse_key_id(token) or "") if token else None
        if record is None or token is None or not matches_token(record, token):
            return None
        return key_holder(record)

    def forget(self, ended: str | None = None) -> None:
        """Make the next request reload the keys, because a key has changed. The key with id `ended` stops working
        immediately, even if keys cannot be read."""
        self._changes += 1
        self._has_keys = True
        if ended is not None:
            self._records.pop(ended, None)
            self._ended[ended] = self._changes

    def meter(self, actor: KeyHolder) -> Meter | None:
        """Return the function that charges a request to its key's quota, or None without a quota. Raises QuotaError
        if the quota is used up."""
        record = actor.record
        if record is None or (record.spans_per_s is None and record.bytes_per_day is None):
            return None
        if record.id not in self._allowances:
            self._allowances[record.id] = allowances(record, self._clock())
        span_allowance, byte_allowance = self._allowances[record.id]
        for what, allowance in (("spans a second", span_allowance), ("bytes a day", byte_allowance)):
            if allowance is not None and (wait_s := allowance.wait_s(self._clock())) > 0:
                raise QuotaError(f"key {record.id} has used up its {what}; send it again later", wait_s)

        def count(spans: int, size_bytes: int) -> None:
            for allowance, amount in ((span_allowance, spans), (byte_allowance, size_bytes)):
                if allowance is not None:
                    allowance.spend(amount, self._clock())

        return count

    async def _look(self, max_age_s: float) -> None:
        """Reload keys, unless they were read recently and after the last local change. A caller waits for at most two
        reads: the one in progress, and one that starts after the call."""
        wanted = self._changes
        goes_on = self._looking.locked() and self._seen >= wanted
        if not goes_on:
            async with self._looking:
                if self._seen < wanted or self._clock() - self._tried_s >= max_age_s:
                    await self._read()
        self._check_age()

    async def _read(self) -> None:
        changes, began_s = self._changes, self._clock()
        try:
            keys, problems = await run_sync(self._keys.whole_records, limiter=self._reader)
            sessions, torn = await run_sync(self._sessions.whole_records, limiter=self._reader)
        except (StorageError, DamageError, OSError) as error:
            logger.warning("the keys cannot be read: %s", error)
            self._seen, self._tried_s = changes, self._clock()
            return
        for problem in (*problems, *torn):
            logger.error("%s That key cannot be used.", problem)
        self._ended = {key_id: change for key_id, change in self._ended.items() if change > changes}
        self._records = {
            key_id: key for key_id, key in (keys | sessions).items() if key_id not in self._ended
        }
        self._has_keys = bool(keys or problems) or self._changes != changes
        self._allowances = {
            key_id: allowance for key_id, allowance in self._allowances.items() if key_id in keys
        }
        self._seen, self._looked_s, self._tried_s = changes, began_s, self._clock()

    def _check_age(self) -> None:
        """Raise BackPressureError if keys were never read, or not recently enough to trust."""
        closed = self._demanded or self._has_keys or self._looked_s == float("-inf")
        if closed and self._clock() - self._looked_s > limits.KEYS_STALE_MAX_S:
            raise BackPressureError("the keys of the lake cannot be read; send the request again later")
