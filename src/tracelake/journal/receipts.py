"""What a transaction came to: when it was committed here, how long each output took, and where it stands in each.

For people, no part of the rule: losing one costs nothing but the answer of `explain`. The receipt of a publication is
written after the commit by who published last, those of outputs before it by who found their marker. These records go
with those of their transaction.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from tracelake._errors import StorageError
from tracelake.formats import decode, encode
from tracelake.storage import Entry, KeyValueStore

FORMAT_VERSION: Final = 1


class PublishReceipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a transaction was published."""

    transaction: int
    written_at: str
    """ISO 8601, UTC: when its parts were written, and the first output was begun."""
    committed_at: str
    outputs_s: tuple[float, ...]
    """How long each output took, in their order; the last is the commit."""
    by: str
    """The replica, or process."""
    commit: str = ""
    """Its id: from here the history goes on to older ones, without a walk from the newest."""
    format_version: int = FORMAT_VERSION


class PartitionOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the messages of a transaction stand in a partition of a log; others may have written between them."""

    partition: int
    start: int
    """The offset of the first."""
    stop: int
    """One more than that of the last."""
    messages: int


class OutputReceipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an output to another system wrote of a transaction."""

    transaction: int
    messages: int
    partitions: tuple[PartitionOffsets, ...] = ()
    """The first of them, where there are many; none where the system did not say which offsets it gave."""
    format_version: int = FORMAT_VERSION


class OutputReceipts:
    """The receipts of the outputs of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str = "main") -> None:
        self._store = store
        self._partition = f"written/{pipeline}"

    def note(self, output_id: str, receipt: OutputReceipt) -> None:
        """Keep what an output wrote of a transaction, as well as it goes; again is fine."""
        with contextlib.suppress(StorageError):
            self._store.set(self._partition, f"{_key(receipt.transaction)}-{output_id}", encode(receipt))

    def read(self, transaction: int, output_id: str) -> OutputReceipt | None:
        """Return what an output wrote of a transaction; None where nobody has noted it. Raises DamageError."""
        entry = self._store.get(self._partition, f"{_key(transaction)}-{output_id}")
        if entry is None:
            return None
        return decode(OutputReceipt, entry.value, f"record {self._partition}/{entry.key}", FORMAT_VERSION)


class PublishReceipts:
    """The receipts of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"receipts/{pipeline}"

    def note(self, receipt: PublishReceipt) -> None:
        """Keep a receipt, as well as it goes."""
        with contextlib.suppress(StorageError):
            self._store.set(self._partition, _key(receipt.transaction), encode(receipt))

    def read(self, transaction: int) -> PublishReceipt | None:
        """Return the receipt of a transaction; None where there is none. Raises DamageError."""
        entry = self._store.get(self._partition, _key(transaction))
        return None if entry is None else self._decode(entry)

    def first_from(self, transaction: int) -> PublishReceipt | None:
        """Return the receipt of a transaction, or of the first behind it that has one. Raises DamageError."""
        entries = self._store.scan(self._partition, _key(transaction), limit=1)
        return self._decode(entries[0]) if entries else None

    def _decode(self, entry: Entry) -> PublishReceipt:
        return decode(PublishReceipt, entry.value, f"record {self._partition}/{entry.key}", FORMAT_VERSION)


def _key(transaction: int) -> str:
    return f"{transaction:016d}"
