"""The keys of a lake, in its records."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final, get_args

import msgspec

from tracelake import limits
from tracelake._errors import (
    ContentionError,
    DamageError,
    LimitError,
    NotFoundError,
    UsageError,
)
from tracelake.access.model import ALL_WORKSPACES, KEY_VERSION, KeyInfo, KeyRecord, NewKey, Role
from tracelake.access.protocol import ID_BYTES, SECRET_BYTES, called, hash_of, standing_of, token_of
from tracelake.formats import decode, encode
from tracelake.storage import ABSENT, Conflict, Done, Entry, KeyValueStore, settle
from tracelake.storage.record_objects import whole_of

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
        raise ContentionError(f"others changed {called(key_id)} again and again; try again")


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
        token = token_of(key_id, secrets.token_bytes(SECRET_BYTES))
        record = KeyRecord(
            id=key_id,
            name=name,
            role=role,
            workspace=workspace,
            secret_sha256=hash_of(token),
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
    what = called(entry.key)
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
        standing_of(record, time.time_ns()),
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
