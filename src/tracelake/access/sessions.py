"""Sessions of a lake: short-lived keys of users who signed in by a provider."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tracelake import limits
from tracelake._errors import AccessError, DamageError, LimitError, NotFoundError
from tracelake.access import keys
from tracelake.access.oidc import LakeSecret
from tracelake.storage import KeyValueStore

SESSIONS_ERASED_MAX: Final = 100
"""Expired sessions that one sign-in deletes."""


audit = logging.getLogger("tracelake.audit")

PARTITION = "sessions"


class Sessions(keys.KeyRecords):
    """Begin, list and end sessions: `lake.sessions`. Thread-safe."""

    partition = PARTITION
    list_command = "tracelake session list"

    def __init__(self, records: Callable[[], KeyValueStore]) -> None:
        super().__init__(records)
        self.signing = LakeSecret(records)
        """Secret by which servers recognize the sign-ins that browsers began."""

    def begin(self, name: str, role: keys.Role, workspace: str, person: str | None = None) -> keys.NewKey:
        """Begin a session of a user. Without `person`, the name identifies the user.

        Raises LimitError if the lake has too many sessions.
        """
        person = person or name
        now_ns = time.time_ns()
        session_id = f"s{secrets.token_hex(keys.ID_BYTES)}"
        token = keys.format_token(session_id, secrets.token_bytes(keys.SECRET_BYTES))
        self._make_room(person, now_ns)
        record = keys.KeyRecord(
            id=session_id,
            name=name,
            role=role,
            workspace=workspace,
            secret_sha256=keys.hash_token(token),
            created_ns=now_ns,
            expires_ns=now_ns + limits.SIGN_IN_MAX_S * 10**9,
            person=person,
        )
        return keys.NewKey(self._add(record), token)

    def of(self, token: str) -> keys.KeyRecord | None:
        """Return the active session of a token, or None."""
        session_id = keys.parse_key_id(token) or ""
        if not keys.is_session(session_id):
            return None
        try:
            # Anyone can trigger this call, so it reads one record.
            entry = self._records().get(PARTITION, session_id)
            return keys.check_token(keys.decoded(entry) if entry else None, token, time.time_ns())
        except (AccessError, DamageError):
            return None

    def end(self, token: str) -> keys.KeyInfo | None:
        """End the session of a token, and return it; None if it was not active."""
        session = self.of(token)
        try:
            return self.revoke(session.id) if session else None
        except (NotFoundError, DamageError):
            return None

    def _make_room(self, person: str, now_ns: int) -> None:
        """Erase expired sessions, and end the oldest sessions of a user who has many."""
        records, _ = self.whole_records()
        own: list[keys.KeyRecord] = []
        over: list[str] = []
        active = 0
        for record in records.values():
            if keys.key_status(record, now_ns) == "active":
                active += 1
                own += [record] if record.person == person else []
            else:
                over.append(record.id)
        for session_id in over[:SESSIONS_ERASED_MAX]:
            # A power failure may restore the record, still expired or revoked, and so harmless.
            self._records().erase(PARTITION, session_id)
        if active >= limits.SESSIONS_MAX:
            raise LimitError(f"{limits.SESSIONS_MAX} sessions are open; try again later, or use a key")
        own.sort(key=lambda each: each.created_ns)
        for record in own[: max(0, len(own) + 1 - limits.SESSIONS_EACH_MAX)]:
            with suppress(NotFoundError):  # another server removed it
                self.revoke(record.id)
            audit.info(
                "session %s %r ended: its user has more than %d sessions",
                record.id,
                record.name,
                limits.SESSIONS_EACH_MAX,
            )
