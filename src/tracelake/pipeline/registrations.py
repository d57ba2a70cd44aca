"""Sources and outputs that users configured, stored as named records. Every replica reads them when it polls for
input.

A damaged record does not affect the others.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from tracelake._errors import ContentionError, DamageError, LimitError, UsageError
from tracelake.formats import Versioned, decode, encode
from tracelake.limits import (
    CONDITIONAL_WRITE_TRIES_MAX,
    NAME_MAX_CHARS,
    NAME_QUOTED_MAX_CHARS,
    SOURCE_ADDRESS_MAX_CHARS,
    SOURCES_MAX,
)
from tracelake.pipeline.sources.base import to_name
from tracelake.pipeline.sources.files import FILES, path_of
from tracelake.pipeline.sources.registry import OWN, source_of
from tracelake.storage import ABSENT, Conflict, Done, Entry, KeyValueStore
from tracelake.storage.ports import whole_of

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_MAX_CHARS}}}")
_END: Final = "/"
"""Suffix of a name in its key. So no key is a prefix of another, and a damaged record can be erased alone."""


class Registration(Versioned, Protocol):
    """A record with a name."""

    @property
    def name(self) -> str:
        """Name given by the user."""

    @property
    def id(self) -> str:
        """Random id. A record that is removed and added again gets a new one."""


RecordT = TypeVar("RecordT", bound=Registration)


@dataclass(frozen=True)
class Registrations(Generic[RecordT]):
    """All records of a kind."""

    readable: list[RecordT]
    """Readable records, by name."""
    damaged: dict[str, str]
    """Names of unreadable records, with the reason."""


class RegistrationStore(Generic[RecordT]):
    """Store of the records of one kind and pipeline."""

    def __init__(
        self, store: KeyValueStore, partition: str, kind: type[RecordT], what: str, version: int
    ) -> None:
        """Create a store. `what` is the user's word for the kind, as in `tracelake source list`."""
        self._store, self._partition = store, partition
        self._kind, self._what, self._version = kind, what, version

    def require_name(self, name: str, reserved: tuple[str, ...] = ()) -> None:
        """Raise UsageError if a name is invalid or reserved."""
        if _NAME.fullmatch(name) and name not in reserved:
            return
        article = "an" if self._what[0] in "aeiou" else "a"
        others = f", and not one of {', '.join(reserved)}, which every lake has" if reserved else ""
        raise UsageError(
            f"{name[:NAME_QUOTED_MAX_CHARS]!r} is not a valid name of {article} {self._what}: use 1 to "
            f"{NAME_MAX_CHARS} letters, digits, and . _ -{others}."
        )

    def all(self) -> Registrations[RecordT]:
        """Return all records. A damaged record hides no other."""
        records: Registrations[RecordT] = Registrations([], {})

        def damaged(key: str, error: DamageError) -> None:
            name = key.removesuffix(_END)
            records.damaged[name] = f"{self._what} {name}: {error} {self._way_out(name)}"

        for entry in whole_of(self._store.scan, self._partition, damaged):
            try:
                records.readable.append(self._decode(entry))
            except DamageError as error:
                damaged(entry.key, error)
        return records

    def create(self, record: RecordT) -> RecordT:
        """Write a new record. Raises UsageError if its name exists."""
        value, name = encode(record), record.name
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            try:
                outcome = self._store.set_if(self._partition, name + _END, value, ABSENT)
            except DamageError as error:
                raise UsageError(
                    f"{self._what} {name} already exists: {error} {self._way_out(name)}"
                ) from error
            if isinstance(outcome, Done):
                return record
            if isinstance(outcome, Conflict) and outcome.current is not None:
                standing = self._read(outcome.current)
                if standing is not None and standing.id == record.id:
                    return record  # written by an earlier attempt whose reply was lost
                raise UsageError(
                    f"{self._what} {name} already exists; remove it first, or choose another name."
                )
        raise self._contention(name)

    def change(self, name: str, decide: Callable[[RecordT], RecordT]) -> RecordT:
        """Apply a decision by conditional writes, with retries. Return the new record. Raises UsageError if the name
        is unknown."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._entry(name)
            record = self._decode(entry)
            wanted = decide(record)
            if wanted == record:
                return record
            self._store.set_if(self._partition, entry.key, encode(wanted), entry.version)
        raise self._contention(name)

    def remove(self, name: str) -> RecordT | None:
        """Remove a record, even a damaged one. Return the removed record, or None if it was unreadable.

        Raises UsageError if the name is unknown.
        """
        try:
            entry = self._entry(name)
        except DamageError:  # damaged in the store: without a version, nothing can have changed it
            self._store.erase(self._partition, name + _END)
            return None
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            self._store.delete_if(self._partition, entry.key, entry.version)
            current = self._store.get(self._partition, entry.key)
            before = self._read(entry)
            if current is None or (before is not None and self._is_another(before, current)):
                return before
            entry = current  # changed in the meantime
        raise self._contention(name)

    def _is_another(self, before: RecordT, now: Entry) -> bool:
        """Return whether the name was removed and added again since `before` was read. A damaged record counts as the
        same one."""
        record = self._read(now)
        return record is not None and record.id != before.id

    def _read(self, entry: Entry) -> RecordT | None:
        try:
            return self._decode(entry)
        except DamageError:
            return None

    def _entry(self, name: str) -> Entry:
        entry = self._store.get(self._partition, name + _END) if _NAME.fullmatch(name) else None
        if entry is None:
            raise UsageError(
                f"no {self._what} {name[:NAME_QUOTED_MAX_CHARS]!r} was added. See `tracelake {self._what} list`."
            )
        return entry

    def _decode(self, entry: Entry) -> RecordT:
        what = f"record {self._partition}/{entry.key}"
        record = decode(self._kind, entry.value, what, self._version)
        if record.name + _END != entry.key:
            raise DamageError(f"{what} belongs to {self._what} {record.name}. Restore it from a backup.")
        return record

    def _way_out(self, name: str) -> str:
        return f"Or `tracelake {self._what} remove {name}`, and add it again."

    def _contention(self, name: str) -> ContentionError:
        return ContentionError(
            f"{self._partition}/{name}: too many conditional writes in a row were lost to other writers. Try "
            "again."
        )


FORMAT_VERSION: Final = 1


class SourceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source that a user configured."""

    name: str
    address: str
    """Pattern of files or objects, or a topic, as for `--watch`. A path is absolute."""
    id: str
    """Random id. A source that is removed and added again gets a new one."""
    is_paused: bool = False
    format_version: int = FORMAT_VERSION


