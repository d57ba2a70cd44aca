"""Records in the key-value store: branches, announced requests, recorded answers, staged entries.

All staged entries share one partition; the key is a token and the path. The branch record names its token. Garbage
collection therefore finds every token with entries, and deletes entries whose token no branch names any more. This is
safe: a token is new when a branch first names it, no branch names it again after releasing it, and a writer stages only
under a token that it read in a branch record.

`BranchReader` shares reads of a branch record among all threads of a process: one thread reads, the others wait and
use its result. Otherwise a thousand waiting threads would read the record a thousand times and slow down the thread
that writes it. A thread that writes a branch wakes the waiting ones, so polling is needed only for other processes'
writes.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from tracelake._errors import ContentionError, DamageError, IndeterminateError, StorageError
from tracelake.formats import decode, encode
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import ABSENT, Done, Entry, Expected, Indeterminate, KeyValueStore, settle
from tracelake.storage.ports import create_record, encode_text, whole_of
from tracelake.versions import model

_DAMAGED_ENTRIES_TOLD_MAX: Final = 3
"""Unreadable staged entries in one message."""
STAGED_LAYERS_MAX: Final = 4
"""Files staged in turn at one path and token that are kept in case a newer one is gone."""

STAGED: Final = "staged"
_UNREADABLE: Final = b""
"""Value that replaces an entry whose bytes are unreadable: the copy stays damaged and is still reported by name."""

Layers: TypeAlias = tuple[model.Reference | None, ...]
Staged: TypeAlias = tuple[tuple[str, Layers], ...]


@dataclass(frozen=True, slots=True)
class Under:
    """The entries staged under one token, and the errors of unreadable ones."""

    readable: dict[str, Layers] = field(default_factory=dict)
    """Layers of each readable entry by path, in order: the entry and those staged there before it, newest first."""
    damaged: dict[str, DamageError] = field(default_factory=dict)
    """Errors of unreadable entries by path. Of a long path it may contain only the beginning."""

    def check(self) -> None:
        """Raise DamageError, naming the entries, if some are unreadable."""
        if self.damaged:
            raise damage_of(self.damaged)


def damage_of(damaged: dict[str, DamageError]) -> DamageError:
    """Return one DamageError that names all unreadable staged entries."""
    paths = ", ".join(islice(sorted(damaged), _DAMAGED_ENTRIES_TOLD_MAX))
    more = f" and {remaining} more" if (remaining := len(damaged) - _DAMAGED_ENTRIES_TOLD_MAX) > 0 else ""
    return DamageError(
        f"the staged entry {paths}{more} cannot be read. `tracelake discard PATH` removes only it; then stage "
        f"it again. ({next(iter(damaged.values()))})"
    )


def stacked(all_layers: Layers) -> Layers:
    """Return the layers of an entry (its newest staged version and the older ones below) without duplicates, down to
    the oldest that may still be needed."""
    layers: list[model.Reference | None] = []
    for layer in all_layers:
        if not any(layer == other and _epoch(layer) == _epoch(other) for other in layers):
            layers.append(layer)
        if not isinstance(layer, model.FileAt) or len(layers) == STAGED_LAYERS_MAX:
            break  # Only files can disappear, so no lower layer is needed.
    return tuple(layers)


def _epoch(reference: model.Reference | None) -> int:
    return reference.epoch if isinstance(reference, model.FileAt) else 0


class StagedEntries:
    """The part of `BranchRecords` that reads and writes staged entries."""

    _key_value: KeyValueStore

    def stage(self, token: str, path: str, reference: model.Reference | None) -> None:
        """Stage one entry under a token; None stages its removal.

        The write is conditional, so that an earlier write whose reply was lost cannot overwrite this one later. The
        previous entry is kept below the new one, because the new entry's file may be collected before the write is
        acknowledged. A damaged entry is replaced.
        """
        key = _key(token, path)
        expected: Expected = ABSENT
        earlier: Layers = ()
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            value = encode(_StagedEntry(stacked((reference, *earlier))))
            outcome = self._key_value.set_if(STAGED, key, value, expected)
            settled = settle(self._key_value, STAGED, key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return
            expected, earlier = ABSENT, ()
            if settled.current is not None:
                expected = settled.current.version
                with suppress(DamageError):
                    earlier = staged_layers(settled.current)
        raise _outrun(path)

    def staged(self, token: str, start: str = "", stop: str | None = None) -> model.PathChanges:
        """Return the entries staged under a token, in order of path. Raises DamageError if some are unreadable."""
        return tuple((path, layers[0]) for path, layers in self.layers(token, start, stop))

    def layers(self, token: str, start: str = "", stop: str | None = None) -> Staged:
        """Return the entries under a token with all their layers. Raises DamageError if some are unreadable."""
        under = self.under(token, start, stop)
        under.check()
        return tuple(under.readable.items())

    def under(self, token: str, start: str = "", stop: str | None = None) -> Under:
        """Return the layers of the entries staged under a token, and the errors of unreadable ones."""
        under = Under()
        for path, entry in self._entries(token, under.damaged, start, stop):
            try:
                under.readable[path] = staged_layers(entry)
            except DamageError as error:
                under.damaged[path] = error
        return under

    def has_staged(self, token: str) -> bool:
        """Return whether any entry is staged under a token, even an unreadable one."""
        damaged: dict[str, DamageError] = {}
        return bool(self._entries(token, damaged) or damaged)

    def restage(self, token: str, to: str) -> list[Entry]:
        """Copy the entries staged under one token to another, below entries that it already has; return the entries
        that the other token did not have.

        Damaged entries are copied too, so that they are still reported by name.
        """
        damaged: dict[str, DamageError] = {}
        entries = [Entry(_key(to, path), entry.value, "") for path, entry in self._entries(token, damaged)]
        entries += [Entry(_key(to, path), _UNREADABLE, "") for path in damaged]
        laid = [self._lay_below(carried) for carried in entries]
        return [entry for entry in laid if entry is not None]

    def _lay_below(self, carried: Entry) -> Entry | None:
        expected: Expected = ABSENT
        value = carried.value  # Copied even if it is unreadable.
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            outcome = self._key_value.set_if(STAGED, carried.key, value, expected)
            settled = settle(self._key_value, STAGED, carried.key, outcome, is_mine=lambda _: False)
            if isinstance(settled, Done):
                return Entry(carried.key, value, settled.version) if expected is ABSENT else None
            expected, value = ABSENT, carried.value
            if settled.current is not None:
                expected, value = settled.current.version, _above(settled.current, carried)
                if value == settled.current.value:
                    return None
        raise _outrun(carried.key)

    def take_away(self, entries: Collection[Entry]) -> None:
        """Delete these entries, except those that changed since they were read."""
        for entry in entries:
            self._key_value.delete_if(STAGED, entry.key, entry.version)

    def forget(self, token: str, path: str) -> bool:
        """Delete the entry at a path under a token, even a damaged one; return whether one existed."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._key_value.get(STAGED, key := _key(token, path))
            if entry is None:
                return False
            outcome = self._key_value.delete_if(STAGED, key, entry.version)
            if isinstance(settle(self._key_value, STAGED, key, outcome, is_mine=lambda _: False), Done):
                return True
        raise _outrun(path)

    def unstage(self, token: str) -> None:
        """Delete all entries under a token that no branch names any more."""
        if token:
            self._key_value.erase(STAGED, _key(token, ""))

    def tokens(self) -> set[str]:
        """Return the tokens that have staged entries."""
        damaged: list[str] = []
        entries = whole_of(self._key_value.scan, STAGED, lambda key, _: damaged.append(key))
        return {token_of(key) for key in (*damaged, *(entry.key for entry in entries))}

    def _entries(
        self, token: str, damaged: dict[str, DamageError], start: str = "", stop: str | None = None
    ) -> list[tuple[str, Entry]]:
        """Return the entries under a token by path; add those that the store cannot read to `damaged`."""
        if not token:
            return []
        beginning, end = _key(token, ""), f"{token}0"  # `0` is the character after `/`.

        def note(key: str, error: DamageError) -> None:
            damaged[key.removeprefix(beginning)] = error

        entries = whole_of(
            lambda partition: self._key_value.scan(
                partition, beginning + start, end if stop is None else beginning + stop
            ),
            STAGED,
            note,
        )
        return [(entry.key.removeprefix(beginning), entry) for entry in entries]


