"""Which inputs a pipeline has taken already, by content: the same bytes are not decoded a second time.

A record is written after the commit of its transaction. Losing one costs a second look at the input, whose
spans are then found to be repeats; so this is no part of the protocol's correctness.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION, ReadRange
from tracelake.storage import KeyValueStore


class _KnownInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    taken: ReadRange
    format_version: int = FORMAT_VERSION


class KnownInputs:
    """The inputs of one pipeline's committed transactions, by size and checksum."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"inputs/{pipeline}"

    def remember(self, taken: ReadRange) -> None:
        """Note an input of a committed transaction; again is fine."""
        key = f"{taken.size_bytes:016x}-{taken.sha256}"
        self._store.set(self._partition, key, encode(_KnownInput(taken)))

    def find(self, size_bytes: int, sha256: Callable[[], str]) -> ReadRange | None:
        """Return how an input of this size and checksum was read before, or None.

        `sha256` is asked for only where an input of the same size is known.
        """
        prefix = f"{size_bytes:016x}-"
        if not self._store.scan(self._partition, prefix, prefix + "~", limit=1):
            return None
        entry = self._store.get(self._partition, prefix + sha256())
        if entry is None:
            return None
        return decode(_KnownInput, entry.value, f"the known input {entry.key}", FORMAT_VERSION).taken
