"""The journal in the key-value store: records that are created if absent, at the next sequence number.

The records of transaction T are numbered 0, 1, 2 and so on: its steps, and last its seal. A pipeline that adds a step
and one that seals T race for the same number, so all agree on the content of T. A gap is damage. A quarantine of T is
recorded in a separate partition.

Trimming keeps only the records of the newest finished transactions, for audit. It first raises the *floor* with one
conditional write, then erases the records below. A late pipeline may find nothing below the floor, or create a record
there. Each reader and writer therefore checks the floor afterwards: its result counts only if the floor is not above
the transaction.

Class `IngestedFiles` remembers inputs by content, so that the same bytes are not decoded twice. The record is written
after the commit of the transaction. If it is lost, the input is decoded again and its spans are found to be duplicates,
so correctness does not depend on it. These records outlive the journal, because a file may be ingested again after
years. They are therefore small: one per content, with only the data that a report of a known file needs.

Receipts record when a transaction was committed, how long each output took, and its offsets in each output. They
serve users only; losing one affects only the answer of `explain`. The pipeline that published last writes the receipt
of the publication after the commit. An earlier output's receipt is written by the pipeline that found its marker.
Receipts are erased with the records of their transaction.

`repair` restores or drops damaged or missing records of a transaction that has a commit.

| damaged record                  | repair                                                                            |
|---------------------------------|-----------------------------------------------------------------------------------|
| the seal                        | write it again from the steps, if their spans are those that the commit counts    |
| a step, or the aside record     | raise the floor above the transaction: its records no longer count                |

A committed transaction is never replayed. Its records only show which inputs sources may delete. Without them,
pipelines read inputs that still exist again, and all of their spans are repeats. A transaction without a commit is
never repaired, because its records cannot be verified (J12).

`check_transactions` and `check_journal` are the checks of the journal for `tracelake verify`: every committed
transaction is recorded and sealed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal

import msgspec

from tracelake import _errors
from tracelake.formats import decode, encode
from tracelake.journal import model
from tracelake.journal.protocol import beginnings_below, floor_above, merge_steps, sealed_totals_agree, totals
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.results import Finding
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, settle
from tracelake.storage.ports import change_record, check_records, create_record

_FLOOR: Final = "floor"
_ERASED_DIGITS: Final = 3
"""Records of a thousand transactions are erased together."""


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The journal's records of one transaction."""

    steps: tuple[model.Step, ...] = ()
    seal: model.Seal | None = None

    @property
    def step(self) -> model.Step | None:
        """All its steps merged into one, None if it has none."""
        return merge_steps(self.steps) if self.steps else None


