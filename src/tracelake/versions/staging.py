"""Entries that are staged on a branch: written beside its record, under a token that the record names.

A commit of what is staged takes the token away and sets another. So a writer looks at the record before and after:
where the token is the same, the entry was there before the token was taken, and is in that commit (V5). And where the
epoch is one in which the entry's file may be published, garbage collection has yet to look, and finds the entry.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from tracelake._errors import ExpiredError, LimitError, RefNotFoundError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, STAGING_READ_TRIES_MAX
from tracelake.storage.names import check_path
from tracelake.versions.branches import MAIN, BranchAt, BranchRecords, new_token
from tracelake.versions.commits import Commits
from tracelake.versions.model import EPOCH_UNSET, Branch, Change, FileAt, Reference
from tracelake.versions.objects import Contents, file_path
from tracelake.versions.protocol import is_fresh, known_tokens, pending_tokens
from tracelake.versions.refs import is_name, shown


class Staging:
    """Writes and reads what is not committed yet."""

    def __init__(self, records: BranchRecords, commits: Commits, contents: Contents) -> None:
        self._records = records
        self._contents = contents
        self._commits = commits

    def stage(self, branch: str, entries: Mapping[str, Reference | None]) -> None:
        """Stage entries; they are in the next commit of what is staged, or a later one.

        Files of earlier epochs are written again. Raises ExpiredError where one is gone.
        """
        for path in entries:
            check_path(path)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = self._with_token(branch).record
            token, fresh = at.staging, self._fresh(entries, at.epoch)
            for path, named in fresh.items():
                self._records.stage(token, path, named)
            now = self._records.read(branch).record
            if now.staging == token and all(is_fresh(named, now.epoch) for named in fresh.values()):
                return
            if token not in known_tokens(now):  # what we wrote was late, and nobody will look for it
                self._records.unstage(token)
        raise LimitError(
            f"branch {branch}: {CONDITIONAL_WRITE_TRIES_MAX} commits in a row came between. Stage again; what "
            "was staged may be in one of them."
        )

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
        forgotten = len(self._records.staged(token))
        self._records.unstage(token)
        return forgotten

    def scan(self, branch: str, start: str = "", stop: str | None = None) -> dict[str, Reference]:
        """Return what the branch names, with what is staged, by path, in order; start <= path < stop.

        Looks at the record again afterwards, so that what it returns was there at one moment. Where commits keep
        coming between, it returns what it read last: a little old, and whole, for staged entries stay for some
        commits after their own. Raises LimitError where they have gone even so.
        """
        for _ in range(STAGING_READ_TRIES_MAX):
            at = read_branch(self._records, branch)
            found = self._through(at.record, start, stop)
            now = self._records.read(branch)
            if now.version == at.version:
                return found
        if pending_tokens(at.record) <= known_tokens(now.record):
            return found
        raise LimitError(
            f"branch {branch}: {STAGING_READ_TRIES_MAX} times in a row, many commits came between. Read again, or "
            "read a commit."
        )

    def _through(self, record: Branch, start: str, stop: str | None) -> dict[str, Reference]:
        entries: dict[str, Reference | None] = dict(
            self._commits.entries(record.head, start, stop) if record.head else {}
        )
        for sealed in record.sealed:
            if isinstance(sealed.request.operation, Change):
                entries.update(self._records.staged(sealed.token, start, stop))
                entries.update(
                    (path, named)
                    for path, named in sealed.request.operation.entries
                    if path >= start and (stop is None or path < stop)
                )
        entries.update(self._records.staged(record.staging, start, stop))
        return {path: named for path in sorted(entries) if (named := entries[path]) is not None}

    def _fresh(self, entries: Mapping[str, Reference | None], epoch: int) -> dict[str, Reference | None]:
        """Return entries with files that may be published at an epoch: older ones are written again."""
        old = {
            path: named
            for path, named in entries.items()
            if isinstance(named, FileAt) and not is_fresh(named, epoch)
        }
        renewed = self._contents.renew(old.values(), epoch)
        for file in old.values():
            if file_path(file) not in renewed:
                raise ExpiredError(
                    f"{file_path(file)} is gone: garbage collection has been through twice since it was written. "
                    "Not all was staged; write it again, and stage it then."
                )
        return {**entries, **{path: renewed[file_path(file)] for path, file in old.items()}}

    def _with_token(self, branch: str) -> BranchAt:
        """Return a branch that has a token to stage under, and an epoch."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, branch)
            if at.record.staging and at.record.epoch != EPOCH_UNSET:
                return at
            # The epoch is read after the branch: whoever begins one later finds the record, and changes it.
            epoch = self._records.epoch().number if at.record.epoch == EPOCH_UNSET else at.record.epoch
            record = replace(at.record, staging=at.record.staging or new_token(), epoch=epoch)
            self._records.swap(branch, at, record, is_mine=lambda found: bool(found.staging))
        raise busy(branch)


def read_branch(records: BranchRecords, branch: str) -> BranchAt:
    """Return a branch. Raises RefNotFoundError where there is none; `main` is there from the beginning."""
    at = records.read(branch) if is_name(branch) else None
    if at is None or (at.is_absent and branch != MAIN):
        raise RefNotFoundError(
            f"no branch {shown(branch)}; `tracelake branch list` shows those that there are."
        )
    return at


def busy(branch: str) -> LimitError:
    """Return the error of who lost against others again and again."""
    return LimitError(
        f"branch {branch}: {CONDITIONAL_WRITE_TRIES_MAX} others in a row were faster. Nothing was changed; try again."
    )
