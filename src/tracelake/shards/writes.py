"""Writes with an id that happened: the newest stand in the state of their table, all others in records of their own.

The state remembers a write by the same swap that appends its rows. Before it forgets one, that one gets a record;
so a write is found in the state, or else in the records: who looks reads them in this order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tracelake._errors import ContentionError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.shards.model import ShardState, Write, from_bytes, to_bytes
from tracelake.shards.protocol import is_written
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, settle

PARTITION: Final = "writes"


class Writes:
    """The writes of one table. Several processes may use them at once."""

    def __init__(self, table: str, key_value: KeyValueStore) -> None:
        self._table = table
        self._key_value = key_value

    def find(self, state: ShardState, name: str, number: int) -> Write | None:
        """Return the write of this name that a state, read before, tells of, or a record; None for a new one."""
        recorded = self._record(self._key_value.get(PARTITION, self._key(name)))
        known = state.written if recorded is None else (*state.written, recorded)
        return next((write for write in known if is_written(write, name, number)), None)

    def put_away(self, writes: Iterable[Write]) -> None:
        """Give writes records of their own; a record of a later one of the series stays."""
        for write in writes:
            self._put_away(write)

    def _put_away(self, write: Write) -> None:
        key = self._key(write.name)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._key_value.get(PARTITION, key)
            there = self._record(entry)
            if there is not None and is_written(there, write.name, write.number):
                return
            expected = ABSENT if entry is None else entry.version
            outcome = self._key_value.set_if(PARTITION, key, to_bytes(write), expected)
            settled = settle(self._key_value, PARTITION, key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return
        raise ContentionError(
            f"table {self._table}: {CONDITIONAL_WRITE_TRIES_MAX} writes of {PARTITION}/{key} in a row were lost."
        )

    def _key(self, name: str) -> str:
        return f"{self._table}/{name}"

    def _record(self, entry: Entry | None) -> Write | None:
        return None if entry is None else from_bytes(Write, entry.value, f"the record of write {entry.key}")
