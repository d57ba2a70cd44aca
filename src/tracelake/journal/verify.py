"""Check of the journal for `tracelake verify`: every committed transaction is recorded and sealed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from tracelake._errors import DamageError, FormatError, TrimmedError
from tracelake.journal.model import Step
from tracelake.journal.repair import repairable
from tracelake.journal.store import Journal
from tracelake.results import Finding
from tracelake.storage import KeyValueStore
from tracelake.storage.verify import check_records

_STEPS: Final = "journal/main"
_ASIDES: Final = "asides/main"
_MISSING: Final = "committed, but not recorded and sealed"
_PARTITIONS: Final = (_STEPS, "inputs/main", _ASIDES, "suspects/main", "receipts/main", "written/main")


def check_transactions(
    journal: Journal, transactions: int, aside: Collection[int | None]
) -> tuple[dict[int, Step], list[Finding]]:
    """Read the records above the floor. Return the steps of transactions that published something, and findings.

    A quarantined transaction, marked in its commit, published nothing.
    """
    steps: dict[int, Step] = {}
    findings: list[Finding] = []
    missing: list[int] = []

    def find(kind: str, t: int, detail: str) -> None:
        findings.append(Finding(kind, "journal", _name(t), detail))

    try:
        journal.check_format()
    except FormatError as error:
        return {}, [Finding("mismatch", "journal", "format", str(error))]
    try:
        floor = journal.floor()
    except DamageError:
        return {}, []  # the check of all records reports it, and without it the expected records are unknown
    for t in range(floor, transactions):
        try:
            recorded = journal.read(t)
            if t in aside and journal.aside(t) is None:
                find(
                    "missing",
                    t,
                    "its commit says that it was quarantined, but the quarantine record is missing",
                )
        except TrimmedError:
            continue
        except DamageError as error:
            is_repairable = t not in aside and not isinstance(error, FormatError)
            find("damaged", t, f"{error} {repairable(t)}" if is_repairable else str(error))
            continue
        if recorded.step is None or recorded.seal is None:
            missing.append(t)
        elif t not in aside:
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


def check_journal(key_value: KeyValueStore, told: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the damaged records, except those of transactions that have a finding already."""
    names = {finding.path for finding in told if finding.what == "journal"}
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
