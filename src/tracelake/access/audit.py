"""The audit log of a lake: a record of each change, its author and its outcome.

Each change gets its record before it starts, and its outcome in the same record afterwards. Every change therefore has
a record, even if a process is killed. A record without an outcome may belong to a change that happened or not.

The retention of records tolerates clock changes. `EventCounter` counts repeated events, such as refused requests, so
that a flood of them adds only a few records a minute.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, get_args

import msgspec

from tracelake import limits
from tracelake._errors import DamageError, UsageError
from tracelake._settings import duration_ns
from tracelake.access.keys import ALL_WORKSPACES, AUDIT_VERSION, AuditKind, AuditRecord
from tracelake.formats import decode, encode
from tracelake.storage import Entry, KeyValueStore
from tracelake.storage.ports import whole_of

AUDIT_GAP_MAX_NS: Final = 30 * 86_400 * 10**9
"""Largest time between two records that counts towards their age, because a clock that jumps ahead would age all
records."""
AUDIT_TRIMMED_MAX: Final = 5_000
"""Records deleted in one trim."""
AUDIT_COUNTED_MAX: Final = 200
"""Distinct events that a server counts per minute, such as refused requests of one key."""
AUDIT_COUNTED_NS: Final = 60 * 10**9
"""Time for which equal events share one record."""
AUDIT_PAGE_RECORDS: Final = 500
"""Records in one read."""


def expired(times_ns: Sequence[int], now_ns: int) -> Iterator[int]:
    """Yield the positions of records to delete, because they are too old or too many. `times_ns` are the times of all
    records, newest first."""
    age_ns, later_ns, later, others = 0, now_ns, 0, 0
    for at, time_ns in enumerate(times_ns):
        if time_ns > now_ns:
            later += 1
            if later > limits.AUDIT_RECORDS_MAX:
                yield at
            continue
        others += 1
        age_ns += min(later_ns - time_ns, AUDIT_GAP_MAX_NS)
        later_ns = time_ns
        if others > limits.AUDIT_RECORDS_MAX or age_ns >= limits.AUDIT_KEPT_NS:
            yield at


logger = logging.getLogger("tracelake.access")

PARTITION: Final = "audit"
_TIME_STOP: Final = 10**20 - 1
"""Keys of records contain this number minus the time, with twenty digits, so that newer records come first."""


class Audit:
    """The audit log of the lake, `lake.audit`, or of one workspace. Thread-safe."""

    def __init__(self, records: Callable[[], KeyValueStore], workspace: str | None = None) -> None:
        self._records = records
        self._workspace = workspace

    def write(self, records: Iterable[AuditRecord]) -> None:
        """Write records, replacing those with the same id. Raises StorageError, after which some may be written."""
        self._records().set_all(PARTITION, {each.id: encode(each) for each in records})

    def newest(
        self, limit: int = limits.AUDIT_SHOWN_DEFAULT, since_ns: int = 0, key_id: str | None = None
    ) -> list[AuditRecord]:
        """Return the newest records first, of one key or of all. Raises UsageError for a limit out of range."""
        if not 1 <= limit <= limits.AUDIT_SHOWN_MAX:
            raise UsageError(f"ask for 1 to {limits.AUDIT_SHOWN_MAX:,} records, not {limit}")
        each = (self._of_place(place, since_ns, limit) for place in self._places())
        newest_first = heapq.merge(*each, key=lambda record: -record.at_ns)
        return list(islice((each for each in newest_first if self._is_shown(each, key_id)), limit))

    def trim(self, now_ns: int) -> int:
        """Delete expired and excess records of each workspace and kind; return their number.

        One call deletes at most AUDIT_TRIMMED_MAX records; the next call continues.
        """
        too_much = chain.from_iterable(self._too_much(place, now_ns) for place in self._places())
        removed = 0
        for key in islice(too_much, AUDIT_TRIMMED_MAX):
            self._records().erase(PARTITION, key)
            removed += 1
        return removed

    def _too_much(self, place: str, now_ns: int) -> Iterator[str]:
        # Twice the number of kept records plus one trim: enough to reach everything beyond the limit.
        most = 2 * limits.AUDIT_RECORDS_MAX + AUDIT_TRIMMED_MAX
        keys = self._records().keys(PARTITION, place, f"{place[:-1]}0", most)  # 0 follows / in key order
        times = {key: at_ns for key in keys if (at_ns := _time_in(place, key)) is not None}
        keys = list(times)
        yield from (keys[at] for at in expired(list(times.values()), now_ns))

    def _places(self) -> Iterator[str]:
        """Yield the key prefixes that may have records: one per workspace and kind."""
        for workspace in self._workspaces():
            yield from (f"{workspace}/{kind}/" for kind in get_args(AuditKind))

    def _workspaces(self) -> Iterator[str]:
        if self._workspace is not None:
            yield _short(self._workspace)
            return
        start = ""
        while first := self._records().keys(PARTITION, start, limit=1):
            workspace = first[0].partition("/")[0]
            yield workspace
            start = f"{workspace}0"  # 0 follows / in key order

    def _is_shown(self, record: AuditRecord, key_id: str | None) -> bool:
        return self._workspace in (None, record.workspace) and key_id in (None, record.key_id)

    def _of_place(self, place: str, since_ns: int, limit: int) -> Iterator[AuditRecord]:
        # The times in keys fall as keys rise; `since_ns` itself is included.
        for entry in self._entries(place, _key(place, since_ns - 1), limit):
            try:
                yield decode(AuditRecord, entry.value, f"audit record {entry.key}", AUDIT_VERSION)
            except DamageError as error:
                logger.warning("%s The record is skipped.", error)

    def _entries(self, place: str, stop: str, at_once: int) -> Iterator[Entry]:
        """Yield the entries of a key prefix up to a key, page by page, newest first."""
        start = place
        page_records = min(at_once, AUDIT_PAGE_RECORDS)
        while True:
            scan = partial(self._records().scan, start=start, stop=stop, limit=page_records)
            page = whole_of(
                scan,
                PARTITION,
                lambda _, problem: logger.warning("%s The record is skipped in the audit.", problem),
            )
            yield from page
            if len(page) < page_records:
                return
            start = f"{page[-1].key}\0"


def audit_record(
    kind: AuditKind,
    key_id: str,
    action: str,
    *,
    name: str = "",
    workspace: str | None = None,
    person: str | None = None,
    address: str = "",
    object: str = "",
    outcome: str | None = None,
) -> AuditRecord:
    """Return a record with the current time and escaped texts; a workspace of None means all workspaces."""
    now_ns = time.time_ns()
    workspace = ALL_WORKSPACES if workspace is None else workspace
    return AuditRecord(
        id=id_at(kind, workspace, now_ns),
        at_ns=now_ns,
        kind=kind,
        key_id=shown(key_id),
        name=shown(name),
        workspace=workspace,
        action=shown(action),
        object=shown(object),
        outcome=outcome,
        address=shown(address),
        person=person,
    )


def since_ns(duration: str | None, now_ns: int) -> int:
    """Return the time before now by a duration such as `7d`, from which records are requested; 0 for None. Raises
    UsageError if the text is no duration."""
    return 0 if duration is None else now_ns - duration_ns(duration)


def with_outcome(record: AuditRecord, outcome: str | None, object: str = "") -> AuditRecord:
    """Return a record with its outcome, None if unknown, and optionally another object."""
    text = None if outcome is None else shown(outcome)
    return msgspec.structs.replace(record, outcome=text, object=shown(object) or record.object)


def in_workspace(record: AuditRecord, workspace: str) -> AuditRecord:
    """Return a copy of a record for another workspace, with a new id."""
    return msgspec.structs.replace(
        record, id=id_at(record.kind, workspace, record.at_ns), workspace=workspace
    )


def shown(text: str) -> str:
    """Return client text escaped and truncated for a log line or a record."""
    return ascii(text[: limits.AUDIT_TEXT_MAX_CHARS])[1:-1]


def id_at(kind: AuditKind, workspace: str, at_ns: int) -> str:
    """Return a new record id. It starts with workspace and kind, because each pair has separate limits."""
    return f"{_key(f'{_short(workspace)}/{kind}/', at_ns)}-{secrets.token_hex(4)}"


def _key(place: str, at_ns: int) -> str:
    return f"{place}{_TIME_STOP - max(0, at_ns):020d}"


def _time_in(place: str, key: str) -> int | None:
    """Return the time in a record's key, or None for a malformed key."""
    digits = key[len(place) :].partition("-")[0]
    return _TIME_STOP - int(digits) if digits.isdecimal() and digits.isascii() else None


