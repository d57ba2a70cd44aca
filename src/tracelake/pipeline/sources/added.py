"""Sources that users add to a lake: records that every replica reads when it looks for input."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from tracelake._errors import LimitError
from tracelake.limits import SOURCE_ADDRESS_MAX_CHARS, SOURCES_MAX
from tracelake.pipeline.named import NamedAll, NamedRecords
from tracelake.pipeline.sources.files import FILES, path_of
from tracelake.pipeline.sources.names import to_name
from tracelake.pipeline.sources.registry import OWN, source_of
from tracelake.storage import KeyValueStore

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


SourceRecords: TypeAlias = NamedAll[SourceRecord]


class AddedSources:
    """The sources that users have added to one pipeline."""

    def __init__(self, key_value: KeyValueStore, pipeline: str = "main") -> None:
        self._records = NamedRecords(key_value, f"sources/{pipeline}", SourceRecord, "source", FORMAT_VERSION)

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
