"""Verification of the history for `tracelake verify`: commits of `main`, and the records of all branches and tags.

A record is intact if its checksum matches, whatever its kind. Records that name commits or files are also decoded. If
one branch is damaged, the others still lead to their commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tracelake._errors import CommitExpiredError, DamageError
from tracelake.results import Finding
from tracelake.storage import Entry, KeyValueStore, ObjectStore
from tracelake.storage.ports import check_records, object_finding, whole_records
from tracelake.versions import branch_store, model
from tracelake.versions.protocol import pending_tokens
from tracelake.versions.repository import Repository
from tracelake.versions.tree import COMMITS, path_of

EntriesOf = Callable[[Repository, str], dict[str, model.Reference]]
"""Function that returns the relevant entries of a commit."""
NamesT = TypeVar("NamesT", model.BranchRecord, model.Tag)


@dataclass(frozen=True, slots=True)
class CheckedCommit:
    """One commit of the history, with its entries."""

    transaction: int | None
    """None for a commit of another kind, such as a write to a user's table."""
    commit: model.Commit
    entries: dict[str, model.Reference]


@dataclass(frozen=True, slots=True)
class Named:
    """A named thing, such as a branch or a request, that refers to files."""

    what: str
    files: tuple[model.FileAt, ...]
    """One file; for a staged entry also its lower layers, newest first."""
    epoch: int = model.EPOCH_UNSET
    """For a staged entry, the epoch of its branch. A file that might be collected by that epoch is unacknowledged if
    it is missing."""


@dataclass(slots=True)
class CheckedRecords:
    """The commits and files that records of branches and tags lead to, and findings."""

    heads: list[str] = field(default_factory=list)
    """Commits that branches and tags name."""
    staged: list[Named] = field(default_factory=list)
    """Staged entries that name a file."""
    findings: list[Finding] = field(default_factory=list)


def built_transactions(repository: Repository, objects: ObjectStore) -> int:
    """Return one more than the highest transaction that a commit was ever built for.

    Its journal and batches existed before the commit, so they must exist now, whatever happened to the records that
    should lead to them.
    """
    numbers = [-1]
    for info in list(objects.list(COMMITS)):
        commit_id = info.path.removeprefix(COMMITS).removesuffix(".json")
        # The history check reports it if the commit is part of the history.
        with contextlib.suppress(DamageError):
            numbers.append(repository.transaction_of(commit_id))
    return max(numbers) + 1


def check_history(
    repository: Repository, objects: ObjectStore, transactions: int, entries_of: EntriesOf
) -> tuple[list[CheckedCommit], list[Finding]]:
    """Read the history back to the first commit; return its intact commits, newest first, and findings."""
    commits: list[CheckedCommit] = []
    findings: list[Finding] = []
    numbers: list[int | None] = []
    ancestry = repository.ancestry()
    try:
        head = following = repository.head()
    except DamageError as error:
        return commits, [Finding("damaged", "commit", "branch main", str(error))]
    while following is not None:
        path = path_of(model.Commit, following)
        try:
            commit = ancestry.commit(following)
        except DamageError as error:
            return commits, [*findings, object_finding(objects, "commit", path, error)]
        number = commit.metadata.get(model.TRANSACTION)
        transaction = None if number is None else int(number)
        if transaction is not None:
            numbers.append(transaction)
        try:
            commits.append(CheckedCommit(transaction, commit, entries_of(repository, following)))
            if repository.commit(following).parents != commit.parents:
                numbers.append(None)
        except DamageError as error:
            findings.append(Finding("damaged", "commit", path, str(error)))
        except CommitExpiredError:  # A collection let it expire since the walk read it.
            numbers.append(None)
        following = commit.parents[0] if commit.parents else None
    return commits, findings + _check_numbers(str(head), numbers, transactions)


def _check_numbers(head: str, numbers: list[int | None], transactions: int) -> list[Finding]:
    """Check the numbers of transactions, newest first; None stands for commits that have expired."""
    present = [number for number in numbers if number is not None]
    lowest, has_gap = present[0] + 1 if present else 0, False
    for number in (*numbers, -1):
        if number is None:
            has_gap = True
            continue
        if number != lowest - 1 and not (has_gap and number < lowest):
            return [Finding("mismatch", "commit", head, f"the history has the transactions {present}")]
        lowest, has_gap = number, False
    upper = present[0] + 1 if present else 0
    if upper < transactions - 1:  # The last commit may have been built and never have become the head.
        detail = f"it ends with {upper} commits, and commits of {transactions} transactions are there"
        return [Finding("missing", "commit", "branch main", detail)]
    return []


def read_records(key_value: KeyValueStore) -> CheckedRecords:
    """Read all records of branches, tags, requests and staged entries; the history check reports `main`."""
    records = CheckedRecords()
    branches = whole_records(key_value.scan, branch_store.BRANCHES, records.findings)
    records.findings = [
        it for it in records.findings if it.path != f"{branch_store.BRANCHES}/{branch_store.MAIN}"
    ]
    tags = whole_records(key_value.scan, branch_store.TAGS, records.findings)
    staged = whole_records(key_value.scan, branch_store.STAGED, records.findings)
    whole_records(key_value.notes, branch_store.REQUESTS, records.findings)
    records.findings += check_records(key_value, (branch_store.ANSWERS, branch_store.COLLECTOR))
    for entry in tags:
        if (tag := _decoded(entry, model.Tag)) is not None:
            records.heads.append(tag.commit)
    waiting: dict[str, tuple[str, model.BranchRecord]] = {}
    for entry in branches:
        if (branch := _decoded(entry, model.BranchRecord)) is not None:
            records.heads.append(branch.head)
            waiting |= dict.fromkeys(pending_tokens(branch), (entry.key, branch))
    for entry in staged:
        _add_staged(records, entry, waiting.get(branch_store.token_of(entry.key)))
    return records


def _decoded(entry: Entry, kind: type[NamesT]) -> NamesT | None:
    try:
        return model.from_bytes(kind, entry.value, entry.key)
    except DamageError:
        return None


def _add_staged(
    records: CheckedRecords, entry: Entry, waiting: tuple[str, model.BranchRecord] | None
) -> None:
    """Add a staged entry that names a file and is still pending on a branch.

    Committed entries are skipped: their files may have been copied since, and collected.
    """
    try:
        layers = branch_store.staged_layers(entry)
    except DamageError as error:
        records.findings.append(
            Finding("damaged", "record", f"{branch_store.STAGED}/{entry.key}", str(error))
        )
        return
    files = tuple(layer for layer in layers if isinstance(layer, model.FileAt))
    if waiting is not None and len(files) == len(layers):
        name, branch = waiting
        records.staged.append(
            Named(f"{branch_store.path_in(entry.key)}, staged on branch {name},", files, branch.epoch)
        )
