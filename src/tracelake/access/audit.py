"""Who did what, in the records of a lake: of each change there is a record before it is begun.

What came of it is written into the same record afterwards. So a change without a record cannot be, whoever is killed;
a record that does not say what came of it may be of a change that was made, or not.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Final, get_args

import msgspec

from tracelake import limits
from tracelake._errors import DamageError, UsageError
from tracelake.access.aging import outlived
from tracelake.access.model import ALL_WORKSPACES, AUDIT_VERSION, AuditKind, AuditRecord
from tracelake.durations import duration_ns
from tracelake.formats import decode, encode
from tracelake.storage import Entry, KeyValueStore
from tracelake.storage.record_objects import whole_of

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
        yield from (keys[at] for at in outlived(list(times.values()), now_ns))

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
