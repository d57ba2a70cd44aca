"""Who did what, in the records of a lake: of each change there is a record before it is begun.

What came of it is written into the same record afterwards. So a change without a record cannot be, whoever is killed;
a record that does not say what came of it may be of a change that was made, or not.

Which records of the audit are old, or too many, whatever clocks did meanwhile. Pure.

Counts what repeats, such as refused requests: a flood of them is a few records a minute. Pure.
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
from tracelake.access.keys import ALL_WORKSPACES, AUDIT_VERSION, AuditKind, AuditRecord
from tracelake.durations import duration_ns
from tracelake.formats import decode, encode
from tracelake.storage import Entry, KeyValueStore
from tracelake.storage.object_records import whole_of


def expired(times_ns: Sequence[int], now_ns: int) -> Iterator[int]:
    """Yield which of these times, the newest first, are of records that are not to be kept any more.

    An age is the sum of what lies between a record, those after it, and now, and between two of them no more counts
    than AUDIT_GAP_MAX_NS: that so much time passed is believed where records of it are there. So a clock that jumps
    ahead by years removes what had that long to live, and no more. What was noted ahead of now, as before a clock went
    back, has no age, and is counted apart: else it would push out what is noted now.
    """
    age_ns, later_ns, ahead, others = 0, now_ns, 0, 0
    for at, time_ns in enumerate(times_ns):
        if time_ns > now_ns:
            ahead += 1
            if ahead > limits.AUDIT_RECORDS_MAX:
                yield at
            continue
        others += 1
        age_ns += min(later_ns - time_ns, limits.AUDIT_GAP_MAX_NS)
        later_ns = time_ns
        if others > limits.AUDIT_RECORDS_MAX or age_ns >= limits.AUDIT_KEPT_NS:
            yield at


logger = logging.getLogger("tracelake.access")

PARTITION: Final = "audit"
_TIME_STOP: Final = 10**20 - 1
"""Times fall from here in the keys of records, which have twenty digits."""


class Audit:
    """Writes and lists what was done: `lake.audit`, or that of one workspace. Threads may share it."""

    def __init__(self, records: Callable[[], KeyValueStore], workspace: str | None = None) -> None:
        self._records = records
        self._workspace = workspace

    def write(self, records: Iterable[AuditRecord]) -> None:
        """Write records, in place of those with the same id; some of them where it raises StorageError."""
        self._records().set_all(PARTITION, {each.id: encode(each) for each in records})

    def newest(
        self, limit: int = limits.AUDIT_SHOWN_DEFAULT, since_ns: int = 0, key_id: str | None = None
    ) -> list[AuditRecord]:
        """Return the newest records, the newest first, of one key or of all. Raises UsageError for too many."""
        if not 1 <= limit <= limits.AUDIT_SHOWN_MAX:
            raise UsageError(f"ask for 1 to {limits.AUDIT_SHOWN_MAX:,} records, not {limit}")
        each = (self._of_place(place, since_ns, limit) for place in self._places())
        newest_first = heapq.merge(*each, key=lambda record: -record.at_ns)
        return list(islice((each for each in newest_first if self._is_shown(each, key_id)), limit))

    def trim(self, now_ns: int) -> int:
        """Remove what is too old, or of which there is too much, of each kind of a workspace; return how many of them.

        Those are AUDIT_TRIMMED_MAX at most; the next call removes more.
        """
        too_much = chain.from_iterable(self._too_much(place, now_ns) for place in self._places())
        removed = 0
        for key in islice(too_much, limits.AUDIT_TRIMMED_MAX):
            self._records().erase(PARTITION, key)
            removed += 1
        return removed

    def _too_much(self, place: str, now_ns: int) -> Iterator[str]:
        # As many as are kept, and as are removed at once: so many lie before all that are beyond.
        most = 2 * limits.AUDIT_RECORDS_MAX + limits.AUDIT_TRIMMED_MAX
        keys = self._records().keys(PARTITION, place, _end_of(place), most)
        times = {key: at_ns for key in keys if (at_ns := _time_in(place, key)) is not None}
        keys = list(times)
        yield from (keys[at] for at in expired(list(times.values()), now_ns))

    def _places(self) -> Iterator[str]:
        """Yield where records may be: for each workspace there is something of, each kind."""
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
            start = f"{workspace}0"  # 0 follows /

    def _is_shown(self, record: AuditRecord, key_id: str | None) -> bool:
        return self._workspace in (None, record.workspace) and key_id in (None, record.key_id)

    def _of_place(self, place: str, since_ns: int, limit: int) -> Iterator[AuditRecord]:
        # Times fall as keys climb; what has the time itself is in.
        for entry in self._entries(place, _key(place, since_ns - 1), limit):
            try:
                yield decode(AuditRecord, entry.value, f"record {entry.key} of the audit", AUDIT_VERSION)
            except DamageError as error:
                logger.warning("%s It is left out.", error)

    def _entries(self, place: str, stop: str, at_once: int) -> Iterator[Entry]:
        """Yield what is kept at a place up to a key, page by page, the newest first."""
        start = place
        page_records = min(at_once, limits.AUDIT_PAGE_RECORDS)
        while True:
            scan = partial(self._records().scan, start=start, stop=stop, limit=page_records)
            page = whole_of(
                scan,
                PARTITION,
                lambda _, problem: logger.warning("%s It is left out of the audit.", problem),
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
    """Return a record of now, whatever stands in texts; with a workspace of None, of all."""
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
    """Return from when on records are asked for, by a duration such as `7d`; None for all. Raises UsageError."""
    return 0 if duration is None else now_ns - duration_ns(duration)


def with_outcome(record: AuditRecord, outcome: str | None, object: str = "") -> AuditRecord:
    """Return a record that says what came of it, None where that is not known, and perhaps of what it was."""
    told = None if outcome is None else shown(outcome)
    return msgspec.structs.replace(record, outcome=told, object=shown(object) or record.object)


def in_workspace(record: AuditRecord, workspace: str) -> AuditRecord:
    """Return a record as one of another workspace, which is another record."""
    return msgspec.structs.replace(
        record, id=id_at(record.kind, workspace, record.at_ns), workspace=workspace
    )


def shown(text: str) -> str:
    """Return a text of a client for a line of a log, or a record, whatever is in it."""
    return ascii(text[: limits.AUDIT_TEXT_MAX_CHARS])[1:-1]


def id_at(kind: AuditKind, workspace: str, at_ns: int) -> str:
    """Return a new id of a record: workspace and kind come first, for each has bounds of its own."""
    return f"{_key(f'{_short(workspace)}/{kind}/', at_ns)}-{secrets.token_hex(4)}"


def _key(place: str, at_ns: int) -> str:
    return f"{place}{_TIME_STOP - max(0, at_ns):020d}"


def _time_in(place: str, key: str) -> int | None:
    """Return the time that stands in the key of a record; None where it is no such key."""
    digits = key[len(place) :].partition("-")[0]
    return _TIME_STOP - int(digits) if digits.isdecimal() and digits.isascii() else None


def _end_of(place: str) -> str:
    return f"{place[:-1]}0"  # 0 follows /


def _short(workspace: str) -> str:
    """Return what stands for a workspace in keys: short and without a slash, whatever its name is."""
    if workspace == ALL_WORKSPACES:
        return workspace
    return hashlib.sha256(workspace.encode(errors="replace")).hexdigest()[:16]


OTHERS: Final = "others"
"""What is counted together, once there are too many different things."""


class EventCounter:
    """Like things of one minute, of one key each, are one record, which is written where its number has doubled."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._began_ns: int | None = None
        self._counted: dict[tuple[str, str, str | None], AuditRecord] = {}
        self._before: dict[str, AuditRecord] = {}
        """Of minutes that are over, what is not written whole."""
        self._written: dict[str, int] = {}

    def count(self, record: AuditRecord, now_ns: int) -> list[AuditRecord]:
        """Count one more; return the records that are to be written now. `now_ns`: of a clock that is never set."""
        due: list[AuditRecord] = []
        if self._began_ns is None or now_ns - self._began_ns >= limits.AUDIT_COUNTED_NS:
            due = self.unwritten()
            self._begin_minute(due, now_ns)
        like = (record.key_id, record.action, record.outcome)
        if like not in self._counted and len(self._counted) >= limits.AUDIT_COUNTED_MAX:
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
        """Return the records that count more than what is known to be written of them."""
        counted = (each for each in self._counted.values() if each.times > self._written.get(each.id, 0))
        return [*self._before.values(), *counted]

    def wrote(self, records: Iterable[AuditRecord]) -> None:
        """Hear what was written."""
        for record in records:
            self._written[record.id] = record.times
            before = self._before.get(record.id)
            if before is not None and before.times == record.times:
                del self._before[record.id]

    def _begin_minute(self, unwritten: list[AuditRecord], now_ns: int) -> None:
        # While nothing can be written the newest are kept, as many as there can be of a minute.
        newest = islice(reversed(unwritten), limits.AUDIT_COUNTED_MAX + 1)
        self._before = {each.id: each for each in newest}
        self._began_ns = now_ns
        self._counted.clear()
        self._written.clear()


def _is_written_at(times: int) -> bool:
    return times & (times - 1) == 0
