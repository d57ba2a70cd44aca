"""The journal in the key-value store: records created if absent at the next sequence number.

Each transaction has one step so far, so transaction T stands at sequence 2T (Step) and 2T+1 (Seal): a reader
finds T without a scan, and a gap is damage. That T is set aside stands in a partition of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelake._errors import ContentionError, DamageError
from tracelake.formats import decode, encode
from tracelake.journal.model import FORMAT_VERSION, Aside, JournalRecord, Seal, Step, from_bytes, to_bytes
from tracelake.journal.protocol import sealed_totals_agree
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Conflict, Entry, KeyValueStore, settle


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
        """Return the records of one transaction. Raises DamageError for torn or contradicting ones (J12)."""
        # The seal first: a peer may record both between two reads, and who then saw no step and a seal would
        # take a whole journal for a damaged one. Records are never deleted, so a seal seen has its step.
        seal = self._get(2 * transaction + 1)
        step = self._get(2 * transaction)
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
        """Record the step unless a peer has recorded one; return the one that stands, and whether it is ours."""
        stands, ours = self._create(2 * step.transaction, step)
        assert isinstance(stands, Step)
        return stands, ours

    def append_seal(self, seal: Seal) -> Seal:
        """Record the seal unless a peer has; return the one that stands."""
        stands, _ = self._create(2 * seal.transaction + 1, seal)
        assert isinstance(stands, Seal)
        return stands

    def aside(self, transaction: int) -> Aside | None:
        """Return the record that a transaction is set aside, None where there is none."""
        entry = self._store.get(self._asides, self._key(transaction))
        return self._to_aside(entry) if entry else None

    def set_aside(self, aside: Aside) -> Aside:
        """Record that a transaction is set aside unless a peer has; return the record that stands."""
        entry = self._create_entry(self._asides, self._key(aside.transaction), encode(aside))
        return aside if entry is None else self._to_aside(entry)

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
