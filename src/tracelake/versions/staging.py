"""Entries that are staged on a branch: written beside its record, under a token that the record names.

A commit of what is staged takes the token away and sets another. So a writer looks at the record before and after:
where the token is the same, the entry was there before the token was taken, and is in that commit (V5). And where the
epoch is one in which the entry's file may be published, garbage collection has yet to look, and finds the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from tracelake._errors import (
    ContentionError,
    DamageError,
    ExpiredError,
    LimitError,
    NotFoundError,
    RefNotFoundError,
)
from tracelake.limits import (
    CONDITIONAL_WRITE_TRIES_MAX,
    NAME_QUOTED_MAX_CHARS,
    STAGED_PATH_MAX_BYTES,
    STAGING_READ_TRIES_MAX,
)
from tracelake.storage.ports import check_path
from tracelake.versions.branch_store import (
    MAIN,
    BranchRecords,
    BranchSnapshot,
    Layers,
    Under,
    new_token,
    stacked,
)
from tracelake.versions.commits import Commits
from tracelake.versions.model import EPOCH_UNSET, BranchRecord, Change, FileAt, Reference, is_name, shown
from tracelake.versions.protocol import is_fresh, known_tokens, pending_tokens
from tracelake.versions.tree import ContentStore, file_path

FoundT = TypeVar("FoundT")


class Staging:
    """Writes and reads what is not committed yet."""

    def __init__(self, records: BranchRecords, commits: Commits, contents: ContentStore) -> None:
        self._records = records
        self._contents = contents
        self._commits = commits

    def stage(self, branch: str, entries: Mapping[str, Reference | None]) -> None:
        """Stage entries; they are in the next commit of what is staged, or a later one.

        Files of earlier epochs are written again. Raises ExpiredError where one is gone.
        """
        for path in entries:
            check_path(path)
            if len(path.encode()) > STAGED_PATH_MAX_BYTES:
                raise LimitError(
                    f"path {path[:NAME_QUOTED_MAX_CHARS]!r}… is longer than STAGED_PATH_MAX_BYTES = "
                    f"{STAGED_PATH_MAX_BYTES}; shorten it."
                )
        todo = list(entries.items())
        at_once, in_vain = max(1, len(todo)), 0
        while todo:
            if self._stage(branch, dict(todo[:at_once])):
                todo, in_vain = todo[at_once:], 0
                continue
            in_vain += 1
            if in_vain == CONDITIONAL_WRITE_TRIES_MAX:
                raise ContentionError(
                    f"branch {branch}: {CONDITIONAL_WRITE_TRIES_MAX} commits or garbage collections in a row came "
                    "between. Stage again; what was staged may be in one of the commits."
                )
            at_once = max(1, at_once // 2)  # who stages less at once is done before the next one comes

    def _stage(self, branch: str, entries: Mapping[str, Reference | None]) -> bool:
        """Stage entries; tell whether they are acknowledged."""
        at = self._with_token(branch).record
        token, fresh = at.staging, self._fresh(entries, at.epoch)
        for path, reference in fresh.items():
            self._records.stage(token, path, reference)
        now = self._records.read(branch).record
        if now.staging == token and all(is_fresh(reference, now.epoch) for reference in fresh.values()):
            return True
        if token not in known_tokens(now):  # what we wrote was late, and nobody will look for it
            self._records.unstage(token)
        return False

    def discard(self, branch: str) -> int:
        """Forget what is staged under the token that is there now; return how many entries.

        What is staged under a later token stays, even where the reply to a write of ours is lost.
        """
        at = read_branch(self._records, branch)
        token = at.record.staging
        if not token:
            return 0
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            record = replace(at.record, staging=new_token())
            _, at = self._records.swap(branch, at, record, is_mine=lambda _: False)
            if at.record.staging != token:
                break
        else:
            raise busy(branch)
        if token in known_tokens(at.record):  # a commit was faster, and needs the entries
            return 0
        under = self._records.under(token)
        self._records.unstage(token)
        return len(under.whole) + len(under.damaged)

    def discard_some(self, branch: str, paths: Collection[str]) -> None:
        """Forget what is staged under these paths, damaged or not. What a commit takes meanwhile may be in it.

        Raises NotFoundError, and forgets nothing, where nothing is staged under one.
        """
        there = {path for each in self.staged(branch) for path in each}
        for path in paths:
            if path not in there:
                raise NotFoundError(
                    f"nothing is staged under {shown(path)} on branch {branch}; `tracelake status` shows what is."
                )
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            token = read_branch(self._records, branch).record.staging
            for path in paths:
                self._records.forget(token, path)
            if self._records.read(branch).record.staging == token:
                return
        raise busy(branch)

    def staged(self, branch: str) -> tuple[dict[str, Reference | None], dict[str, DamageError]]:
        """Return what is staged and in no commit yet, that too which waits to be built, in order of path.

        And why other staged entries cannot be read.
        """
        standing = self._looked(branch, lambda record: _merged(self._waiting(record)))
        return {path: standing.whole[path][0] for path in sorted(standing.whole)}, standing.damaged

    def find(self, branch: str, paths: Sequence[str]) -> dict[str, Reference]:
        """Return what some paths name, with what is staged; of staged files that may be gone, those that are there."""

        def look(record: BranchRecord) -> dict[str, Reference | None]:
            committed = self._commits.find(record.head, paths) if record.head else {}
            standing = _merged(self._waiting(record))
            _check(standing, paths)
            return {**committed, **self._standing(record, standing.whole, paths)}

        references = self._looked(branch, look)
        return {path: reference for path, reference in references.items() if reference is not None}

    def keep(self, branch: str, paths: Collection[str]) -> None:
        """Stage anew what nobody may have been told of: staged files that may be gone, what a commit may have missed.

        Whoever found it there may rest on it then. Raises ExpiredError where a file has just gone.
        """

        def look(record: BranchRecord) -> dict[str, Reference | None]:
            waiting = self._waiting(record)
            late = {path for under in waiting[:-1] for path in under.whole}
            standing = _merged(waiting)
            _check(standing, paths)
            return {
                path: reference
                for path, reference in self._standing(record, standing.whole, paths).items()
                if path in late or not is_fresh(standing.whole[path][0], record.epoch)
            }

        doubtful = self._looked(branch, look)
        if doubtful:
            self.stage(branch, doubtful)

    def scan(self, branch: str, start: str = "", stop: str | None = None) -> dict[str, Reference]:
        """Return what the branch names, with what is staged, by path, in order; start <= path < stop.

        Looks at the record again afterwards, so that what it returns was there at one moment. Where commits keep
        coming between, it returns what it read last: a little old, and whole, for staged entries stay for some
        commits after their own. Raises ContentionError where they have gone even so.
        """
        return self._looked(branch, lambda record: self._through(record, start, stop))

    def _looked(self, branch: str, look: Callable[[BranchRecord], FoundT]) -> FoundT:
        """Look through a branch until its record is the same afterwards, or at least knows what was looked at."""
        for _ in range(STAGING_READ_TRIES_MAX):
            at = read_branch(self._records, branch)
            result = look(at.record)
            now = self._records.read(branch)
            if now.version == at.version:
                return result
        if pending_tokens(at.record) <= known_tokens(now.record):
            return result
        raise ContentionError(
            f"branch {branch}: {STAGING_READ_TRIES_MAX} times in a row, many commits came between. Read again, or "
            "read a commit."
        )

    def _through(self, record: BranchRecord, start: str, stop: str | None) -> dict[str, Reference]:
        committed = self._commits.entries(record.head, start, stop) if record.head else {}
        standing = _merged(self._waiting(record, start, stop, with_requests=True))
        standing.check()
        entries = {**committed, **self._standing(record, standing.whole, standing.whole)}
        return {path: reference for path in sorted(entries) if (reference := entries[path]) is not None}

    def _waiting(
        self, record: BranchRecord, start: str = "", stop: str | None = None, *, with_requests: bool = False
    ) -> list[Under]:
        """Return what is staged under each token, the oldest first; the last one is where entries are staged now.

        With requests, what those change that are sealed stands between.
        """
        waiting: list[Under] = []
        for sealed in record.sealed:
            if sealed.token:
                waiting.append(self._records.under(sealed.token, start, stop))
            if with_requests and isinstance(sealed.request.operation, Change):
                asked = sealed.request.operation.entries
                inside = (each for each in asked if each[0] >= start and (stop is None or each[0] < stop))
                waiting.append(Under({path: (reference,) for path, reference in inside}))
        return [*waiting, self._records.under(record.staging, start, stop)]

    def _standing(
        self, record: BranchRecord, layers: Mapping[str, Layers], paths: Iterable[str]
    ) -> dict[str, Reference | None]:
        """Return of each path the first layer that is there: one below it may have been acknowledged."""
        standing: dict[str, Reference | None] = {}
        waiting = {path: layers[path] for path in paths if path in layers}
        while waiting:
            old = [
                top
                for top, *_ in waiting.values()
                if isinstance(top, FileAt) and not is_fresh(top, record.epoch)
            ]
            there = self._contents.present(old)
            below: dict[str, Layers] = {}
            for path, (top, *earlier) in waiting.items():
                if not isinstance(top, FileAt) or is_fresh(top, record.epoch) or file_path(top) in there:
                    standing[path] = top
                elif earlier:
                    below[path] = tuple(earlier)
            waiting = below
        return standing

    def _fresh(self, entries: Mapping[str, Reference | None], epoch: int) -> dict[str, Reference | None]:
        """Return entries with files that may be published at an epoch: older ones are written again."""
        old = {
            path: reference
            for path, reference in entries.items()
            if isinstance(reference, FileAt) and not is_fresh(reference, epoch)
        }
        renewed = self._contents.renew(old.values(), epoch)
        for file in old.values():
            if file_path(file) not in renewed:
                raise ExpiredError(
                    f"{file_path(file)} is gone: garbage collection has been through twice since it was written. "
                    "Not all was staged; write it again, and stage it then."
                )
        return {**entries, **{path: renewed[file_path(file)] for path, file in old.items()}}

    def _with_token(self, branch: str) -> BranchSnapshot:
        """Return a branch that has a token to stage under, and an epoch."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, branch)
            if at.record.staging and at.record.epoch != EPOCH_UNSET:
                return at
            # The epoch is read after the branch: whoever begins one later finds the record, and changes it.
            epoch = self._records.epoch().number if at.record.epoch == EPOCH_UNSET else at.record.epoch
            record = replace(at.record, staging=at.record.staging or new_token(), epoch=epoch)
            self._records.swap(branch, at, record, is_mine=lambda there: bool(there.staging))
        raise busy(branch)