SourceRecords: TypeAlias = Registrations[SourceRecord]


class AddedSources:
    """Sources that users configured for one pipeline."""

    def __init__(self, key_value: KeyValueStore, pipeline: str = "main") -> None:
        self._records = RegistrationStore(
            key_value, f"sources/{pipeline}", SourceRecord, "source", FORMAT_VERSION
        )

    def records(self) -> SourceRecords:
        """Return the configured sources by name. A damaged record does not affect the others."""
        return self._records.all()

    def add(self, name: str, address: str, check: Callable[[str], object]) -> SourceRecord:
        """Add a source. `check` opens it, and raises UsageError for an address that cannot be watched.

        Raises UsageError for an invalid or existing name, LimitError if there are too many sources.
        """
        self._records.require_name(name, OWN)
        if len(address) > SOURCE_ADDRESS_MAX_CHARS:
            raise LimitError(
                "the address of a source may have at most SOURCE_ADDRESS_MAX_CHARS = "
                f"{SOURCE_ADDRESS_MAX_CHARS} characters."
            )
        address = _for_all(address)
        check(address)
        records = self.records()
        if len(records.readable) + len(records.damaged) >= SOURCES_MAX:
            raise LimitError(f"the lake already has SOURCES_MAX = {SOURCES_MAX} sources; remove one first.")
        return self._records.create(SourceRecord(name, address, uuid.uuid4().hex))

    def pause(self, name: str, *, on: bool) -> SourceRecord:
        """Pause or resume polling of a source. Raises UsageError if the name is unknown."""
        return self._records.change(name, lambda record: msgspec.structs.replace(record, is_paused=on))

    def remove(self, name: str) -> None:
        """Remove a source, so that it is no longer polled. Raises UsageError if the name is unknown."""
        self._records.remove(name)


def _for_all(address: str) -> str:
    """Return an address that means the same for every replica: a relative path becomes absolute."""
    if source_of(address) != FILES:
        return address
    return to_name(str(Path(path_of(address)).absolute()))