class Journal:
    """The journal of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"journal/{pipeline}"
        self._quarantine_partition = f"asides/{pipeline}"
        self._receipts = (f"receipts/{pipeline}", f"written/{pipeline}")

    def read(self, transaction: int) -> TransactionRecord:
        """Return the records of one transaction.

        Raises:
            DamageError: they are torn, or contradict one another (J12).
            TrimmedError: they are erased, or may have been.
        """
        records = self._records(transaction)
        # a peer may have recorded both between two reads; the second attempt sees them
        if not _follow(records):
            records = self._records(transaction)
        self._require_above_floor(transaction)
        return _validated(transaction, records)

    def append_step(self, step: model.Step) -> tuple[model.JournalRecord, bool]:
        """Record a step, unless a peer has recorded a step or the seal there. Return the stored record, and whether it
        is ours."""
        current, ours = self._create(step.transaction, step.number, step)
        self._require_above_floor(step.transaction)
        return current, ours

    def append_seal(self, seal: model.Seal, number: int = 1) -> model.JournalRecord:
        """Record the seal after `number` steps, unless a peer has recorded the seal or another step there. Return the
        stored record."""
        current, _ = self._create(seal.transaction, number, seal)
        return current

    def quarantine_record(self, transaction: int) -> model.QuarantineRecord | None:
        """Return the quarantine record of a transaction, or None.

        Raises TrimmedError if it is erased, or may have been.
        """
        entry = self._store.get(self._quarantine_partition, _key(transaction))
        self._require_above_floor(transaction)
        return self._to_quarantine_record(entry) if entry else None

    def quarantine(self, record: model.QuarantineRecord) -> model.QuarantineRecord:
        """Record the quarantine of a transaction, unless a peer has. Return the stored record."""
        entry = create_record(
            self._store, self._quarantine_partition, _key(record.transaction), encode(record)
        )
        return record if entry is None else self._to_quarantine_record(entry)

    def floor(self) -> int:
        """Return the least transaction whose records are kept."""
        entry = self._store.get(self._partition, _FLOOR)
        return 0 if entry is None else self._decode_floor(entry).transaction

    def check_format(self) -> None:
        """Raise FormatError if the first record has the key of format 2, which this release cannot read."""
        first = self._store.keys(self._partition, limit=1)
        if first and first[0].isdecimal():
            raise _errors.FormatError(
                f"the journal has format 2; this release reads {model.FORMAT_VERSION}. It is not damaged: tables "
                "can be read, and to ingest or verify use a development version before commit 5e076f8f (22 "
                "November 2026), or create a new lake from the same inputs."
            )

    def raise_floor(self, floor: int) -> None:
        """Raise the floor, which invalidates the records of all transactions below it. If a peer has set a higher
        floor, keep that."""
        change_record(
            self._store,
            self._partition,
            _FLOOR,
            self._decode_floor,
            encode,
            lambda there: there if there is not None and there.transaction >= floor else model.Floor(floor),
        )

    def erase_below(self, floor: int) -> None:
        """Erase all records below a floor, including those of late pipelines. The floor must be raised before.

        Erases a few at a time, because some stores block everyone during one erase call.
        """
        stop = _key(floor)
        for partition in (self._partition, self._quarantine_partition, *self._receipts):
            start = _key(0)
            while remaining := self._store.scan(partition, start, stop, limit=1):
                begin = remaining[0].key[: len(stop) - _ERASED_DIGITS]
                for beginning in [begin] if begin < stop[: len(begin)] else beginnings_below(stop, begin):
                    self._store.erase(partition, beginning)
                start = f"{begin}~"

    def steps_before_damage(self, transaction: int) -> tuple[model.Step, ...]:
        """Return the steps of a transaction before its seal, or before the first record that is damaged or gone."""
        steps: list[model.Step] = []
        while True:
            try:
                record = self._get(transaction, len(steps))
            except _errors.FormatError:
                raise
            except _errors.DamageError:
                return tuple(steps)
            if not isinstance(record, model.Step) or (record.transaction, record.number) != (
                transaction,
                len(steps),
            ):
                return tuple(steps)
            steps.append(record)

    def replace_damaged_seal(self, seal: model.Seal, number: int) -> bool:
        """Write a seal after `number` steps, where a record is damaged or missing. Return False if a peer has written
        there in the meantime."""
        key = record_key(seal.transaction, number)
        entry = self._store.get(self._partition, key)
        expected = ABSENT if entry is None else entry.version
        value = model.to_bytes(seal)
        outcome = self._store.set_if(self._partition, key, value, expected)
        settled = settle(
            self._store, self._partition, key, outcome, is_mine=lambda there: there.value == value
        )
        return isinstance(settled, Done)

    def _decode_floor(self, entry: Entry) -> model.Floor:
        where = f"journal record {self._partition}/{_FLOOR}"
        return decode(model.Floor, entry.value, where, model.FORMAT_VERSION)

    def _require_above_floor(self, transaction: int) -> None:
        """Raise TrimmedError if the transaction is below the floor, because its records may have been erased before the
        caller read or wrote them."""
        if transaction < self.floor():
            raise _errors.TrimmedError(f"transaction {transaction} is below the floor of the journal")

    def _to_quarantine_record(self, entry: Entry) -> model.QuarantineRecord:
        return decode(
            model.QuarantineRecord,
            entry.value,
            f"record {self._quarantine_partition}/{entry.key}",
            model.FORMAT_VERSION,
        )

    def _records(self, transaction: int) -> list[tuple[int, model.JournalRecord]]:
        """Return the records of a transaction with the numbers in their keys. Most transactions have two."""
        records = [(number, record) for number in (0, 1) if (record := self._get(transaction, number))]
        if records and isinstance(records[-1][1], model.Step):
            start, stop = record_key(transaction, 2), f"{_key(transaction)}~"
            for entry in self._store.scan(self._partition, start, stop):
                number = entry.key.removeprefix(f"{_key(transaction)}-")
                records.append((int(number) if number.isdecimal() else -1, self._decode(entry)))
        return records

    def _get(self, transaction: int, number: int) -> model.JournalRecord | None:
        entry = self._store.get(self._partition, record_key(transaction, number))
        return self._decode(entry) if entry else None

    def _decode(self, entry: Entry) -> model.JournalRecord:
        return model.from_bytes(entry.value, f"{self._partition}/{entry.key}")

    def _create(
        self, transaction: int, number: int, record: model.JournalRecord
    ) -> tuple[model.JournalRecord, bool]:
        key = record_key(transaction, number)
        entry = create_record(self._store, self._partition, key, model.to_bytes(record))
        return (record, True) if entry is None else (self._decode(entry), False)


def record_key(transaction: int, number: int) -> str:
    """Return the key of a record of a transaction: of step `number`, or of the seal after that many steps."""
    return f"{_key(transaction)}-{number:04d}"


def _key(transaction: int) -> str:
    return f"{transaction:016d}"


def _follow(records: Sequence[tuple[int, model.JournalRecord]]) -> bool:
    return [number for number, _ in records] == list(range(len(records)))


def _validated(t: int, records: Sequence[tuple[int, model.JournalRecord]]) -> TransactionRecord:
    """Return the validated records of a transaction. Raises DamageError if one is missing or out of place."""
    steps: list[model.Step] = []
    seal = None
    for number, record in records:
        if seal is not None or number != len(steps) or record.transaction != t:
            raise _errors.DamageError(f"{_gap(t, len(steps), seal)} Restore it from a backup.")
        if isinstance(record, model.Seal):
            seal = record
        elif record.number == number:
            steps.append(record)
        else:
            raise _errors.DamageError(f"{_gap(t, number, seal)} Restore it from a backup.")
    if seal is not None and not steps:
        raise _errors.DamageError(f"{_gap(t, 0, None)} Restore it from a backup.")
    if seal is not None and not sealed_totals_agree(merge_steps(steps), seal):
        raise _errors.DamageError(
            f"the seal of transaction {t} does not match the totals of its steps. Restore it from a backup."
        )
    return TransactionRecord(tuple(steps), seal)


def _gap(t: int, number: int, seal: model.Seal | None) -> str:
    if seal is not None:
        return f"the journal has a record of transaction {t} after its seal."
    return f"the journal has no step {number} of transaction {t}."


def trim(journal: Journal, upper: int, retained: int, *, dry_run: bool = False) -> int:
    """Erase the records of committed transactions below `upper`, except for the newest `retained`. Return the number of
    transactions.

    Each call erases everything below the floor again, because a killed call may have left records there, or a late
    pipeline may have created some.
    """
    floor = journal.floor()
    wanted = max(floor, floor_above(upper, retained))
    if not dry_run:
        journal.raise_floor(wanted)
        journal.erase_below(wanted)
    return wanted - floor


class _KnownInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    spans: int
    format_version: int
    problems: tuple[tuple[int | None, int | None, str], ...] = ()
    problems_total: int = 0


class IngestedFiles:
    """The inputs of a pipeline's committed transactions, by size and checksum."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self.store = store
        self.pipeline = pipeline
        self._partition = f"inputs/{pipeline}"

    def remember(self, inputs: Iterable[model.ReadRange]) -> None:
        """Record inputs of a committed transaction. Idempotent."""
        records = {
            f"{read_range.size_bytes:016x}-{read_range.sha256}": encode(
                _KnownInput(
                    read_range.spans, model.FORMAT_VERSION, read_range.problems, read_range.problems_total
                )
            )
            for read_range in inputs
        }
        self.store.set_all(self._partition, records)

    def find(self, size_bytes: int, sha256: Callable[[], str]) -> model.ReadRange | None:
        """Return the earlier read result of an input with this size and checksum, without its path, or None.

        Calls `sha256` only if an input of the same size is known.
        """
        prefix = f"{size_bytes:016x}-"
        if not self.store.scan(self._partition, prefix, prefix + "~", limit=1):
            return None
        content = sha256()
        entry = self.store.get(self._partition, prefix + content)
        if entry is None:
            return None
        ingested = decode(_KnownInput, entry.value, f"the known input {entry.key}", model.FORMAT_VERSION)
        return model.WholeFile(
            path="",
            size_bytes=size_bytes,
            sha256=content,
            records=0,
            checksum="",
            spans=ingested.spans,
            problems=ingested.problems,
            problems_total=ingested.problems_total,
        )