def _merged(waiting: Iterable[Under]) -> Under:
    """Return what is staged under several tokens, the oldest first, as if it were under one."""
    merged = Under()
    for each in waiting:
        for path, layers in each.whole.items():
            merged.whole[path] = stacked((*layers, *merged.whole.get(path, ())))
            merged.damaged.pop(path, None)
        for path, error in each.damaged.items():
            merged.whole.pop(path, None)
            merged.damaged[path] = error
    return merged


def _check(under: Under, paths: Collection[str]) -> None:
    """Raise DamageError where one of these staged entries cannot be read."""
    Under(damaged={path: error for path, error in under.damaged.items() if path in paths}).check()


def read_branch(records: BranchRecords, branch: str) -> BranchSnapshot:
    """Return a branch. Raises RefNotFoundError where there is none; `main` is there from the beginning."""
    at = records.read(branch) if is_name(branch) else None
    if at is None or (at.is_absent and branch != MAIN):
        raise RefNotFoundError(
            f"no branch {shown(branch)}; `tracelake branch list` shows those that there are."
        )
    return at


def busy(branch: str) -> ContentionError:
    """Return the error of who lost against others again and again."""
    return ContentionError(
        f"branch {branch}: {CONDITIONAL_WRITE_TRIES_MAX} others in a row were faster. Nothing was changed; try again."
    )
