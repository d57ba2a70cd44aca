"""Durable records of erasures, and the masked traces that every reader of a lake hides."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from tracelake._errors import ContentionError, NotFoundError
from tracelake.erasure.protocol import (
    ErasureRecord,
    Mask,
    MaskEntry,
    TraceIds,
    erasure_of,
    mask_of,
    to_bytes,
    trace_ids_of,
    with_entry,
    with_late_spans,
    without_entry,
    without_expired,
)
from tracelake.storage import Done, KeyValueStore, ObjectStore, delete_all, settle
from tracelake.storage.ports import change_record

PARTITION: Final = "erasures"
_FILES: Final = "erased-files"
_MASKS: Final = "erasure-mask"
_KEY: Final = "mask"
FOLDER: Final = "erasures/"


@dataclass(frozen=True, slots=True)
class MaskedTraces:
    """Traces that readers hide, and the number of the mask. Finished erasures are not in it."""

    number: int = 0
    trace_ids: frozenset[str] = frozenset()


NOTHING_MASKED: Final = MaskedTraces()


class ErasureStore:
    """Erasures of one lake. Threads may share it, and so may processes."""

    def __init__(self, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self._key_value = key_value
        self._objects = objects
        self._lock = threading.Lock()
        self._masked = NOTHING_MASKED
        self._ids: dict[str, frozenset[str]] = {}
        """Trace ids by object, which never changes."""

    def masked(self) -> MaskedTraces:
        """Return the traces that readers hide now. It reads one small record."""
        mask = self.mask_now()
        with self._lock:
            if mask.number != self._masked.number:
                ids = self._cached([*mask.entries, *mask.finished], mask.entries)
                self._masked = MaskedTraces(mask.number, frozenset[str]().union(*ids.values()))
            return self._masked

    def mask_now(self) -> Mask:
        """Return the mask."""
        entry = self._key_value.get(_MASKS, _KEY)
        return Mask() if entry is None else mask_of(entry.value)

    def masking(self) -> dict[str, MaskEntry]:
        """Return the erasures whose traces readers hide, by id."""
        return {each.id: each for each in self.mask_now().entries}

    def ids_by_erasure(self) -> dict[str, frozenset[str]]:
        """Return the trace ids of open and recent erasures, by erasure."""
        mask = self.mask_now()
        entries = [*mask.entries, *mask.finished]
        if not entries:
            return {}
        with self._lock:
            return self._cached(entries, entries)

    def _cached(self, entries: Sequence[MaskEntry], wanted: Sequence[MaskEntry]) -> dict[str, frozenset[str]]:
        """Return the trace ids of erasures. Keep the lists that some entry names, which never change."""
        paths = {each.path for each in entries}
        self._ids = {path: ids for path, ids in self._ids.items() if path in paths}
        for each in wanted:
            if each.path not in self._ids:
                self._ids[each.path] = self.ids(each.path)
        return {each.id: self._ids[each.path] for each in wanted}

    def ids(self, path: str) -> frozenset[str]:
        """Return the trace ids in an object. Raises NotFoundError if the object is missing."""
        return frozenset(trace_ids_of(self._objects.get(path), path))

    def put_ids(self, erasure_id: str, trace_ids: frozenset[str]) -> str:
        """Write the trace ids of an erasure, and return the object's path. Equal ids have the same path."""
        data = to_bytes(TraceIds(tuple(sorted(trace_ids))))
        path = f"{FOLDER}{erasure_id}/{hashlib.sha256(data).hexdigest()}.json"
        self._objects.put(path, data)
        return path

    def mask(self, erasure_id: str, path: str) -> None:
        """Hide the traces of an erasure from readers. This is the point at which it is accepted."""
        self._change(lambda mask: with_entry(mask, MaskEntry(erasure_id, path)))

    def mask_late_spans(self, erasure_ids: Collection[str], transaction: int) -> None:
        """Hide the traces of these erasures, because a transaction is about to add rows of them."""
        if erasure_ids:
            self._change(lambda mask: with_late_spans(mask, erasure_ids, transaction))

    def unmask(self, erasure_id: str, upper: int) -> None:
        """Stop hiding the traces of a finished erasure that found no rows of transactions below `upper`. Do nothing if
        a later one may add some."""
        self._change(lambda mask: without_entry(mask, erasure_id, upper))

    def forget(self, erasure_ids: Collection[str]) -> None:
        """Forget the trace ids of finished erasures."""
        self._change(lambda mask: without_expired(mask, erasure_ids))
        for each in erasure_ids:
            delete_all(self._objects, [info.path for info in self._objects.list(f"{FOLDER}{each}/")])

    def _change(self, change: Callable[[Mask], Mask]) -> None:
        def decide(mask: Mask | None) -> Mask | None:
            changed = change(mask or Mask())
            return None if mask is None and changed == Mask() else changed

        change_record(self._key_value, _MASKS, _KEY, lambda entry: mask_of(entry.value), to_bytes, decide)

    def erase_file(self, sha256: str) -> None:
        """Record that a file was erased, before it is deleted."""
        self._key_value.set(_FILES, sha256, b"{}")

    def is_file_erased(self, sha256: str) -> bool:
        """Return whether a file, by the checksum of its bytes, was erased."""
        return self._key_value.get(_FILES, sha256) is not None

    def get(self, erasure_id: str) -> ErasureRecord:
        """Return the record of an erasure. Raises NotFoundError for an unknown id."""
        entry = self._key_value.get(PARTITION, erasure_id)
        if entry is None:
            raise NotFoundError(f"no erasure {erasure_id!r}; `tracelake erase list` shows all.")
        return erasure_of(entry.value, erasure_id)

    def add(self, record: ErasureRecord) -> None:
        """Write the record of a new erasure."""
        self._key_value.set(PARTITION, record.id, to_bytes(record))

    def swap(self, before: ErasureRecord, after: ErasureRecord) -> None:
        """Replace the record of an erasure. Raises ContentionError if another process has changed it."""
        entry = self._key_value.get(PARTITION, before.id)
        if entry is not None and erasure_of(entry.value, before.id) == before:
            value = to_bytes(after)
            outcome = self._key_value.set_if(PARTITION, before.id, value, entry.version)
            settled = settle(
                self._key_value, PARTITION, before.id, outcome, is_mine=lambda there: there.value == value
            )
            if isinstance(settled, Done):
                return
        raise ContentionError(f"another process continues erasure {before.id}.")

    def erased_rows(self) -> Counter[int]:
        """Return the number of rows of table `spans` that erasures removed, by transaction."""
        rows = Counter[int]()
        for record in self.all():
            rows.update({int(t): count for t, count in record.transactions.items()})
        return rows

    def all(self) -> list[ErasureRecord]:
        """Return all erasures by id, finished ones too."""
        return [erasure_of(entry.value, entry.key) for entry in self._key_value.scan(PARTITION)]