RECEIPT_FORMAT_VERSION: Final = 1


class PublishReceipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receipt of the publication of a transaction."""

    transaction: int
    written_at: str
    """ISO 8601, UTC: time when its parts were written and the first output began."""
    committed_at: str
    outputs_s: tuple[float, ...]
    """Duration of each output, in their order; the last is the commit."""
    by: str
    """The replica or process that published."""
    commit: str = ""
    """The commit's id: from here, a reader follows the history to older commits without a walk from the newest."""
    format_version: int = RECEIPT_FORMAT_VERSION


class PartitionOffsets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Offsets of a transaction's messages in a log partition. Messages of other writers may lie between them."""

    partition: int
    start: int
    """Offset of the first message."""
    stop: int
    """Offset of the last message plus one."""
    messages: int


class OutputReceipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Receipt of an output to an external system for one transaction."""

    transaction: int
    messages: int
    partitions: tuple[PartitionOffsets, ...] = ()
    """The first partitions, if there are many; empty if the system did not return offsets."""
    format_version: int = RECEIPT_FORMAT_VERSION


class OutputReceipts:
    """The receipts of a pipeline's outputs."""

    def __init__(self, store: KeyValueStore, pipeline: str = "main") -> None:
        self._store = store
        self._partition = f"written/{pipeline}"

    def note(self, output_id: str, receipt: OutputReceipt) -> None:
        """Store the receipt of an output; errors are ignored. Idempotent."""
        with contextlib.suppress(_errors.StorageError):
            self._store.set(self._partition, f"{_key(receipt.transaction)}-{output_id}", encode(receipt))

    def read(self, transaction: int, output_id: str) -> OutputReceipt | None:
        """Return the receipt of an output for a transaction, or None. Raises DamageError if the record does not
        decode."""
        entry = self._store.get(self._partition, f"{_key(transaction)}-{output_id}")
        if entry is None:
            return None
        return decode(
            OutputReceipt, entry.value, f"record {self._partition}/{entry.key}", RECEIPT_FORMAT_VERSION
        )


