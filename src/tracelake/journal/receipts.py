"""When a transaction was committed here, and how long each output took. For people, no part of the rule.

A receipt is written after the commit by who published last, and losing one costs nothing but the answer of `explain`.
Its record goes with those of its transaction.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from tracelake._errors import StorageError
from tracelake.formats import decode, encode
from tracelake.storage import KeyValueStore

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
    format_version: int = FORMAT_VERSION


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
        if entry is None:
            return None
        return decode(PublishReceipt, entry.value, f"record {self._partition}/{entry.key}", FORMAT_VERSION)


def _key(transaction: int) -> str:
    return f"{transaction:016d}"
