"""Records that users name: sources and outputs that were added. One that cannot be read stops nothing beside it.

Sources that users add to a lake: records that every replica reads when it looks for input.
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
from tracelake.storage.object_records import whole_of

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_MAX_CHARS}}}")
_END: Final = "/"
"""Behind a name in its key: so no key is the beginning of another, and one that is torn can be erased alone."""


class Registration(Versioned, Protocol):
    """A record with a name."""

    @property
    def name(self) -> str:
        """What the user calls it."""

    @property
    def id(self) -> str:
        """Random: one that is removed and added again is another."""


RecordT = TypeVar("RecordT", bound=Registration)


@dataclass(frozen=True)
class Registrations(Generic[RecordT]):
    """All records of a kind."""

    whole: list[RecordT]
    """By name."""
    damaged: dict[str, str]
    """Names of those that cannot be read, and why."""


class RegistrationStore(Generic[RecordT]):
    """The records of one kind, of one pipeline."""

    def __init__(
        self, store: KeyValueStore, partition: str, kind: type[RecordT], what: str, version: int
    ) -> None:
        """`what` the user calls one of them, as in `tracelake source list`."""
        self._store, self._partition = store, partition
        self._kind, self._what, self._version = kind, what, version

    def require_name(self, name: str, taken: tuple[str, ...] = ()) -> None:
        """Check that something may be called so. Raises UsageError."""
        if _NAME.fullmatch(name) and name not in taken:
            return
        article = "an" if self._what[0] in "aeiou" else "a"
        others = f", and is neither of {', '.join(taken)}, which every lake has" if taken else ""
        raise UsageError(
            f"{name[:NAME_QUOTED_MAX_CHARS]!r} is no name of {article} {self._what}: it has 1 to {NAME_MAX_CHARS} "
            f"letters of A-Z, digits, and . _ -{others}."
        )

    def all(self) -> Registrations[RecordT]:
        """Return what was added. A record that is damaged hides no other."""
        records: Registrations[RecordT] = Registrations([], {})

        def damaged(key: str, error: DamageError) -> None:
            name = key.removesuffix(_END)
            records.damaged[name] = f"{self._what} {name}: {error} {self._way_out(name)}"

        for entry in whole_of(self._store.scan, self._partition, damaged):
            try:
                records.whole.append(self._decode(entry))
            except DamageError as error:
                damaged(entry.key, error)
        return records

    def create(self, record: RecordT) -> RecordT:
        """Write a new record. Raises UsageError where there is one of its name."""
        value, name = encode(record), record.name
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            try:
                outcome = self._store.set_if(self._partition, name + _END, value, ABSENT)
            except DamageError as error:
                raise UsageError(
                    f"{self._what} {name} is there already: {error} {self._way_out(name)}"
                ) from error
            if isinstance(outcome, Done):
                return record
            if isinstance(outcome, Conflict) and outcome.current is not None:
                standing = self._read(outcome.current)
                if standing is not None and standing.id == record.id:
                    return record  # written before, and the reply was lost
                raise UsageError(
                    f"{self._what} {name} is there already; remove it first, or choose another name."
                )
        raise self._contention(name)

    def change(self, name: str, decide: Callable[[RecordT], RecordT]) -> RecordT:
        """Carry out a decision until it is done; return what stands then. Raises UsageError where there is none."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._entry(name)
            record = self._decode(entry)
            wanted = decide(record)
            if wanted == record:
                return record
            self._store.set_if(self._partition, entry.key, encode(wanted), entry.version)
        raise self._contention(name)

    def remove(self, name: str) -> RecordT | None:
        """Take a record away, whatever it holds; return what it was, None where nobody can read it.

        Raises UsageError where there is none of this name.
        """
        try:
            entry = self._entry(name)
        except DamageError:  # of the store: it has no version, and nobody can have changed it
            self._store.erase(self._partition, name + _END)
            return None
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            self._store.delete_if(self._partition, entry.key, entry.version)
            current = self._store.get(self._partition, entry.key)
            before = self._read(entry)
            if current is None or (before is not None and self._is_another(before, current)):
                return before
            entry = current  # it was changed meanwhile
        raise self._contention(name)

    def _is_another(self, before: RecordT, now: Entry) -> bool:
        """Whether a record was added again. A damaged one may be the same."""
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
            raise DamageError(f"{what} is that of {self._what} {record.name}. Restore it from a backup.")
        return record

    def _way_out(self, name: str) -> str:
        return f"Or `tracelake {self._what} remove {name}`, and add it again."

    def _contention(self, name: str) -> ContentionError:
        return ContentionError(f"{self._partition}/{name}: conditional writes were lost, too many in a row.")


FORMAT_VERSION: Final = 1


class SourceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One source that was added."""

    name: str
    address: str
    """A pattern of files or objects, or a topic: what `--watch` takes. A path is absolute."""
    id: str
    """Random: one that is removed and added again is another."""
    is_paused: bool = False
    format_version: int = FORMAT_VERSION


SourceRecords: TypeAlias = Registrations[SourceRecord]


class AddedSources:
    """The sources that users have added to one pipeline."""

    def __init__(self, key_value: KeyValueStore, pipeline: str = "main") -> None:
        self._records = RegistrationStore(
            key_value, f"sources/{pipeline}", SourceRecord, "source", FORMAT_VERSION
        )

    def records(self) -> SourceRecords:
        """Return what was added, by name. A record that is damaged stops no other."""
        return self._records.all()

    def add(self, name: str, address: str, check: Callable[[str], object]) -> SourceRecord:
        """Add a source. `check` is what opens it, and raises UsageError where it names nothing that can be watched.

        Raises UsageError for a name that is none, or is taken; LimitError where there are as many as there can be.
        """
        self._records.require_name(name, OWN)
        if len(address) > SOURCE_ADDRESS_MAX_CHARS:
            raise LimitError(
                f"a source is named by SOURCE_ADDRESS_MAX_CHARS = {SOURCE_ADDRESS_MAX_CHARS} at most."
            )
        address = _for_all(address)
        check(address)
        records = self.records()
        if len(records.whole) + len(records.damaged) >= SOURCES_MAX:
            raise LimitError(f"there are SOURCES_MAX = {SOURCES_MAX} sources already; remove one first.")
        return self._records.create(SourceRecord(name, address, uuid.uuid4().hex))

    def pause(self, name: str, *, on: bool) -> SourceRecord:
        """Let nobody look at a source any more, or again. Raises UsageError where there is none of this name."""
        return self._records.change(name, lambda record: msgspec.structs.replace(record, is_paused=on))

    def remove(self, name: str) -> None:
        """Look at a source no more. Raises UsageError where there is none of this name."""
        self._records.remove(name)


def _for_all(address: str) -> str:
    """Return an address that means the same to every replica, in whatever directory it runs. Raises UsageError."""
    if source_of(address) != FILES:
        return address
    return to_name(str(Path(path_of(address)).absolute()))