class _StagedEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    named: Annotated[Layers, msgspec.Meta(min_length=1)]
    format_version: int = model.FORMAT_VERSION


def staged_layers(entry: Entry) -> Layers:
    """Return the layers in a staged entry's record, newest first. Raises DamageError if the record does not decode."""
    return decode(
        _StagedEntry, entry.value, f"the staged entry {path_in(entry.key)}", model.FORMAT_VERSION
    ).named


def token_of(key: str) -> str:
    """Return the token in a staged entry's key."""
    return key.partition("/")[0]


def path_in(key: str) -> str:
    """Return the path in a staged entry's key."""
    return key.partition("/")[2]


def _key(token: str, path: str) -> str:
    return f"{token}/{path}"


def _above(entry: Entry, carried: Entry) -> bytes:
    """Return the record of a staged entry with the layers of `carried` added below its own; unchanged if they add
    nothing or a record is unreadable."""
    with suppress(DamageError):
        layers = staged_layers(entry)
        wanted = stacked((*layers, *staged_layers(carried)))
        return entry.value if len(wanted) == len(layers) else encode(_StagedEntry(wanted))
    return entry.value


def _outrun(path: str) -> ContentionError:
    return ContentionError(
        f"{path}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row lost to others that staged "
        "it. Try again later."
    )


