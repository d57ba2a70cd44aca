"""The sessions of a lake: keys that end soon, made where somebody signed in by a provider."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from tracelake import limits
from tracelake._errors import AccessError, DamageError, LimitError, NotFoundError
from tracelake.access.keys import (
    ID_BYTES,
    SECRET_BYTES,
    KeyInfo,
    KeyRecord,
    KeyRecords,
    NewKey,
    Role,
    check_token,
    decoded,
    format_token,
    hash_token,
    is_session,
    key_status,
    parse_key_id,
)
from tracelake.access.oidc import LakeSecret
from tracelake.storage import KeyValueStore

audit = logging.getLogger("tracelake.audit")

PARTITION = "sessions"


class Sessions(KeyRecords):
    """Begins, lists, ends sessions: `lake.sessions`. Threads may share it."""

    partition = PARTITION
    list_command = "tracelake session list"

    def __init__(self, records: Callable[[], KeyValueStore]) -> None:
        super().__init__(records)
        self.signing = LakeSecret(records)
        """By which servers know what browsers began."""

    def begin(self, name: str, role: Role, workspace: str, person: str | None = None) -> NewKey:
        """Begin a session of a person, whom only the name tells from others if there is nothing better.

        Raises LimitError where there are too many.
        """
        person = person or name
        now_ns = time.time_ns()
        session_id = f"s{secrets.token_hex(ID_BYTES)}"
        token = format_token(session_id, secrets.token_bytes(SECRET_BYTES))
        self._make_room(person, now_ns)
        record = KeyRecord(
            id=session_id,
            name=name,
            role=role,
            workspace=workspace,
            secret_sha256=hash_token(token),
            created_ns=now_ns,
            expires_ns=now_ns + limits.SIGN_IN_MAX_S * 10**9,
            person=person,
        )
        return NewKey(self._add(record), token)

    def of(self, token: str) -> KeyRecord | None:
        """Return the session of a token; None where it is none, or over."""
        session_id = parse_key_id(token) or ""
        if not is_session(session_id):
            return None
        try:
            # Anybody may ask for this: one record is read.
            entry = self._records().get(PARTITION, session_id)
            return check_token(decoded(entry) if entry else None, token, time.time_ns())
        except (AccessError, DamageError):
            return None

    def end(self, token: str) -> KeyInfo | None:
        """End the session of a token, and return it; None where it was none, or over."""
        session = self.of(token)
        try:
            return self.revoke(session.id) if session else None
        except (NotFoundError, DamageError):
            return None

    def _make_room(self, person: str, now_ns: int) -> None:
        """Remove what is over, and end the oldest of somebody who has many."""
        records, _ = self.whole_records()
        own: list[KeyRecord] = []
        over: list[str] = []
        active = 0
        for record in records.values():
            if key_status(record, now_ns) == "active":
                active += 1
                own += [record] if record.person == person else []
            else:
                over.append(record.id)
        for session_id in over[: limits.SESSIONS_ERASED_MAX]:
            # It may be back after a power failure, and is then as it was: of no use to anybody.
            self._records().erase(PARTITION, session_id)
        if active >= limits.SESSIONS_MAX:
            raise LimitError(f"{limits.SESSIONS_MAX} sessions are open; try again later, or use a key")
        own.sort(key=lambda each: each.created_ns)
        for record in own[: max(0, len(own) + 1 - limits.SESSIONS_EACH_MAX)]:
            with suppress(NotFoundError):  # another server removed it
                self.revoke(record.id)
            audit.info(
                "session %s %r ended: who began it has more than %d",
                record.id,
                record.name,
                limits.SESSIONS_EACH_MAX,
            )
