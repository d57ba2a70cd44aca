"""Read access to commits: history, entries, differences, and the branches and tags that name commits.

`RefClaims` gives names to commits in three steps: write a claim, check that the commit is reachable, write the name.

A claim is the future record of the name plus the epoch of the claim. Only garbage collection treats it as a name.
Either it sees the claim, or it read the names earlier and the claimant sees the same state. If no name reaches the
commit then, none ever will. A conditional write turns the claim into the name. A process that wants the same name
deletes the claim, and so does garbage collection two epochs later. A killed claimant therefore leaves nothing, and a
slow one claims again.

Garbage collection reads names one by one, so a commit could move from one name to another unseen. Each claim is
therefore announced in the epoch record. If that record changes, garbage collection reads all names again. The
announcement precedes the check, so that garbage collection that did not see the claim cannot let the commit expire
afterwards (see `expiry`).

`Staging` writes and reads the staged entries of a branch. They are stored outside the branch record, under a token that
the record names.

Committing the staged entries replaces the token. A writer therefore reads the record before and after it writes an
entry. If the token is the same, the entry was written before a commit consumed the token, so the commit includes it
(V5). If the epoch still allows publishing the entry's file, garbage collection has yet to read the entries, and finds
this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from msgspec.structs import replace

from tracelake import _errors
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, NAME_QUOTED_MAX_CHARS, STAGED_PATH_MAX_BYTES
from tracelake.results import ExpiredCommits
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, settle
from tracelake.storage.ports import check_path
from tracelake.versions import branch_store, model
from tracelake.versions import tree as trees
from tracelake.versions.expiry import Ancestry, GapRecords
from tracelake.versions.protocol import Theirs, is_collectable, is_fresh, known_tokens, pending_tokens
from tracelake.versions.tree import ContentStore, Difference, ReadCommit, Tree, file_path, their_changes

NameT = TypeVar("NameT", model.BranchRecord, model.Tag)


class RefClaims:
    """Gives branch and tag names to commits, and deletes expired claims."""

    def __init__(
        self, key_value: KeyValueStore, records: branch_store.BranchRecords, reaches: Callable[[str], bool]
    ) -> None:
        """Keep names in these stores. `reaches` reports whether a branch or tag reaches a commit."""
        self._key_value = key_value
        self._records = records
        self._reaches = reaches

    def give(self, name: str, record: NameT, commit: str) -> bool:
        """Write the record of a branch or tag, which names a commit; return False if a branch or tag has the name
        already."""
        partition, other = (
            (branch_store.BRANCHES, branch_store.TAGS)
            if isinstance(record, model.BranchRecord)
            else (branch_store.TAGS, branch_store.BRANCHES)
        )
        value = model.to_bytes(record)
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            claim = replace(record, claimed=self._records.epoch().number)
            if not self._clear(partition, name):
                there = self._key_value.get(partition, name)
                return there is not None and there.value == value  # Our own write, which arrived late.
            outcome = self._key_value.set_if(partition, name, model.to_bytes(claim), ABSENT)
            claimed = settle(self._key_value, partition, name, outcome, is_mine=lambda _: False)
            if not isinstance(claimed, Done):
                continue
            is_free = self._clear(other, name)
            # Not later than the check: a collection that misses the claim must not expire the commit after it.
            self._records.tell_of_name()
            if not is_free or not self._reaches(commit):
                self._key_value.delete_if(partition, name, claimed.version)
                if not is_free:
                    return False
                raise _errors.RefNotFoundError(
                    f"no branch or tag reaches commit {commit[:12]} any more, so garbage collection may "
                    "delete it."
                )
            outcome = self._key_value.set_if(partition, name, value, claimed.version)
            is_mine = _is(value)
            if isinstance(settle(self._key_value, partition, name, outcome, is_mine=is_mine), Done):
                return True
        raise _errors.ContentionError(
            f"{name!r}: other calls were creating this name at the same time. Nothing was changed; try again."
        )

    def end_claims(self, newest: int) -> None:
        """Delete claims from two epochs ago. Their claimants were killed, or will claim again."""
        for partition in (branch_store.BRANCHES, branch_store.TAGS):
            for entry in self._key_value.scan(partition):
                claimed = _claimed(partition, entry)
                if claimed != model.CERTAIN and is_collectable(claimed, newest):
                    self._key_value.delete_if(partition, entry.key, entry.version)

    def _clear(self, partition: str, name: str) -> bool:
        """Delete a claim; return whether the name is free now."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._key_value.get(partition, name)
            if entry is None:
                return True
            if _claimed(partition, entry) == model.CERTAIN:
                return False
            outcome = self._key_value.delete_if(partition, name, entry.version)
            settle(self._key_value, partition, name, outcome, is_mine=lambda _: False)
        raise _errors.ContentionError(
            f"{name!r}: other calls were creating this name at the same time. Nothing was changed; try again."
        )


