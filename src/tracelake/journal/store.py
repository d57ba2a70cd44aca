"""The journal in the key-value store: records created if absent at the next sequence number.

Each transaction has one step so far, so transaction T stands at sequence 2T (Step) and 2T+1 (Seal): a reader
finds T without a scan, and a gap is damage. That T is set aside stands in a partition of its own.

Records below the *floor* are erased, once all is done of their transactions (`trimming.py`). Who is late may find
nothing there then, or record something anew. So what is read or recorded counts only if the floor, read afterwards,
is not above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tracelake._errors import ContentionError, DamageError, TrimmedError
from tracelake.formats import decode, encode
from tracelake.journal.model import (
    FORMAT_VERSION,
    Aside,
    Floor,
    JournalRecord,
    Seal,
    Step,
    from_bytes,
    to_bytes,
)
from tracelake.journal.protocol import beginnings_below, sealed_totals_agree
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Conflict, Done, Entry, Expected, KeyValueStore, settle

_FLOOR: Final = "floor"
_ERASED_DIGITS: Final = 3
"""Records of a thousand keys are erased together."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """What the journal holds of one transaction."""

    step: Step | None
    seal: Seal | None


class Journal:
    """The records of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"journal/{pipeline}"
        self._asides = f"asides/{pipeline}"

    def read(self, transaction: int) -> TransactionRecord:
        """Return the records of one transaction.

        Raises:
            DamageError: they are torn, or contradict one another (J12).
            TrimmedError: they are erased, or may have been.
        """
        # The seal first: a peer may record both between two reads, and who then saw no step and a seal would
        # take a whole journal for a damaged one. Above the floor nothing is deleted, so a seal seen has its step.
        seal = self._get(2 * transaction + 1)
        step = self._get(2 * transaction)
        self._require_kept(transaction)
        if step is None and seal is None:
            return TransactionRecord(None, None)
        if not isinstance(step, Step) or step.transaction != transaction:
            raise DamageError(
                f"the journal has no step for transaction {transaction}. Restore it from a backup."
            )
        if seal is None:
            return TransactionRecord(step, None)
        if not isinstance(seal, Seal) or seal.transaction != transaction:
            raise DamageError(f"the journal record at the seal of transaction {transaction} is none.")
        if not sealed_totals_agree(step, seal):
            raise DamageError(f"the seal of transaction {transaction} does not carry the totals of its step.")
        return TransactionRecord(step, seal)

    def append_step(self, step: Step) -> tuple[Step, bool]:
        """Record the step unless a peer has recorded one; return the one that stands, and whether it is ours.

        Raises TrimmedError where peers have passed the transaction long ago: a step that is recorded then is nobody's.
        """
        stands, ours = self._create(2 * step.transaction, step)
        self._require_kept(step.transaction)
        assert isinstance(stands, Step)
        return stands, ours

    def append_seal(self, seal: Seal) -> Seal:
        """Record the seal unless a peer has; return the one that stands."""
        stands, _ = self._create(2 * seal.transaction + 1, seal)
        assert isinstance(stands, Seal)
        return stands

    def aside(self, transaction: int) -> Aside | None:
        """Return the record that a transaction is set aside, None where there is none.

        Raises TrimmedError where it is erased, or may have been.
        """
        entry = self._store.get(self._asides, self._key(transaction))
        self._require_kept(transaction)
        return self._to_aside(entry) if entry else None

    def set_aside(self, aside: Aside) -> Aside:
        """Record that a transaction is set aside unless a peer has; return the record that stands."""
        entry = self._create_entry(self._asides, self._key(aside.transaction), encode(aside))
        return aside if entry is None else self._to_aside(entry)

    def floor(self) -> int:
        """Return the least transaction whose records are kept."""
        floor, _ = self._floor()
        return floor

    def raise_floor(self, floor: int) -> None:
        """Let no record of a transaction below count any more; who has raised it higher is not undone."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            stands, expected = self._floor()
            if stands >= floor:
                return
            outcome = self._store.set_if(self._partition, _FLOOR, encode(Floor(floor)), expected)
            if isinstance(outcome, Done):
                return
        raise ContentionError(
            f"{self._partition}/{_FLOOR}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
        )

    def erase_below(self, floor: int) -> None:
        """Erase all records below, also what somebody late has recorded there; the floor must be raised before.

        A few at a time: some stores do all that one call erases while everybody waits.
        """
        for partition, stop in ((self._partition, self._key(2 * floor)), (self._asides, self._key(floor))):
            start = self._key(0)
            while left := self._store.scan(partition, start, stop, limit=1):
                begin = left[0].key[:-_ERASED_DIGITS]
                for beginning in [begin] if begin < stop[: len(begin)] else beginnings_below(stop, begin):
                    self._store.erase(partition, beginning)
                start = f"{begin}~"

    def _floor(self) -> tuple[int, Expected]:
        entry = self._store.get(self._partition, _FLOOR)
        if entry is None:
            return 0, ABSENT
        where = f"journal record {self._partition}/{_FLOOR}"
        return decode(Floor, entry.value, where, FORMAT_VERSION).transaction, entry.version

    def _require_kept(self, transaction: int) -> None:
        """Check what was read or recorded of a transaction just before: nothing of it had been erased by then."""
        if transaction < self.floor():
            raise TrimmedError(f"transaction {transaction} is below the floor of the journal")

    def _to_aside(self, entry: Entry) -> Aside:
        return decode(Aside, entry.value, f"record {self._asides}/{entry.key}", FORMAT_VERSION)

    def _key(self, sequence: int) -> str:
        return f"{sequence:016d}"

    def _get(self, sequence: int) -> JournalRecord | None:
        entry = self._store.get(self._partition, self._key(sequence))
        return from_bytes(entry.value, f"{self._partition}/{entry.key}") if entry else None

    def _create(self, sequence: int, record: JournalRecord) -> tuple[JournalRecord, bool]:
        entry = self._create_entry(self._partition, self._key(sequence), to_bytes(record))
        if entry is None:
            return record, True
        return from_bytes(entry.value, f"{self._partition}/{entry.key}"), False

    def _create_entry(self, partition: str, key: str, value: bytes) -> Entry | None:
        """Create a record unless there is one; return what another has created, None where it is ours."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            outcome = self._store.set_if(partition, key, value, ABSENT)
            settled = settle(self._store, partition, key, outcome, is_mine=lambda entry: entry.value == value)
            if not isinstance(settled, Conflict):
                return None
            if settled.current is not None:
                return settled.current
            # The reply was lost, and so was the write: nobody's record is there yet.
        raise ContentionError(
            f"{partition}/{key}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost."
        )