BRANCHES: Final = "branches"
TAGS: Final = "tags"
REQUESTS: Final = "requests"
ANSWERS: Final = "answers"
COLLECTOR: Final = "collector"
_EPOCH: Final = "epoch"
MAIN: Final = "main"
"""The branch that always exists, and that pipelines commit to."""


def new_token() -> str:
    """Return a new, unique token for staged entries."""
    return uuid.uuid4().hex


def scope(branch: str, record: model.BranchRecord) -> str:
    """Return the key under which the commit requests of a branch are stored: its name and id, or only the name if the
    record has no id.

    Because of the id, a new branch does not find requests to a deleted branch of the same name.
    """
    return f"{branch}:{record.id}" if record.id else branch


@dataclass(frozen=True, slots=True)
class BranchSnapshot:
    """A branch record as it was read, and the version for a conditional write."""

    record: model.BranchRecord
    version: Expected

    @property
    def is_absent(self) -> bool:
        """Return whether no record existed."""
        return self.version is ABSENT


class BranchRecords(StagedEntries):
    """Reads and writes branch records. Holds no state, so any number of processes can use the same store."""

    def __init__(self, key_value: KeyValueStore, has_commits: Callable[[], bool] = lambda: False) -> None:
        """Use the records of a store. If `main` is absent, `has_commits` decides whether it ever existed.

        The record of `main` is written before the first commit is built, and never deleted.
        """
        self._key_value = key_value
        self._has_commits = has_commits

    def read(self, branch: str, cached: BranchSnapshot | None = None) -> BranchSnapshot:
        """Return a branch, with an empty record if it does not exist; `cached` itself if it has not changed.

        Raises DamageError if `main` is lost.
        """
        entry = self._key_value.get(BRANCHES, branch)
        if cached is not None and entry is not None and entry.version == cached.version:
            return cached
        return self._at(branch, entry)

    def all(self) -> dict[str, BranchSnapshot]:
        """Return all branches by name. Raises DamageError if `main` is lost."""
        branches = {entry.key: _branch_at(entry.key, entry) for entry in self._key_value.scan(BRANCHES)}
        if MAIN not in branches:
            self._check_never_there()
        return {name: at for name, at in branches.items() if not at.is_absent}

    def swap(
        self,
        branch: str,
        at: BranchSnapshot,
        record: model.BranchRecord,
        is_mine: Callable[[model.BranchRecord], bool],
    ) -> tuple[bool, BranchSnapshot]:
        """Replace the record if it is still as in `at`; return whether ours is stored, and the current snapshot.

        After a lost reply, `is_mine` decides from the current record whether our write succeeded.
        """
        value = model.to_bytes(record)
        outcome = self._key_value.set_if(BRANCHES, branch, value, at.version)
        settled = settle(
            self._key_value,
            BRANCHES,
            branch,
            outcome,
            is_mine=lambda entry: is_mine(_branch_at(branch, entry).record),
        )
        if isinstance(settled, Done):
            # After a lost reply, another process may have made an equivalent write; return the stored record,
            # not ours.
            return True, BranchSnapshot(record, settled.version) if settled is outcome else self._written(
                branch
            )
        try:
            return False, self._at(branch, settled.current)
        except StorageError as error:
            if isinstance(outcome, Indeterminate):  # the write may still succeed
                raise _not_read_back(branch, error) from error
            raise

    def _written(self, branch: str) -> BranchSnapshot:
        """Read a branch after our write. If the read fails, raises IndeterminateError, because the write may be
        stored."""
        try:
            return self.read(branch)
        except StorageError as error:
            raise _not_read_back(branch, error) from error

    def delete(self, branch: str, at: BranchSnapshot) -> bool:
        """Delete a branch if it is still as in `at`; return False if it has changed."""
        assert isinstance(at.version, str), "a branch that is not there cannot be deleted"
        outcome = self._key_value.delete_if(BRANCHES, branch, at.version)
        settled = settle(self._key_value, BRANCHES, branch, outcome, is_mine=lambda _: False)
        return isinstance(settled, Done) or settled.current is None

    def _at(self, branch: str, entry: Entry | None) -> BranchSnapshot:
        if entry is None and branch == MAIN:
            self._check_never_there()
        return _branch_at(branch, entry)

    def _check_never_there(self) -> None:
        """Raise DamageError if `main` is lost: otherwise the lake would start a second, empty history."""
        # Read again, because `main` may have been created between our read and the first commit.
        if self._has_commits() and self._key_value.get(BRANCHES, MAIN) is None:
            raise DamageError(
                "the record of branch main is missing, although commits exist. Restore the metadata from "
                "a backup."
            )

    # Garbage collection

    def epoch(self) -> model.Epoch:
        """Return the newest epoch."""
        return self._epoch()[0]

    def advance(self, change: Callable[[model.Epoch], model.Epoch]) -> model.Epoch:
        """Apply a change to the newest epoch, store the result, and return it. Raises ContentionError after too many
        lost races."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            epoch, version = self._epoch()
            if (wanted := change(epoch)) == epoch:
                return epoch
            if self._swap_epoch(wanted, version):
                return wanted
        raise _epoch_busy()

    def tell_of_name(self) -> None:
        """Make concurrent scans of all names start again, and pending expiries fail. Call it after claiming a name,
        before the commit's reachability is checked.

        A scan might otherwise miss both the new name and an old one of the same commit that is deleted just afterwards.
        If another process changes the record first, the call has nothing to do: a scan that began before that change
        starts again, and a later one sees the claim.
        """
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            epoch, version = self._epoch()
            wanted = replace(epoch, given=uuid.uuid4().hex)
            if self._swap_epoch(wanted, version) or self._epoch()[1] != version:
                return
        raise _epoch_busy()

    def swap_epoch(self, before: model.Epoch, after: model.Epoch) -> bool:
        """Store a new garbage collection epoch, and return True, if the stored one still equals `before`.

        Otherwise store nothing and return False: a client created a branch or tag, or another garbage collector stored
        an epoch. The caller must then list all branches and tags again before it deletes.
        """
        epoch, version = self._epoch()
        return epoch == before and self._swap_epoch(after, version)

    def _swap_epoch(self, wanted: model.Epoch, version: Expected) -> bool:
        value = model.to_bytes(wanted)
        outcome = self._key_value.set_if(COLLECTOR, _EPOCH, value, version)
        settled = settle(
            self._key_value, COLLECTOR, _EPOCH, outcome, is_mine=lambda entry: entry.value == value
        )
        return isinstance(settled, Done)

    def tags(self) -> dict[str, str]:
        """Return the commit of each tag, by name."""
        return {name: tag.commit for name, tag in self._tags().items() if tag.claimed == model.CERTAIN}

    def referenced_commits(self) -> set[str]:
        """Return the commits of all branches, tags and name claims."""
        heads = {_branch(entry.key, entry).head for entry in self._key_value.scan(BRANCHES)}
        return (heads | {tag.commit for tag in self._tags().values()}) - {""}

    def _tags(self) -> dict[str, model.Tag]:
        return {
            entry.key: model.from_bytes(model.Tag, entry.value, f"tag {entry.key}")
            for entry in self._key_value.scan(TAGS)
        }

    def _epoch(self) -> tuple[model.Epoch, Expected]:
        entry = self._key_value.get(COLLECTOR, _EPOCH)
        if entry is None:
            return model.Epoch(), ABSENT
        return model.from_bytes(model.Epoch, entry.value, "the epoch of garbage collection"), entry.version

    # Announced requests

    def announce(self, scope: str, announcement: model.Announcement) -> None:
        """Store a request where the next committer that seals finds it. Failures are ignored: the request's own
        committer notices if it is not sealed."""
        with suppress(StorageError):
            self._key_value.note(
                REQUESTS, _announced(scope, announcement.request.id), model.to_bytes(announcement)
            )

    def announced(self, scope: str) -> list[model.Announcement]:
        """Return the announced requests, oldest first. Deletes damaged announcements, because no result depends on
        one."""
        announcements: list[model.Announcement] = []
        damaged: list[str] = []
        read = partial(self._key_value.notes, beginning=_announced(scope))
        for entry in whole_of(read, REQUESTS, lambda key, _: damaged.append(key)):
            try:
                announcements.append(
                    model.from_bytes(model.Announcement, entry.value, f"request {entry.key}")
                )
            except DamageError:
                damaged.append(entry.key)
        self._forget(damaged)
        return sorted(announcements, key=lambda waiting: (waiting.request.created_at, waiting.request.id))

    def withdraw(self, scope: str, requests: Collection[str]) -> None:
        """Delete announcements, if they exist. Ignore failures, because the next committer that seals cleans up."""
        self._forget([_announced(scope, request) for request in requests])

    def withdraw_all(self, scope: str) -> None:
        """Delete all announcements on a deleted branch, because no committer will seal them."""
        with suppress(StorageError):
            self.withdraw(scope, [waiting.request.id for waiting in self.announced(scope)])

    def forget_requests(self, scopes: Callable[[], Iterable[str]]) -> None:
        """Delete announcements on branches that do not exist. `scopes` is called after the announcements are read.

        This is safe because a committer reads the branch record before it announces, and a deleted scope never
        returns.
        """
        keys: list[str] = []
        with suppress(StorageError):
            entries = whole_of(self._key_value.notes, REQUESTS, lambda key, _: keys.append(key))
            keys += [entry.key for entry in entries]
        here = {_announced(scope) for scope in scopes()}
        self._forget([key for key in keys if key[: key.find("/") + 1] not in here])

    def _forget(self, keys: Collection[str]) -> None:
        if keys:
            with suppress(StorageError):
                self._key_value.forget(REQUESTS, keys)

    # Answers

    def record_answer(self, scope: str, answer: model.Answer) -> None:
        """Keep the answer to a request for later callers; durable on return."""
        recorded = model.OldAnswer(scope, answer, self.epoch().number)
        create_record(self._key_value, ANSWERS, _request_key(scope, answer.request), model.to_bytes(recorded))

    def answer(self, scope: str, request: str) -> model.Answer | None:
        """Return the recorded answer to a request, or None."""
        entry = self._key_value.get(ANSWERS, _request_key(scope, request))
        return None if entry is None else _recorded(entry).answer

    def forget_answers(self, is_over: Callable[[model.OldAnswer], bool]) -> None:
        """Delete recorded answers that are no longer needed. Damaged ones stay, so that `verify` finds them."""
        with suppress(DamageError):
            for entry in self._key_value.scan(ANSWERS):
                with suppress(DamageError):
                    if is_over(_recorded(entry)):
                        self._key_value.delete_if(ANSWERS, entry.key, entry.version)


def _epoch_busy() -> ContentionError:
    return ContentionError(
        f"the epoch of garbage collection changed {CONDITIONAL_WRITE_TRIES_MAX} times in a row. Nothing "
        "was changed; try again later."
    )


def _not_read_back(branch: str, error: StorageError) -> IndeterminateError:
    return IndeterminateError(f"branch {branch} was written but cannot be read back: {error}")


def _branch_at(branch: str, entry: Entry | None) -> BranchSnapshot:
    if entry is None:
        return BranchSnapshot(model.BranchRecord(), ABSENT)
    record = _branch(branch, entry)
    return (
        BranchSnapshot(record, entry.version)
        if record.claimed == model.CERTAIN
        else BranchSnapshot(model.BranchRecord(), ABSENT)
    )


def _branch(branch: str, entry: Entry) -> model.BranchRecord:
    return model.from_bytes(model.BranchRecord, entry.value, f"branch {branch}")


def _announced(scope: str, request: str | None = None) -> str:
    """Return the key of an announcement, or the key prefix of a branch's announcements.

    It contains 128 bits of each hash, so that object names have a fixed length whatever the names are.
    """
    return (
        model.content_id(scope.encode())[:32]
        + "/"
        + ("" if request is None else model.content_id(request.encode())[:32])
    )


def _request_key(scope: str, request: str) -> str:
    return model.content_id(scope.encode() + b"\0" + encode_text("the id of a request", request))


def _recorded(entry: Entry) -> model.OldAnswer:
    return model.from_bytes(model.OldAnswer, entry.value, f"the answer {entry.key}")


@dataclass(slots=True)
class _Rounds:
    """Reads of one branch, one at a time. A thread waits at most for the current read and the next."""

    started: int = 0
    ended: int = 0
    """Number of the newest successful read."""
    is_reading: bool = False
    at: BranchSnapshot | None = None


class BranchReader:
    """Shared reads of branches: one thread reads at a time."""

    def __init__(self, records: BranchRecords) -> None:
        """Read branches from these records."""
        self._records = records
        self._reading = threading.Condition()
        self._rounds: dict[str, _Rounds] = {}
        self._writing = threading.Condition()
        self._writes: Counter[str] = Counter()
        self._threads = 0
        self._looked = threading.local()
        """Per thread: the branch that it last read, and the number of writes to that branch at the time."""

    def read(self, branch: str) -> BranchSnapshot:
        """Return the branch as it was at some moment after the call began."""
        self._looked.at = branch, self._writes[branch]
        with self._reading:
            rounds = self._rounds.setdefault(branch, _Rounds())
            round_number = rounds.started + 1  # A read that is already running may be older than this call.
            self._reading.wait_for(lambda: rounds.ended >= round_number or not rounds.is_reading)
            if rounds.ended >= round_number:
                assert rounds.at is not None, "a round that ended has read something"
                return rounds.at
            rounds.is_reading = True
            rounds.started += 1
        try:
            at = self._records.read(branch, rounds.at)
            rounds.at, rounds.ended = at, rounds.started
            return at
        finally:
            with self._reading:
                rounds.is_reading = False
                self._reading.notify_all()

    def queue(self, branch: str) -> BranchSnapshot:
        """Read the branch for this thread alone, outside the shared reads, and return it.

        The store then serves waiting threads in order of arrival. If a shared read released all threads at once, the
        last to wait for a stalled server could become the first.
        """
        rounds = self._rounds.get(branch)
        return self._records.read(branch, rounds.at if rounds else None)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Count this thread, inside the `with` block, among the threads that pause and wake one another."""
        with self._writing:
            self._threads += 1
        try:
            yield
        finally:
            with self._writing:
                self._threads -= 1

    def pause(self, branch: str, seconds: float) -> None:
        """Wait for some seconds, or until another thread writes the branch. Returns at once if one has written it since
        this thread's last read."""
        if self._threads < 2:
            time.sleep(seconds)  # No other thread can wake us, and simulated time passes only in `sleep`.
            return
        looked, before = getattr(self._looked, "at", ("", 0))
        if looked != branch:
            return  # A thread that has not read the branch yet need not wait.
        with self._writing:
            self._writing.wait_for(lambda: self._writes[branch] != before, seconds)

    def wake(self, branch: str) -> None:
        """Wake all threads that wait for a branch, because it was written."""
        with self._writing:
            self._writes[branch] += 1
            self._writing.notify_all()
