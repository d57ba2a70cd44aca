"""Gives names to commits: a claim, a look, then the name.

A claim is the record of the name as it will be, with the epoch in which it was written. Nobody takes it for a name but
garbage collection. So either a collector that looks sees the claim; or it looked before, and then whoever claims sees
what it saw: where nothing leads to the commit, nothing ever will. The name is given by a conditional write on the
claim. Whoever finds a claim in its way takes it away, as a collector does two epochs later: who was killed leaves
nothing behind, and who is slow claims once more.

A collector looks at names one after the other, and a commit may go from one to another all the while, never where the
collector just looks. So each name is told of before it is given: who meets that looks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from tracelake._errors import ContentionError, RefNotFoundError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, settle
from tracelake.versions.branches import BRANCHES, TAGS, BranchRecords
from tracelake.versions.model import CERTAIN, BranchRecord, Tag, from_bytes, to_bytes
from tracelake.versions.protocol import is_collectable

NameT = TypeVar("NameT", BranchRecord, Tag)


class Names:
    """Gives names, and ends claims."""

    def __init__(
        self, key_value: KeyValueStore, records: BranchRecords, reaches: Callable[[str], bool]
    ) -> None:
        """Give names in these stores to what `reaches` says that a branch or tag leads to."""
        self._key_value = key_value
        self._records = records
        self._reaches = reaches

    def give(self, name: str, record: NameT, commit: str) -> bool:
        """Give a commit a name, the record of a branch or tag; False where the name is taken, by a branch or a tag.

        Raises RefNotFoundError where no branch or tag leads to the commit.
        """
        partition, other = (BRANCHES, TAGS) if isinstance(record, BranchRecord) else (TAGS, BRANCHES)
        value = to_bytes(record)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            claim = replace(record, claimed=self._records.epoch().number)
            if not self._clear(partition, name):
                there = self._key_value.get(partition, name)
                return there is not None and there.value == value  # ours: it landed late
            outcome = self._key_value.set_if(partition, name, to_bytes(claim), ABSENT)
            claimed = settle(self._key_value, partition, name, outcome, is_mine=lambda _: False)
            if not isinstance(claimed, Done):
                continue
            is_free = self._clear(other, name)
            if not is_free or not self._reaches(commit):
                self._key_value.delete_if(partition, name, claimed.version)
                if not is_free:
                    return False
                raise RefNotFoundError(
                    f"no branch or tag leads to commit {commit[:12]} any more: garbage collection may take it."
                )
            self._records.tell_of_name()
            outcome = self._key_value.set_if(partition, name, value, claimed.version)
            is_mine = _is(value)
            if isinstance(settle(self._key_value, partition, name, outcome, is_mine=is_mine), Done):
                return True
        raise ContentionError(
            f"{name!r}: others were giving this name, again and again. Nothing was changed; try again."
        )

    def end_claims(self, newest: int) -> None:
        """Delete the claims of two epochs ago: whoever made them was killed, or claims once more."""
        for partition in (BRANCHES, TAGS):
            for entry in self._key_value.scan(partition):
                claimed = _claimed(partition, entry)
                if claimed != CERTAIN and is_collectable(claimed, newest):
                    self._key_value.delete_if(partition, entry.key, entry.version)

    def _clear(self, partition: str, name: str) -> bool:
        """Take a claim away; return whether nothing has the name now."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._key_value.get(partition, name)
            if entry is None:
                return True
            if _claimed(partition, entry) == CERTAIN:
                return False
            outcome = self._key_value.delete_if(partition, name, entry.version)
            settle(self._key_value, partition, name, outcome, is_mine=lambda _: False)
        raise ContentionError(
            f"{name!r}: others were giving this name, again and again. Nothing was changed; try again."
        )


def _is(value: bytes) -> Callable[[Entry], bool]:
    return lambda entry: entry.value == value


def _claimed(partition: str, entry: Entry) -> int:
    if partition == TAGS:
        return from_bytes(Tag, entry.value, f"tag {entry.key}").claimed
    return from_bytes(BranchRecord, entry.value, f"branch {entry.key}").claimed