class PublishReceipts:
    """The publish receipts of one pipeline."""

    def __init__(self, store: KeyValueStore, pipeline: str) -> None:
        self._store = store
        self._partition = f"receipts/{pipeline}"

    def note(self, receipt: PublishReceipt) -> None:
        """Store a receipt; errors are ignored."""
        with contextlib.suppress(_errors.StorageError):
            self._store.set(self._partition, _key(receipt.transaction), encode(receipt))

    def read(self, transaction: int) -> PublishReceipt | None:
        """Return the receipt of a transaction, or None. Raises DamageError if the record does not decode."""
        entry = self._store.get(self._partition, _key(transaction))
        return None if entry is None else self._decode(entry)

    def first_from(self, transaction: int) -> PublishReceipt | None:
        """Return the first receipt at or after a transaction. Raises DamageError if the record does not decode."""
        entries = self._store.scan(self._partition, _key(transaction), limit=1)
        return self._decode(entries[0]) if entries else None

    def _decode(self, entry: Entry) -> PublishReceipt:
        return decode(
            PublishReceipt, entry.value, f"record {self._partition}/{entry.key}", RECEIPT_FORMAT_VERSION
        )


RepairKind = Literal["seal", "forgotten"]
"""Result of a repair: the seal was written again, or the records of this and all earlier transactions were dropped."""


def repair(journal: Journal, t: int, sealed_at: str, spans: int) -> RepairKind:
    """Repair the records of a committed transaction, or drop them. The call may be repeated, and is safe while
    pipelines run.

    Args:
        journal: the journal of the pipeline.
        t: the transaction. It must have a commit, and must not be quarantined.
        sealed_at: the time of its commit, used as the time of the seal.
        spans: the number of spans that its commit counts: new, replaced and repeated ones.

    Raises UsageError if its records are intact.
    """
    for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
        if _is_readable(journal, t):
            raise _errors.UsageError(
                f"the records of transaction {t} are intact. `tracelake verify` lists all damage."
            )
        steps = journal.steps_before_damage(t)
        seal = seal_of(t, steps, sealed_at, spans)
        if seal is None:
            # Safety: the transaction is committed, so no pipeline needs its records to publish it.
            journal.raise_floor(t + 1)
            journal.erase_below(t + 1)
            return "forgotten"
        if journal.replace_damaged_seal(seal, len(steps)) and _is_readable(journal, t):
            return "seal"
    raise _errors.ContentionError(
        f"transaction {t}: its records changed {CONDITIONAL_WRITE_TRIES_MAX} times during the repair. Try "
        "again."
    )


