"""Records in the key-value store: branches, announced requests, recorded answers, staged entries."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec

from tracelake._errors import DamageError, LimitError, StorageError
from tracelake.formats import decode, encode
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, STAGED_LAYERS_MAX
from tracelake.storage import ABSENT, Done, Entry, Expected, KeyValueStore, settle
from tracelake.versions.model import (
    CERTAIN,
    FORMAT_VERSION,
    Announcement,
    Answer,
    Branch,
    Changes,
    Epoch,
    FileAt,
    Recorded,
    Reference,
    Tag,
    content_id,
    from_bytes,
    to_bytes,
)

BRANCHES: Final = "branches"
TAGS: Final = "tags"
_ANSWERS: Final = "answers"
_COLLECTOR: Final = "collector"
_EPOCH: Final = "epoch"
MAIN: Final = "main"
"""The branch that is there from the beginning, and that pipelines commit to."""


def new_token() -> str:
    """Return a token for staged entries that nobody else has."""
    return uuid.uuid4().hex


Layers: TypeAlias = tuple[Reference | None, ...]
Staged: TypeAlias = tuple[tuple[str, Layers], ...]


def stacked(found: Layers) -> Layers:
    """Return an entry, and below it what was staged at its path before: as much of that as may be needed."""
    layers: list[Reference | None] = []
    for layer in found:
        if not any(layer == other and _epoch(layer) == _epoch(other) for other in layers):
            layers.append(layer)
        if not isinstance(layer, FileAt) or len(layers) == STAGED_LAYERS_MAX:
            break  # what is no file does not go
    return tuple(layers)


def _epoch(named: Reference | None) -> int:
    return named.epoch if isinstance(named, FileAt) else 0


def scope(branch: str, record: Branch) -> str:
    """Return what tells requests to this branch from those to a deleted one of the same name."""
    return f"{branch}:{record.id}" if record.id else branch


@dataclass(frozen=True, slots=True)
class BranchAt:
    """A branch as it was read: the record, and the version to name in a conditional write."""

    record: Branch
    version: Expected

    @property
    def is_absent(self) -> bool:
        """Whether there was no record."""
        return self.version is ABSENT


class BranchRecords:
    """Reads and writes the records. Holds no state: any number of processes may use the same store."""

    def __init__(self, key_value: KeyValueStore) -> None:
        self._key_value = key_value

    def read(self, branch: str, known: BranchAt | None = None) -> BranchAt:
        """Return a branch; an empty record where there is none. `known` itself, where it has not changed since."""
        entry = self._key_value.get(BRANCHES, branch)
        if known is not None and entry is not None and entry.version == known.version:
            return known
        return _branch_at(branch, entry)

    def all(self) -> dict[str, BranchAt]:
        """Return all branches by name."""
        found = {entry.key: _branch_at(entry.key, entry) for entry in self._key_value.scan(BRANCHES)}
        return {name: at for name, at in found.items() if not at.is_absent}

    def swap(
        self, branch: str, at: BranchAt, record: Branch, is_mine: Callable[[Branch], bool]
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
            return True, BranchAt(record, settled.version) if settled is outcome else self.read(branch)
        return False, _branch_at(branch, settled.current)

    def delete(self, branch: str, at: BranchAt) -> bool:
        """Delete a branch as it was read; False where it has changed since."""
        assert isinstance(at.version, str), "a branch that is not there cannot be deleted"
        outcome = self._key_value.delete_if(BRANCHES, branch, at.version)
        settled = settle(self._key_value, BRANCHES, branch, outcome, is_mine=lambda _: False)
        return isinstance(settled, Done) or settled.current is None

    # Garbage collection

    def epoch(self) -> Epoch:
        """Return the newest epoch."""
        return self._epoch()[0]

    def advance(self, change: Callable[[Epoch], Epoch]) -> Epoch:
        """Change the newest epoch; return it. Raises LimitError where others are faster again and again."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            epoch, version = self._epoch()
            if (wanted := change(epoch)) == epoch:
                return epoch
            outcome = self._key_value.set_if(_COLLECTOR, _EPOCH, to_bytes(wanted), version)
            if isinstance(
                settle(self._key_value, _COLLECTOR, _EPOCH, outcome, is_mine=lambda _: False), Done
            ):
                return wanted
        raise LimitError(
            f"{CONDITIONAL_WRITE_TRIES_MAX} others in a row changed the epoch of garbage collection. Nothing was "
            "collected; try again later."
        )

    def tags(self) -> dict[str, str]:
        """Return the commit of each tag, by name."""
        return {name: tag.commit for name, tag in self._tags().items() if tag.claimed == CERTAIN}

    def named(self) -> set[str]:
        """Return the commits of all branches and tags, and those that a name is claimed for."""
        found = {_branch(entry.key, entry).head for entry in self._key_value.scan(BRANCHES)}
        return (found | {tag.commit for tag in self._tags().values()}) - {""}

    def _tags(self) -> dict[str, Tag]:
        return {
            entry.key: from_bytes(Tag, entry.value, f"tag {entry.key}")
            for entry in self._key_value.scan(TAGS)
        }

    def _epoch(self) -> tuple[Epoch, Expected]:
        entry = self._key_value.get(_COLLECTOR, _EPOCH)
        if entry is None:
            return Epoch(), ABSENT
        return from_bytes(Epoch, entry.value, "the epoch of garbage collection"), entry.version

    # Announced requests

    def announce(self, scope: str, announcement: Announcement) -> None:
        """Show a request to whoever seals next. Whether it is there, its committer learns by being sealed."""
        with suppress(StorageError):
            self._key_value.note(_announced(scope), announcement.request.id, to_bytes(announcement))

    def announced(self, scope: str) -> list[Announcement]:
        """Return what is announced, the oldest request first. Nothing rests on a note: one that is damaged goes."""
        found: list[Announcement] = []
        for entry in self._key_value.notes(_announced(scope)):
            try:
                found.append(from_bytes(Announcement, entry.value, f"request {entry.key}"))
            except DamageError:
                self.withdraw(scope, [entry.key])
        return sorted(found, key=lambda waiting: (waiting.request.created_at, waiting.request.id))

    def withdraw(self, scope: str, requests: Collection[str]) -> None:
        """Take announcements away; fine where there are none, or where some stay: who seals next cleans up."""
        with suppress(StorageError):
            self._key_value.forget(_announced(scope), requests)

    def _create(self, partition: str, key: str, value: bytes) -> None:
        """Write a record where there is none; durable on return, this one or the one that is there."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            outcome = self._key_value.set_if(partition, key, value, ABSENT)
            settled = settle(self._key_value, partition, key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done) or settled.current is not None:
                return
        raise LimitError(f"{key}: {CONDITIONAL_WRITE_TRIES_MAX} writes in a row were lost; try again.")

    # Answers

    def record_answer(self, scope: str, answer: Answer) -> None:
        """Keep the answer to a request for who asks later; durable on return."""
        recorded = Recorded(scope, answer, self.epoch().number)
        self._create(_ANSWERS, _asked(scope, answer.request), to_bytes(recorded))

    def answer(self, scope: str, request: str) -> Answer | None:
        """Return the answer to a request, None where none is recorded."""
        entry = self._key_value.get(_ANSWERS, _asked(scope, request))
        return None if entry is None else _recorded(entry).answer

    def forget_answers(self, is_over: Callable[[Recorded], bool]) -> None:
        """Delete recorded answers that nobody will ask for any more. Those that are damaged stay, for `verify`."""
        with suppress(DamageError):
            for entry in self._key_value.scan(_ANSWERS):
                with suppress(DamageError):
                    if is_over(_recorded(entry)):
                        self._key_value.delete_if(_ANSWERS, entry.key, entry.version)

    # Staged entries

    def stage(self, token: str, path: str, named: Reference | None) -> None:
        """Stage one entry under a token; None stages its removal.

        Conditionally, so that an earlier write whose reply was lost cannot land late, on top of this one. What was
        staged there stays below, for where the file of this one goes before it is acknowledged.
        """
        expected: Expected = ABSENT
        earlier: Layers = ()
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            value = encode(_Staged(stacked((named, *earlier))))
            outcome = self._key_value.set_if(_staged(token), path, value, expected)
            settled = settle(self._key_value, _staged(token), path, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return
            expected = ABSENT if settled.current is None else settled.current.version
            earlier = () if settled.current is None else staged_layers(settled.current)
        raise LimitError(
            f"{path}: {CONDITIONAL_WRITE_TRIES_MAX} others in a row staged it, too. Nothing was staged; try again."
        )

    def staged(self, token: str, start: str = "", stop: str | None = None) -> Changes:
        """Return what is staged under a token, in order of path."""
        return tuple((path, layers[0]) for path, layers in self.layers(token, start, stop))

    def layers(self, token: str, start: str = "", stop: str | None = None) -> Staged:
        """Return the same with what each entry stands on: what was staged at its path before, the newest first."""
        if not token:
            return ()
        found = self._key_value.scan(_staged(token), start, stop)
        return tuple((entry.key, staged_layers(entry)) for entry in found)

    def restage(self, token: str, to: str) -> list[Entry]:
        """Stage what is staged under one token under another, below what that has; return the entries that are new."""
        laid = [self._lay_below(_staged(to), entry) for entry in self._key_value.scan(_staged(token))]
        return [entry for entry in laid if entry is not None]

    def _lay_below(self, partition: str, carried: Entry) -> Entry | None:
        expected: Expected = ABSENT
        value = carried.value  # as it is, even where it cannot be read
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            outcome = self._key_value.set_if(partition, carried.key, value, expected)
            settled = settle(self._key_value, partition, carried.key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return Entry(carried.key, value, settled.version) if expected is ABSENT else None
            expected, value = ABSENT, carried.value
            if settled.current is not None:
                expected, value = settled.current.version, _above(settled.current, carried)
                if value == settled.current.value:
                    return None
        raise LimitError(
            f"{carried.key}: {CONDITIONAL_WRITE_TRIES_MAX} others in a row staged it, too; try again later."
        )

    def unstage(self, token: str, entries: Collection[Entry] | None = None) -> None:
        """Delete what is staged under a token that no branch names any more; or some entries, as they were seen."""
        if entries is None:
            entries = self._key_value.scan(_staged(token)) if token else ()
        for entry in entries:
            self._key_value.delete_if(_staged(token), entry.key, entry.version)


class _Staged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    named: Annotated[Layers, msgspec.Meta(min_length=1)]
    version: int = FORMAT_VERSION


def staged_layers(entry: Entry) -> Layers:
    """Return what the record of a staged entry names, the newest first. Raises DamageError."""
    return decode(_Staged, entry.value, f"the staged entry {entry.key}", FORMAT_VERSION).named


def _above(entry: Entry, carried: Entry) -> bytes:
    """Return a staged entry with another one laid below; as it is where it needs none, or one cannot be read."""
    with suppress(DamageError):
        layers = staged_layers(entry)
        wanted = stacked((*layers, *staged_layers(carried)))
        return entry.value if len(wanted) == len(layers) else encode(_Staged(wanted))
    return entry.value


def _branch_at(branch: str, entry: Entry | None) -> BranchAt:
    if entry is None:
        return BranchAt(Branch(), ABSENT)
    record = _branch(branch, entry)
    return BranchAt(record, entry.version) if record.claimed == CERTAIN else BranchAt(Branch(), ABSENT)


def _branch(branch: str, entry: Entry) -> Branch:
    return from_bytes(Branch, entry.value, f"branch {branch}")


def _announced(scope: str) -> str:
    return f"requests/{scope}"


def _asked(scope: str, request: str) -> str:
    return content_id(f"{scope}\0{request}".encode())


def _recorded(entry: Entry) -> Recorded:
    return from_bytes(Recorded, entry.value, f"the answer {entry.key}")


def _staged(token: str) -> str:
    return f"staged/{token}"
