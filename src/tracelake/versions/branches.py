"""Records in the key-value store: branches, announced requests, recorded answers, staged entries."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, IndeterminateError, StorageError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Done, Entry, Expected, KeyValueStore, settle
from tracelake.storage.record_objects import whole_of
from tracelake.versions.entries import StagedEntries
from tracelake.versions.model import (
    CERTAIN,
    Announcement,
    Answer,
    BranchRecord,
    Epoch,
    OldAnswer,
    Tag,
    content_id,
    from_bytes,
    to_bytes,
)

BRANCHES: Final = "branches"
TAGS: Final = "tags"
REQUESTS: Final = "requests"
ANSWERS: Final = "answers"
COLLECTOR: Final = "collector"
_EPOCH: Final = "epoch"
MAIN: Final = "main"
"""The branch that is there from the beginning, and that pipelines commit to."""


def new_token() -> str:
    """Return a token for staged entries that nobody else has."""
    return uuid.uuid4().hex


def scope(branch: str, record: BranchRecord) -> str:
    """Return what tells requests to this branch from those to a deleted one of the same name."""
    return f"{branch}:{record.id}" if record.id else branch


@dataclass(frozen=True, slots=True)
class BranchAt:
    """A branch as it was read: the record, and the version to name in a conditional write."""

    record: BranchRecord
    version: Expected

    @property
    def is_absent(self) -> bool:
        """Whether there was no record."""
        return self.version is ABSENT


class BranchRecords(StagedEntries):
    """Reads and writes the records. Holds no state: any number of processes may use the same store."""

    def __init__(self, key_value: KeyValueStore, has_commits: Callable[[], bool] = lambda: False) -> None:
        """Use the records of a store; `has_commits` is asked, where `main` is absent, whether it ever was there.

        Its record is written before the first commit is built, and never deleted.
        """
        self._key_value = key_value
        self._has_commits = has_commits

    def read(self, branch: str, known: BranchAt | None = None) -> BranchAt:
        """Return a branch; an empty record where there is none. `known` itself, where it has not changed since.

        Raises DamageError where `main` is gone.
        """
        entry = self._key_value.get(BRANCHES, branch)
        if known is not None and entry is not None and entry.version == known.version:
            return known
        return self._at(branch, entry)

    def all(self) -> dict[str, BranchAt]:
        """Return all branches by name. Raises DamageError where `main` is gone."""
        branches = {entry.key: _branch_at(entry.key, entry) for entry in self._key_value.scan(BRANCHES)}
        if MAIN not in branches:
            self._check_never_there()
        return {name: at for name, at in branches.items() if not at.is_absent}

    def swap(
        self, branch: str, at: BranchAt, record: BranchRecord, is_mine: Callable[[BranchRecord], bool]
    ) -> tuple[bool, BranchAt]:
        """Write the record in the place of the one that was read; return whether it is there, and what is.

        `is_mine` tells, after a lost reply, whether a record shows that ours was written.
        """
        value = to_bytes(record)
        outcome = self._key_value.set_if(BRANCHES, branch, value, at.version)
        settled = settle(
            self._key_value,
            BRANCHES,
            branch,
            outcome,
            is_mine=lambda entry: is_mine(_branch_at(branch, entry).record),
        )
        if isinstance(settled, Done):
            # After a lost reply another may have done the same in another way: what is there counts, not what we wrote.
            return True, BranchAt(record, settled.version) if settled is outcome else self._written(branch)
        return False, self._at(branch, settled.current)

    def _written(self, branch: str) -> BranchAt:
        """Read a branch whose record has our write. Raises IndeterminateError: no caller may take it for not done."""
        try:
            return self.read(branch)
        except StorageError as error:
            raise IndeterminateError(
                f"branch {branch} was written, and cannot be read back: {error}"
            ) from error

    def delete(self, branch: str, at: BranchAt) -> bool:
        """Delete a branch as it was read; False where it has changed since."""
        assert isinstance(at.version, str), "a branch that is not there cannot be deleted"
        outcome = self._key_value.delete_if(BRANCHES, branch, at.version)
        settled = settle(self._key_value, BRANCHES, branch, outcome, is_mine=lambda _: False)
        return isinstance(settled, Done) or settled.current is None

    def _at(self, branch: str, entry: Entry | None) -> BranchAt:
        if entry is None and branch == MAIN:
            self._check_never_there()
        return _branch_at(branch, entry)

    def _check_never_there(self) -> None:
        """Raise DamageError where `main` is gone: its history would be taken for none, and begun anew."""
        # Looked for again: it may have been made between our look and the first commit.
        if self._has_commits() and self._key_value.get(BRANCHES, MAIN) is None:
            raise DamageError(
                "the record of branch main is gone, and there are commits. Restore the metadata from a backup."
            )

    # Garbage collection

    def epoch(self) -> Epoch:
        """Return the newest epoch."""
        return self._epoch()[0]

    def advance(self, change: Callable[[Epoch], Epoch]) -> Epoch:
        """Change the newest epoch; return it. Raises ContentionError where others are faster again and again."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            epoch, version = self._epoch()
            if (wanted := change(epoch)) == epoch:
                return epoch
            outcome = self._key_value.set_if(COLLECTOR, _EPOCH, to_bytes(wanted), version)
            if isinstance(settle(self._key_value, COLLECTOR, _EPOCH, outcome, is_mine=lambda _: False), Done):
                return wanted
        raise ContentionError(
            f"{CONDITIONAL_WRITE_TRIES_MAX} others in a row changed the epoch of garbage collection. Nothing was "
            "collected; try again later."
        )

    def tell_of_name(self) -> None:
        """Let whoever looks at all names look again: one is about to be given, and another may go then."""
        self.advance(lambda epoch: replace(epoch, given=uuid.uuid4().hex))

    def tags(self) -> dict[str, str]:
        """Return the commit of each tag, by name."""
        return {name: tag.commit for name, tag in self._tags().items() if tag.claimed == CERTAIN}

    def named(self) -> set[str]:
        """Return the commits of all branches and tags, and those that a name is claimed for."""
        heads = {_branch(entry.key, entry).head for entry in self._key_value.scan(BRANCHES)}
        return (heads | {tag.commit for tag in self._tags().values()}) - {""}

    def _tags(self) -> dict[str, Tag]:
        return {
            entry.key: from_bytes(Tag, entry.value, f"tag {entry.key}")
            for entry in self._key_value.scan(TAGS)
        }

    def _epoch(self) -> tuple[Epoch, Expected]:
        entry = self._key_value.get(COLLECTOR, _EPOCH)
        if entry is None:
            return Epoch(), ABSENT
        return from_bytes(Epoch, entry.value, "the epoch of garbage collection"), entry.version

    # Announced requests

    def announce(self, scope: str, announcement: Announcement) -> None:
        """Show a request to whoever seals next. Whether it is there, its committer learns by being sealed."""
        with suppress(StorageError):
            self._key_value.note(REQUESTS, _announced(scope, announcement.request.id), to_bytes(announcement))

    def announced(self, scope: str) -> list[Announcement]:
        """Return what is announced, the oldest request first. Nothing rests on a note: one that is damaged goes."""
        announcements: list[Announcement] = []
        damaged: list[str] = []
        read = partial(self._key_value.notes, beginning=_announced(scope))
        for entry in whole_of(read, REQUESTS, lambda key, _: damaged.append(key)):
            try:
                announcements.append(from_bytes(Announcement, entry.value, f"request {entry.key}"))
            except DamageError:
                damaged.append(entry.key)
        self._forget(damaged)
        return sorted(announcements, key=lambda waiting: (waiting.request.created_at, waiting.request.id))

    def withdraw(self, scope: str, requests: Collection[str]) -> None:
        """Take announcements away; fine where there are none, or where some stay: who seals next cleans up."""
        self._forget([_announced(scope, request) for request in requests])

    def withdraw_all(self, scope: str) -> None:
        """Take away all that is announced on a branch that is deleted: nobody will seal it."""
        with suppress(StorageError):
            self.withdraw(scope, [waiting.request.id for waiting in self.announced(scope)])

    def forget_requests(self, scopes: Callable[[], Iterable[str]]) -> None:
        """Delete what is announced on branches that are not there, as `scopes` says, which is asked afterwards.

        Whoever announces has read a record of the branch, and its scope never comes again.
        """
        keys: list[str] = []
        with suppress(StorageError):
            noted = whole_of(self._key_value.notes, REQUESTS, lambda key, _: keys.append(key))
            keys += [entry.key for entry in noted]
        here = {_announced(scope) for scope in scopes()}
        self._forget([key for key in keys if key[: key.find("/") + 1] not in here])

    def _forget(self, keys: Collection[str]) -> None:
        if keys:
            with suppress(StorageError):
                self._key_value.forget(REQUESTS, keys)

    def _create(self, partition: str, key: str, value: bytes) -> None:
        """Write a record where there is none; durable on return, this one or the one that is there."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            outcome = self._key_value.set_if(partition, key, value, ABSENT)
            settled = settle(self._key_value, partition, key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done) or settled.current is not None:
                return
        raise ContentionError(f"{key}: {CONDITIONAL_WRITE_TRIES_MAX} writes in a row were lost; try again.")

    # Answers

    def record_answer(self, scope: str, answer: Answer) -> None:
        """Keep the answer to a request for who asks later; durable on return."""
        recorded = OldAnswer(scope, answer, self.epoch().number)
        self._create(ANSWERS, _asked(scope, answer.request), to_bytes(recorded))

    def answer(self, scope: str, request: str) -> Answer | None:
        """Return the answer to a request, None where none is recorded."""
        entry = self._key_value.get(ANSWERS, _asked(scope, request))
        return None if entry is None else _recorded(entry).answer

    def forget_answers(self, is_over: Callable[[OldAnswer], bool]) -> None:
        """Delete recorded answers that nobody will ask for any more. Those that are damaged stay, for `verify`."""
        with suppress(DamageError):
            for entry in self._key_value.scan(ANSWERS):
                with suppress(DamageError):
                    if is_over(_recorded(entry)):
                        self._key_value.delete_if(ANSWERS, entry.key, entry.version)


def _branch_at(branch: str, entry: Entry | None) -> BranchAt:
    if entry is None:
        return BranchAt(BranchRecord(), ABSENT)
    record = _branch(branch, entry)
    return BranchAt(record, entry.version) if record.claimed == CERTAIN else BranchAt(BranchRecord(), ABSENT)


def _branch(branch: str, entry: Entry) -> BranchRecord:
    return from_bytes(BranchRecord, entry.value, f"branch {branch}")


def _announced(scope: str, request: str | None = None) -> str:
    """Return the key of an announcement, or how those of a branch begin.

    128 bits of the hash of each: so the name of an object spells out all of it, whatever the names are.
    """
    return (
        content_id(scope.encode())[:32] + "/" + ("" if request is None else content_id(request.encode())[:32])
    )


def _asked(scope: str, request: str) -> str:
    return content_id(f"{scope}\0{request}".encode())


def _recorded(entry: Entry) -> OldAnswer:
    return from_bytes(OldAnswer, entry.value, f"the answer {entry.key}")