def seal_of(t: int, steps: tuple[model.Step, ...], sealed_at: str, spans: int) -> model.Seal | None:
    """Return the seal after these steps. Return None if the commit counts another number of spans, because a step is
    then damaged or missing."""
    if not steps:
        return None
    sources = merge_steps(steps).sources
    if sum(recorded_range.spans for ranges in sources.values() for recorded_range in ranges) != spans:
        return None
    records, checksum = totals(sources)
    return model.Seal(t, records, checksum, sealed_at)


def _is_readable(journal: Journal, t: int) -> bool:
    journal.check_format()
    try:
        recorded = journal.read(t)
        journal.quarantine_record(t)
    except _errors.TrimmedError:
        return True  # nothing of it counts
    except _errors.FormatError:
        raise
    except _errors.DamageError:
        return False
    return recorded.step is not None and recorded.seal is not None


def repairable(t: int) -> str:
    """Return a sentence with the command that repairs the records of a committed transaction."""
    return (
        f"Transaction {t} is committed, and its tables are intact: `tracelake pipeline repair {t}` repairs "
        "its records."
    )


_STEPS: Final = "journal/main"
_ASIDES: Final = "asides/main"
_MISSING: Final = "committed, but not recorded and sealed"
_PARTITIONS: Final = (
    _STEPS,
    "inputs/main",
    _ASIDES,
    "suspects/main",
    "receipts/main",
    "written/main",
    "prices",
)


def check_transactions(
    journal: Journal, transactions: int, quarantined: Collection[int | None]
) -> tuple[dict[int, model.Step], list[Finding]]:
    """Read the records above the floor. Return the steps of transactions that published something, and findings.

    A quarantined transaction, marked in its commit, published nothing.
    """
    steps: dict[int, model.Step] = {}
    findings: list[Finding] = []
    missing: list[int] = []

    def find(kind: str, t: int, detail: str) -> None:
        findings.append(Finding(kind, "journal", _name(t), detail))

    try:
        journal.check_format()
    except _errors.FormatError as error:
        return {}, [Finding("mismatch", "journal", "format", str(error))]
    try:
        floor = journal.floor()
    except _errors.DamageError:
        return {}, []  # the check of all records reports it, and without it the expected records are unknown
    for t in range(floor, transactions):
        try:
            recorded = journal.read(t)
            if t in quarantined and journal.quarantine_record(t) is None:
                find(
                    "missing",
                    t,
                    "its commit says that it was quarantined, but the quarantine record is missing",
                )
        except _errors.TrimmedError:
            continue
        except _errors.DamageError as error:
            is_repairable = t not in quarantined and not isinstance(error, _errors.FormatError)
            find("damaged", t, f"{error} {repairable(t)}" if is_repairable else str(error))
            continue
        if recorded.step is None or recorded.seal is None:
            missing.append(t)
        elif t not in quarantined:
            steps[t] = recorded.step
    return steps, [*_missing(missing), *findings]


def _missing(transactions: Sequence[int]) -> Iterator[Finding]:
    """Yield one finding for each stretch of transactions without records, because a missing floor affects all below
    it."""
    for _, several in groupby(enumerate(transactions), lambda numbered: numbered[1] - numbered[0]):
        stretch = [t for _, t in several]
        if len(stretch) == 1:
            detail = f"it is {_MISSING}. {repairable(stretch[0])}"
            yield Finding("missing", "journal", _name(stretch[0]), detail)
            continue
        detail = f"they are {_MISSING}"
        if stretch[0] == 0:
            detail += (
                ": perhaps only the record of the floor is missing, which the next `tracelake gc` writes "
                "again"
            )
        yield Finding("missing", "journal", f"transactions {stretch[0]} to {stretch[-1]}", detail)


def check_journal(key_value: KeyValueStore, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the damaged records, except those of transactions that have a finding already."""
    names = {finding.path for finding in findings if finding.what == "journal"}
    for finding in check_records(key_value, _PARTITIONS):
        partition, _, key = finding.path.rpartition("/")
        t = _transaction_of(partition, key)
        if t is None or _name(t) not in names:
            yield finding


def _transaction_of(partition: str, key: str) -> int | None:
    number = key.partition("-")[0] if partition == _STEPS else key
    return int(number) if partition in (_STEPS, _ASIDES) and number.isdecimal() else None


def _name(t: int) -> str:
    return f"transaction {t}"
