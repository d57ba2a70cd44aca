"""Which inputs a pipeline has taken already, by content: the same bytes are not decoded a second time.

A record is written after the commit of its transaction. Losing one costs a second look at the input, whose
spans are then found to be repeats; so this is no part of the protocol's correctness.

Records outlive the journal of their transactions: a file may be named again after years. So they are small, one for
each content that was ever taken, and say only what a report says of a file that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION, ReadRange, WholeFile
from tracelake.storage import KeyValueStore


class _KnownInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    spans: int
    format_version: int
    problems: tuple[tuple[int | None, int | None, str], ...] = ()
    problems_total: int = 0


class KnownInputs:
    """The inputs of one pipeline's committed transactions, by size and checksum."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self.store = store
        self.pipeline = pipeline
        self._partition = f"inputs/{pipeline}"

    def remember(self, inputs: Iterable[ReadRange]) -> None:
        """Note inputs of a committed transaction; again is fine."""
        records = {
            f"{taken.size_bytes:016x}-{taken.sha256}": encode(
                _KnownInput(taken.spans, FORMAT_VERSION, taken.problems, taken.problems_total)
            )
            for taken in inputs
        }
        self.store.set_all(self._partition, records)

    def find(self, size_bytes: int, sha256: Callable[[], str]) -> ReadRange | None:
        """Return what was read of an input of this size and checksum before, without its path, or None.

        `sha256` is asked for only where an input of the same size is known.
        """
        prefix = f"{size_bytes:016x}-"
        if not self.store.scan(self._partition, prefix, prefix + "~", limit=1):
            return None
        content = sha256()
        entry = self.store.get(self._partition, prefix + content)
        if entry is None:
            return None
        known = decode(_KnownInput, entry.value, f"the known input {entry.key}", FORMAT_VERSION)
        return WholeFile(
            path="",
            size_bytes=size_bytes,
            sha256=content,
            records=0,
            checksum="",
            spans=known.spans,
            problems=known.problems,
            problems_total=known.problems_total,
        )
