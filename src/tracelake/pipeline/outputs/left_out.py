"""What an output left out, since its system takes no message so large: named there, and in a record of the lake.

The system has the names with the marker, in one step with the rows: so they are right whoever wrote. They are copied
to the record before the transaction is committed, once for each, whoever does it.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import msgspec

from tracelake._errors import ContentionError, DamageError
from tracelake.formats import decode, encode
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, OUTPUT_LEFT_OUT_NAMED_MAX
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore
from tracelake.storage.record_objects import whole_of

logger = logging.getLogger("tracelake.pipeline")

FORMAT_VERSION: Final = 1


class LeftOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row that was left out."""

    row: str
    """What it is, by its key."""
    size_bytes: int
    """Of its message."""


class LeftOutOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was left out of one transaction."""

    transaction: int
    total: int
    max_bytes: int
    """What the system took then."""
    first: tuple[LeftOut, ...]


class LeftOutRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an output has left out so far."""

    output: str
    total: int
    newest: tuple[LeftOutOf, ...]
    """The last transactions of which something was left out, in order; the names of all are bounded."""
    format_version: int = FORMAT_VERSION


def with_more(standing: LeftOutRecord, more: LeftOutOf) -> LeftOutRecord:
    """Return what stands once a transaction is counted; a second time it changes nothing. Pure."""
    if standing.newest and more.transaction <= standing.newest[-1].transaction:
        return standing
    newest = [*standing.newest, more]
    while len(newest) > 1 and sum(max(1, len(of.first)) for of in newest) > OUTPUT_LEFT_OUT_NAMED_MAX:
        del newest[0]
    return LeftOutRecord(standing.output, standing.total + more.total, tuple(newest))


class LeftOuts:
    """The records of the outputs of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str = "main") -> None:
        self._store = store
        self._partition = f"left-out/{pipeline}"

    def all(self) -> dict[str, LeftOutRecord]:
        """Return them by the ids of the outputs; `verify` names those that are damaged."""
        records = {}
        for entry in whole_of(self._store.scan, self._partition):
            with contextlib.suppress(DamageError):
                records[entry.key] = self._decode(entry)
        return records

    def entries(self) -> list[Entry]:
        """Return them as they are stored."""
        return self._store.scan(self._partition)

    def note(self, output_id: str, name: str, more: LeftOutOf) -> None:
        """Note what was left out of a transaction; again is fine. A record that is damaged holds up no transaction."""
        try:
            self._note(output_id, name, more)
        except DamageError as error:
            logger.error("%s What output %s left out is in its markers alone.", error, name)

    def _note(self, output_id: str, name: str, more: LeftOutOf) -> None:
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._store.get(self._partition, output_id)
            standing = LeftOutRecord(name, 0, ()) if entry is None else self._decode(entry)
            wanted = with_more(standing, more)
            expected = ABSENT if entry is None else entry.version
            if wanted == standing or isinstance(
                self._store.set_if(self._partition, output_id, encode(wanted), expected), Done
            ):
                return
        raise ContentionError(
            f"{self._partition}/{output_id}: conditional writes were lost, too many in a row."
        )

    def forget(self, output_id: str) -> None:
        """Forget an output that is removed."""
        with contextlib.suppress(DamageError):  # nobody asks for it again
            entry = self._store.get(self._partition, output_id)
            if entry is not None:
                self._store.delete_if(self._partition, output_id, entry.version)

    def _decode(self, entry: Entry) -> LeftOutRecord:
        return decode(LeftOutRecord, entry.value, f"record {self._partition}/{entry.key}", FORMAT_VERSION)