def _short(workspace: str) -> str:
    """Return a short key segment without slashes that stands for a workspace name of any form."""
    if workspace == ALL_WORKSPACES:
        return workspace
    return hashlib.sha256(workspace.encode(errors="replace")).hexdigest()[:16]


OTHERS: Final = "others"
"""Action of the events that are counted together once there are too many different ones."""


class EventCounter:
    """Counter of repeated events: equal events of one key and minute share one record, written whenever its count
    doubles."""

    def __init__(self) -> None:
        """Start without counts."""
        self._began_ns: int | None = None
        self._counted: dict[tuple[str, str, str | None], AuditRecord] = {}
        self._before: dict[str, AuditRecord] = {}
        """Records of past minutes whose final count is not written yet."""
        self._written: dict[str, int] = {}

    def count(self, record: AuditRecord, now_ns: int) -> list[AuditRecord]:
        """Count one event; return the records to write now. `now_ns` comes from a monotonic clock."""
        due: list[AuditRecord] = []
        if self._began_ns is None or now_ns - self._began_ns >= AUDIT_COUNTED_NS:
            due = self.unwritten()
            self._begin_minute(due, now_ns)
        like = (record.key_id, record.action, record.outcome)
        if like not in self._counted and len(self._counted) >= AUDIT_COUNTED_MAX:
            like = ("", OTHERS, None)
            record = msgspec.structs.replace(
                in_workspace(record, ALL_WORKSPACES),
                key_id="",
                name="",
                action=OTHERS,
                outcome=None,
                person=None,
            )
        before = self._counted.get(like)
        if before is not None:
            record = msgspec.structs.replace(
                before, times=before.times + 1, object=record.object, address=record.address
            )
        self._counted[like] = record
        return [*due, record] if _is_written_at(record.times) else due

    def unwritten(self) -> list[AuditRecord]:
        """Return the records whose count exceeds the written one."""
        counted = (each for each in self._counted.values() if each.times > self._written.get(each.id, 0))
        return [*self._before.values(), *counted]

    def wrote(self, records: Iterable[AuditRecord]) -> None:
        """Record that these records were written, so that `unwritten` no longer returns them."""
        for record in records:
            self._written[record.id] = record.times
            before = self._before.get(record.id)
            if before is not None and before.times == record.times:
                del self._before[record.id]

    def _begin_minute(self, unwritten: list[AuditRecord], now_ns: int) -> None:
        # While writes fail, keep the newest records, as many as one minute can have.
        newest = islice(reversed(unwritten), AUDIT_COUNTED_MAX + 1)
        self._before = {each.id: each for each in newest}
        self._began_ns = now_ns
        self._counted.clear()
        self._written.clear()


def _is_written_at(times: int) -> bool:
    return times & (times - 1) == 0
