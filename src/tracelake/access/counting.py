"""Counts what repeats, such as refused requests: a flood of them is a few records a minute. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import msgspec

from tracelake import limits
from tracelake.access.audit import in_workspace
from tracelake.access.model import ALL_WORKSPACES, AuditRecord

OTHERS: Final = "others"
"""What is counted together, once there are too many different things."""


class Counting:
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