def _is(value: bytes) -> Callable[[Entry], bool]:
    return lambda entry: entry.value == value


def _claimed(partition: str, entry: Entry) -> int:
    if partition == branch_store.TAGS:
        return model.from_bytes(model.Tag, entry.value, f"tag {entry.key}").claimed
    return model.from_bytes(model.BranchRecord, entry.value, f"branch {entry.key}").claimed


class Commits:
    """Commits by id and by name."""

    def __init__(self, key_value: KeyValueStore, contents: ContentStore) -> None:
        self._key_value = key_value
        self._contents = contents
        self._records = branch_store.BranchRecords(key_value, contents.has_commits)
        self._names = RefClaims(key_value, self._records, self.reaches)
        self._gaps = GapRecords(key_value)

    # By id

    def commit(self, commit_id: str) -> model.Commit:
        """Return one commit."""
        with self._reading(commit_id):
            return self._contents.read(model.Commit, commit_id)

    @contextmanager
    def _reading(self, commit_id: str) -> Iterator[None]:
        """Raise CommitExpiredError instead of DamageError inside the `with` block if the commit has expired."""
        try:
            yield
        except _errors.DamageError:
            self.check_readable(commit_id)
            raise

    def check_readable(self, commit_id: str) -> None:
        """Raise CommitExpiredError if a commit that existed has expired."""
        if commit_id and not self._contents.find(commit_id, at_most=1) and self.expired() is not None:
            raise self._missing_commit(f"commit {commit_id[:12]} cannot be read: it does not exist")

    def ancestry(self, read: ReadCommit | None = None) -> Ancestry:
        """Return the commits for one walk through the history, which skips expired ones."""
        return Ancestry(read or partial(self._contents.read, model.Commit), self._records, self._gaps)

    def log(self, commit_id: str) -> Iterator[tuple[str, model.Commit]]:
        """Yield (id, commit) from this commit back to the oldest, along first parents, without expired commits. The
        parents are the nearest kept ones."""
        with self._reading(commit_id):
            yield from trees.log(commit_id, self.ancestry().commit)

    def expired(self) -> ExpiredCommits | None:
        """Return the number of expired commits and the oldest readable one; None if none has expired."""
        epoch = self._records.epoch()
        return ExpiredCommits(epoch.expired, epoch.oldest, epoch.oldest_at) if epoch.expired else None

    def entries(self, commit_id: str, start: str = "", stop: str | None = None) -> dict[str, model.Reference]:
        """Return the entries of a commit by path, in order; only paths with start <= path < stop."""
        with self._reading(commit_id):
            return dict(self.scan(commit_id, start, stop))

    def scan(
        self, commit_id: str, start: str = "", stop: str | None = None
    ) -> Iterator[tuple[str, model.Reference]]:
        """Yield the result of `entries` range by range, because the entries may not fit into memory."""
        tree = Tree(self._contents.read)
        return trees.scan(tree.ranges(commit_id), tree.range, start, stop)

    def count(self, commit_id: str, start: str, stop: str) -> int:
        """Return the number of entries with start <= path < stop, without reading most of them."""
        tree = Tree(self._contents.read)
        with self._reading(commit_id):
            return trees.count(tree.ranges(commit_id), tree.range, start, stop)

    def find(self, commit_id: str, paths: Sequence[str]) -> dict[str, model.Reference]:
        """Return the references at these paths in a commit; paths without one are omitted."""
        tree = Tree(self._contents.read)
        with self._reading(commit_id):
            return tree.find(tree.view(commit_id), sorted(paths))

    def diff(self, before: str, after: str) -> Iterator[Difference]:
        """Yield the entries that differ between two commits, in order. The time is proportional to their number."""
        tree = Tree(self._contents.read)
        with self._reading(before):
            ranges_before = tree.ranges(before)
        with self._reading(after):
            return trees.differences(ranges_before, tree.ranges(after), tree.range)

    def merge_bases(self, ours: str, theirs: str) -> tuple[str, ...]:
        """Return the best common ancestors of two commits: none, one, or several after criss-cross merges."""
        return trees.merge_bases((ours,), (theirs,), self.ancestry().commit)

    def parted(self, ours: str, theirs: str) -> list[Theirs]:
        """Return the changes of `theirs` since its merge base with `ours`, in order of path, each with the base's
        entry."""
        tree = Tree(self._contents.read)
        return their_changes(self.merge_bases(ours, theirs), theirs, tree, self.ancestry().commit)

    def transaction_of(self, commit_id: str) -> int:
        """Return the newest transaction that a commit contains, or -1."""
        return trees.newest_transaction(commit_id, self.commit)

    def commit_of(self, transaction: int, head: str) -> str:
        """Return the commit of a transaction, searching back from the commit `head`.

        Raises ExpiredError if the commit has expired, and DamageError if the history has no such commit.
        """
        try:
            return self.ancestry().commit_of(transaction, head)
        except _errors.ExpiredError as error:
            raise _errors.ExpiredError(
                f"the commit of transaction {transaction} has expired{self._oldest()}"
            ) from error

    # By name

    def head(self, branch: str = branch_store.MAIN) -> str | None:
        """Return the id of the branch's newest commit; None if the branch is empty or does not exist."""
        return self._records.read(branch).record.head or None

    def resolve(self, ref: str) -> str:
        """Return the commit id of a reference (see `model`). Raises RefNotFoundError if no commit matches."""
        wanted = model.parse(ref)
        commit_id = self._resolve_name(wanted.name)
        if not wanted.back and wanted.transaction is None and wanted.time is None:
            return commit_id
        for steps, (ancestor, commit) in enumerate(self.log(commit_id)):
            if wanted.transaction is not None:
                matches = commit.metadata.get(model.TRANSACTION) == str(wanted.transaction)
            elif wanted.time is not None:
                matches = datetime.fromisoformat(commit.created_at) <= wanted.time
            else:
                matches = steps == wanted.back
            if matches:
                return ancestor
        raise self._missing_commit(f"no commit {ref!r}: the history of {wanted.name} does not contain it")

    def _missing_commit(self, message: str) -> _errors.RefNotFoundError:
        """Return the error for a commit that does not exist, or has expired."""
        oldest = self._oldest()
        return (
            _errors.CommitExpiredError(f"{message}, or it has expired{oldest}")
            if oldest
            else _errors.RefNotFoundError(f"{message}.")
        )

    def _oldest(self) -> str:
        expired = self.expired()
        if expired is None or not expired.oldest:
            return "" if expired is None else "."
        return f"; the oldest commit that can be read is {expired.oldest[:12]} of {expired.oldest_at}."

    def _resolve_name(self, name: str) -> str:
        if (head := self.head(name)) is not None:
            return head
        if (tagged := self._tagged(name)) is not None:
            return tagged
        if model.COMMIT_ID.fullmatch(name):
            ids = [
                each for each in self._contents.find(name, at_most=2) if self.ancestry().nearest(each) == each
            ]
            if len(ids) == 1:
                return ids[0]
            if ids:
                raise _errors.RefNotFoundError(f"several commits begin with {name}; give more digits.")
        hint = (
            "the lake is empty; ingest traces first" if name == branch_store.MAIN else "see `tracelake log`"
        )
        missing = f"no branch, tag or commit {name!r}: {hint}"
        raise (
            self._missing_commit(missing)
            if model.COMMIT_ID.fullmatch(name)
            else _errors.RefNotFoundError(f"{missing}.")
        )

    def tags(self) -> dict[str, str]:
        """Return the commit id of each tag, by name."""
        return self._records.tags()

    def tag(self, name: str, commit_id: str) -> None:
        """Give a commit a permanent name. Repeating the call is harmless.

        Raises UsageError if the name is invalid or names a branch or another commit, and RefNotFoundError if no
        branch or tag leads to the commit.
        """
        model.check_name(name, "tag")
        if not self._records.read(name).is_absent or name == branch_store.MAIN:
            raise _errors.UsageError(f"{name!r} is a branch; choose another name for the tag.")
        if not self._names.give(name, model.Tag(commit_id), commit_id) and self._tagged(name) != commit_id:
            raise _errors.UsageError(
                f"tag {name!r} already names another commit or a branch; delete that first."
            )

    def reaches(self, commit_id: str) -> bool:
        """Return whether a branch or tag leads to a commit. If none does, none ever will again.

        Raises DamageError if none was found and a history is unreadable, because that history may contain the commit.
        """
        branches = (at.record.head for at in self._records.all().values())
        heads = dict.fromkeys([*branches, *self._records.tags().values()])
        if commit_id in heads:
            return True
        read = self.ancestry().commit
        damage: _errors.DamageError | None = None
        for head in heads:
            try:
                if trees.contains(head, commit_id, read):
                    return True
            except _errors.DamageError as error:
                damage = error
        if damage is not None:
            with self._reading(commit_id):
                raise damage
        return False

    def is_claimable(self, commit_id: str) -> bool:
        """Announce that a sealed request claims a commit, then return whether a branch or tag reaches it.

        The order matters: a collection that missed the request can then no longer let the commit expire.
        """
        self._records.tell_of_name()
        return self.reaches(commit_id)

    def delete_tag(self, name: str) -> None:
        """Delete a tag; its commit stays. Raises RefNotFoundError if the tag does not exist."""
        entry = self._key_value.get(branch_store.TAGS, name) if model.is_name(name) else None
        if entry is None or self._tagged(name) is None:
            raise _errors.RefNotFoundError(f"no tag {model.shown(name)}.")
        outcome = self._key_value.delete_if(branch_store.TAGS, name, entry.version)
        settle(self._key_value, branch_store.TAGS, name, outcome, is_mine=lambda _: False)

    def _tagged(self, name: str) -> str | None:
        entry = self._key_value.get(branch_store.TAGS, name)
        tag = None if entry is None else model.from_bytes(model.Tag, entry.value, f"tag {entry.key}")
        return None if tag is None or tag.claimed != model.CERTAIN else tag.commit


