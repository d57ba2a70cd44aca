"""Sources that users add to a lake: records that every replica reads when it looks for input."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tracelake._errors import ContentionError, DamageError, LimitError, UsageError
from tracelake.formats import decode, encode
from tracelake.limits import (
    CONDITIONAL_WRITE_TRIES_MAX,
    NAME_QUOTED_MAX_CHARS,
    SOURCE_ADDRESS_MAX_CHARS,
    SOURCES_MAX,
)
from tracelake.pipeline.sources.files import FILES, path_of
from tracelake.pipeline.sources.names import to_name
from tracelake.pipeline.sources.registry import OWN, source_of
from tracelake.storage import ABSENT, Conflict, Done, Entry, KeyValueStore
from tracelake.storage.record_objects import whole_of

FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class SourceRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One source that was added."""

    name: str
    address: str
    """A pattern of files or objects, or a topic: what `--watch` takes. A path is absolute."""
    id: str
    """Random: one that is removed and added again is another."""
    is_paused: bool = False
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class SourceRecords:
    """The records of all sources that were added."""

    whole: list[SourceRecord]
    damaged: dict[str, str]
    """Names of those that cannot be read, and why."""


class AddedSources:
    """The sources that users have added to one pipeline."""

    def __init__(self, key_value: KeyValueStore, pipeline: str = "main") -> None:
        self._key_value = key_value
        self._partition = f"sources/{pipeline}"

    def records(self) -> SourceRecords:
        """Return what was added, by name. A record that is damaged stops no other."""
        records = SourceRecords([], {})
        for entry in whole_of(
            self._key_value.scan,
            self._partition,
            lambda key, error: records.damaged.update({key: f"source {key}: {error}"}),
        ):
            try:
                records.whole.append(self._decode(entry))
            except DamageError as error:
                records.damaged[entry.key] = str(error)
        return records

    def add(self, name: str, address: str, check: Callable[[str], object]) -> SourceRecord:
        """Add a source. `check` is what opens it, and raises UsageError where it names nothing that can be watched.

        Raises UsageError for a name that is none, or is taken; LimitError where there are as many as there can be.
        """
        if not _NAME.fullmatch(name) or name in OWN:
            raise UsageError(
                f"{name[:NAME_QUOTED_MAX_CHARS]!r} is no name of a source: it has 1 to 64 letters of A-Z, digits, and "
                f". _ -, and is neither of {', '.join(OWN)}, which every lake has."
            )
        if len(address) > SOURCE_ADDRESS_MAX_CHARS:
            raise LimitError(
                f"a source is named by SOURCE_ADDRESS_MAX_CHARS = {SOURCE_ADDRESS_MAX_CHARS} at most."
            )
        address = _for_all(address)
        check(address)
        records = self.records()
        if len(records.whole) + len(records.damaged) >= SOURCES_MAX:
            raise LimitError(f"there are SOURCES_MAX = {SOURCES_MAX} sources already; remove one first.")
        record = SourceRecord(name, address, uuid.uuid4().hex)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            outcome = self._key_value.set_if(self._partition, name, encode(record), ABSENT)
            if isinstance(outcome, Done):
                return record
            if isinstance(outcome, Conflict) and outcome.current is not None:
                if outcome.current.value == encode(record):
                    return record  # written before, and the reply was lost
                raise UsageError(f"source {name} is there already; remove it first, or choose another name.")
        raise self._contention(name)

    def pause(self, name: str, *, on: bool) -> SourceRecord:
        """Let nobody look at a source any more, or again. Raises UsageError where there is none of this name."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._entry(name)
            record = self._decode(entry)
            if record.is_paused == on:
                return record
            record = msgspec.structs.replace(record, is_paused=on)
            self._key_value.set_if(self._partition, name, encode(record), entry.version)
        raise self._contention(name)

    def remove(self, name: str) -> None:
        """Look at a source no more. Raises UsageError where there is none of this name."""
        entry = self._entry(name)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            self._key_value.delete_if(self._partition, name, entry.version)
            current = self._key_value.get(self._partition, name)
            if current is None or not self._is_same(entry, current):
                return
            entry = current  # it was paused meanwhile
        raise self._contention(name)

    def _is_same(self, before: Entry, now: Entry) -> bool:
        """Whether a record is of the same source, and not of one that was added again. A damaged one may be."""
        try:
            return self._decode(before).id == self._decode(now).id
        except DamageError:
            return True

    def _entry(self, name: str) -> Entry:
        entry = self._key_value.get(self._partition, name) if _NAME.fullmatch(name) else None
        if entry is None:
            raise UsageError(
                f"no source {name[:NAME_QUOTED_MAX_CHARS]!r} was added. See `tracelake source list`."
            )
        return entry

    def _contention(self, name: str) -> ContentionError:
        return ContentionError(f"{self._partition}/{name}: conditional writes were lost, too many in a row.")

    def _decode(self, entry: Entry) -> SourceRecord:
        what = f"record {self._partition}/{entry.key}"
        record = decode(SourceRecord, entry.value, what, FORMAT_VERSION)
        if record.name != entry.key:
            raise DamageError(
                f"{what} is that of source {record.name}. Restore it from a backup, or remove it."
            )
        return record


def _for_all(address: str) -> str:
    """Return an address that means the same to every replica, in whatever directory it runs. Raises UsageError."""
    if source_of(address) != FILES:
        return address
    return to_name(str(Path(path_of(address)).absolute()))
