"""Counts what repeats, such as refused requests: a flood of them is a few records a minute. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from tracelake import limits
from tracelake.access.model import ALL_WORKSPACES, AuditRecord

OTHERS: Final = "others"
"""What is counted together, once there are too many different things."""


class Counting:
    """Like things of one minute, of one key each, are one record, which is written where its number has doubled."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self._minute = 0
        self._counted: dict[tuple[str, str, str | None], AuditRecord] = {}

    def count(self, record: AuditRecord) -> list[AuditRecord]:
        """Count one more; return the records that are to be written now."""
        due: list[AuditRecord] = []
        minute = record.at_ns // limits.AUDIT_COUNTED_NS
        if minute > self._minute:
            due = self.unwritten()
            self._counted.clear()
            self._minute = minute
        like = (record.key_id, record.action, record.outcome)
        if like not in self._counted and len(self._counted) >= limits.AUDIT_COUNTED_MAX:
            like = ("", OTHERS, None)
            record = msgspec.structs.replace(
                record, key_id="", name="", workspace=ALL_WORKSPACES, action=OTHERS, outcome=None, person=None
            )
        before = self._counted.get(like)
        if before is not None:
            record = msgspec.structs.replace(
                before, times=before.times + 1, object=record.object, address=record.address
            )
        self._counted[like] = record
        return [*due, record] if _is_written_at(record.times) else due

    def unwritten(self) -> list[AuditRecord]:
        """Return the records that count more than what was written of them."""
        return [each for each in self._counted.values() if not _is_written_at(each.times)]


def _is_written_at(times: int) -> bool:
    return times & (times - 1) == 0