STAGING_READ_TRIES_MAX: Final = 10
"""Restarts of a read of staged changes because of a concurrent commit."""

FoundT = TypeVar("FoundT")


class Staging:
    """Writes and reads uncommitted entries."""

    def __init__(self, records: branch_store.BranchRecords, commits: Commits, contents: ContentStore) -> None:
        self._records = records
        self._contents = contents
        self._commits = commits

    def stage(self, branch: str, entries: Mapping[str, model.Reference | None]) -> None:
        """Stage entries for the next commit of staged entries, or the one after it.

        Files of expired epochs are copied into the current one. Raises ExpiredError if such a file no longer exists.
        """
        for path in entries:
            check_path(path)
            if len(path.encode()) > STAGED_PATH_MAX_BYTES:
                raise _errors.LimitError(
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
                raise _errors.ContentionError(
                    f"branch {branch}: {CONDITIONAL_WRITE_TRIES_MAX} commits or garbage collections in a row "
                    "interfered. Stage again; one of the commits may contain the entries."
                )
            at_once = max(1, at_once // 2)  # Smaller batches finish before the next commit comes between.

    def _stage(self, branch: str, entries: Mapping[str, model.Reference | None]) -> bool:
        """Stage entries under the branch's current token; return False if a commit or garbage collection interfered, so
        that the caller must stage again."""
        at = self._with_token(branch).record
        token, fresh = at.staging, self._fresh(entries, at.epoch)
        for path, reference in fresh.items():
            self._records.stage(token, path, reference)
        now = self._records.read(branch).record
        if now.staging == token and all(is_fresh(reference, now.epoch) for reference in fresh.values()):
            return True
        if token not in known_tokens(now):  # Our write was late, and no reader will look for it.
            self._records.unstage(token)
        return False

    def discard(self, branch: str) -> int:
        """Discard the staged entries of a branch; return their number.

        Entries staged concurrently under a later token stay, even if the reply to our own write is lost.
        """
        at = read_branch(self._records, branch)
        token = at.record.staging
        if not token:
            return 0
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            record = replace(at.record, staging=branch_store.new_token())
            _, at = self._records.swap(branch, at, record, is_mine=lambda _: False)
            if at.record.staging != token:
                break
        else:
            raise busy(branch)
        if token in known_tokens(at.record):  # A commit was faster, and needs the entries.
            return 0
        under = self._records.under(token)
        self._records.unstage(token)
        return len(under.readable) + len(under.damaged)

    def discard_some(self, branch: str, paths: Collection[str]) -> None:
        """Discard the entries at these paths, damaged or not. A concurrent commit may still contain them.

        Raises NotFoundError and discards nothing if nothing is staged at one of the paths.
        """
        there = {path for each in self.staged(branch) for path in each}
        for path in paths:
            if path not in there:
                raise _errors.NotFoundError(
                    f"nothing is staged under {model.shown(path)} on branch {branch}; `tracelake status` shows what is."
                )
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            token = read_branch(self._records, branch).record.staging
            for path in paths:
                self._records.forget(token, path)
            if self._records.read(branch).record.staging == token:
                return
        raise busy(branch)

    def staged(self, branch: str) -> tuple[dict[str, model.Reference | None], dict[str, _errors.DamageError]]:
        """Return the uncommitted entries in order of path, including those of sealed requests, and the errors of
        unreadable ones."""
        standing = self._looked(branch, lambda record: _merged(self._waiting(record)))
        return {path: standing.readable[path][0] for path in sorted(standing.readable)}, standing.damaged

    def find(self, branch: str, paths: Sequence[str]) -> dict[str, model.Reference]:
        """Return the references at some paths, including staged entries. A staged file that garbage collection may have
        deleted is returned only if it exists."""

        def look(record: model.BranchRecord) -> dict[str, model.Reference | None]:
            committed = self._commits.find(record.head, paths) if record.head else {}
            standing = _merged(self._waiting(record))
            _check(standing, paths)
            return {**committed, **self._standing(record, standing.readable, paths)}

        references = self._looked(branch, look)
        return {path: reference for path, reference in references.items() if reference is not None}

    def keep(self, branch: str, paths: Collection[str]) -> None:
        """Stage the entries at these paths again if their first write may not have been acknowledged: their files may
        be collected, or a commit may have missed them.

        A reader that found such an entry can rely on it afterwards. Raises ExpiredError if a file has just been
        collected.
        """

        def look(record: model.BranchRecord) -> dict[str, model.Reference | None]:
            waiting = self._waiting(record)
            late = {path for under in waiting[:-1] for path in under.readable}
            standing = _merged(waiting)
            _check(standing, paths)
            return {
                path: reference
                for path, reference in self._standing(record, standing.readable, paths).items()
                if path in late or not is_fresh(standing.readable[path][0], record.epoch)
            }

        doubtful = self._looked(branch, look)
        if doubtful:
            self.stage(branch, doubtful)

    def scan(self, branch: str, start: str = "", stop: str | None = None) -> dict[str, model.Reference]:
        """Return the branch's entries including staged ones, by path, in order; start <= path < stop.

        The record is read again afterwards, so the result is the state at one moment. If commits keep intervening,
        the last read is returned: slightly old but complete, because staged entries outlive their commit by some
        commits. Raises ContentionError if even those have been deleted.
        """
        return self._looked(branch, lambda record: self._through(record, start, stop))

    def _looked(self, branch: str, look: Callable[[model.BranchRecord], FoundT]) -> FoundT:
        """Call `look` with the branch record until the record, read again, is unchanged or still knows the tokens that
        `look` used; return its result."""
        for _ in range(STAGING_READ_TRIES_MAX):
            at = read_branch(self._records, branch)
            result = look(at.record)
            now = self._records.read(branch)
            if now.version == at.version:
                return result
        if pending_tokens(at.record) <= known_tokens(now.record):
            return result
        raise _errors.ContentionError(
            f"branch {branch}: {STAGING_READ_TRIES_MAX} reads in a row failed, because of too many commits. "
            "Read again, or read a commit."
        )

    def _through(
        self, record: model.BranchRecord, start: str, stop: str | None
    ) -> dict[str, model.Reference]:
        committed = self._commits.entries(record.head, start, stop) if record.head else {}
        standing = _merged(self._waiting(record, start, stop, with_requests=True))
        standing.check()
        entries = {**committed, **self._standing(record, standing.readable, standing.readable)}
        return {path: reference for path in sorted(entries) if (reference := entries[path]) is not None}

    def _waiting(
        self,
        record: model.BranchRecord,
        start: str = "",
        stop: str | None = None,
        *,
        with_requests: bool = False,
    ) -> list[branch_store.Under]:
        """Return the entries under each token of pending commits, oldest first; the last is the current staging token.

        With `with_requests`, include the explicit changes of sealed requests, in order.
        """
        waiting: list[branch_store.Under] = []
        for sealed in record.sealed:
            if sealed.token:
                waiting.append(self._records.under(sealed.token, start, stop))
            if with_requests and isinstance(sealed.request.operation, model.Change):
                entries = sealed.request.operation.entries
                inside = (each for each in entries if each[0] >= start and (stop is None or each[0] < stop))
                waiting.append(branch_store.Under({path: (reference,) for path, reference in inside}))
        return [*waiting, self._records.under(record.staging, start, stop)]

    def _standing(
        self, record: model.BranchRecord, layers: Mapping[str, branch_store.Layers], paths: Iterable[str]
    ) -> dict[str, model.Reference | None]:
        """Return the newest layer of each path whose file exists. A lower layer may be the one that was
        acknowledged."""
        standing: dict[str, model.Reference | None] = {}
        waiting = {path: layers[path] for path in paths if path in layers}
        while waiting:
            old = [
                top
                for top, *_ in waiting.values()
                if isinstance(top, model.FileAt) and not is_fresh(top, record.epoch)
            ]
            there = self._contents.present(old)
            below: dict[str, branch_store.Layers] = {}
            for path, (top, *earlier) in waiting.items():
                if (
                    not isinstance(top, model.FileAt)
                    or is_fresh(top, record.epoch)
                    or file_path(top) in there
                ):
                    standing[path] = top
                elif earlier:
                    below[path] = tuple(earlier)
            waiting = below
        return standing

    def _fresh(
        self, entries: Mapping[str, model.Reference | None], epoch: int
    ) -> dict[str, model.Reference | None]:
        """Return the entries with files that may be published at an epoch; older files are copied into it."""
        old = {
            path: reference
            for path, reference in entries.items()
            if isinstance(reference, model.FileAt) and not is_fresh(reference, epoch)
        }
        renewed = self._contents.renew(old.values(), epoch)
        for file in old.values():
            if file_path(file) not in renewed:
                raise _errors.ExpiredError(
                    f"{file_path(file)} is missing: garbage collection ran twice since it was written. Some "
                    "entries were not staged; write it again, then stage it."
                )
        return {**entries, **{path: renewed[file_path(file)] for path, file in old.items()}}

    def _with_token(self, branch: str) -> branch_store.BranchSnapshot:
        """Return the branch; write a staging token and an epoch into its record if they are missing."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            at = read_branch(self._records, branch)
            if at.record.staging and at.record.epoch != model.EPOCH_UNSET:
                return at
            # Read the epoch after the branch: a process that begins an epoch later finds the record, and
            # changes it.
            epoch = self._records.epoch().number if at.record.epoch == model.EPOCH_UNSET else at.record.epoch
            record = replace(at.record, staging=at.record.staging or branch_store.new_token(), epoch=epoch)
            self._records.swap(branch, at, record, is_mine=lambda there: bool(there.staging))
        raise busy(branch)


def _merged(waiting: Iterable[branch_store.Under]) -> branch_store.Under:
    """Merge the entries under several tokens, oldest first, as if they were under one."""
    merged = branch_store.Under()
    for each in waiting:
        for path, layers in each.readable.items():
            merged.readable[path] = branch_store.stacked((*layers, *merged.readable.get(path, ())))
            merged.damaged.pop(path, None)
        for path, error in each.damaged.items():
            merged.readable.pop(path, None)
            merged.damaged[path] = error
    return merged


def _check(under: branch_store.Under, paths: Collection[str]) -> None:
    """Raise DamageError if one of these staged entries is unreadable."""
    branch_store.Under(
        damaged={path: error for path, error in under.damaged.items() if path in paths}
    ).check()


def read_branch(records: branch_store.BranchRecords, branch: str) -> branch_store.BranchSnapshot:
    """Return a branch. Raises RefNotFoundError if it does not exist; `main` always exists."""
    at = records.read(branch) if model.is_name(branch) else None
    if at is None or (at.is_absent and branch != branch_store.MAIN):
        raise _errors.RefNotFoundError(
            f"no branch {model.shown(branch)}; `tracelake branch list` shows the existing ones."
        )
    return at


def busy(branch: str) -> _errors.ContentionError:
    """Return the error for too many lost races."""
    return _errors.ContentionError(
        f"branch {branch}: {CONDITIONAL_WRITE_TRIES_MAX} conditional writes in a row were lost to others. "
        "Nothing was changed; try again."
    )
