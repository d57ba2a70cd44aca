"""Check of every file that a commit of any branch or tag references, for `tracelake verify`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from tracelake._errors import DamageError
from tracelake.datasets.files import at_once, read_file
from tracelake.results import Finding
from tracelake.storage import ObjectStore
from tracelake.storage.verify import object_finding
from tracelake.versions.model import Commit, FileAt
from tracelake.versions.protocol import is_fresh
from tracelake.versions.repository import Repository
from tracelake.versions.tree import file_path, path_of
from tracelake.versions.verify import Named


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A checked file, or an unreadable commit, and its problem, if any."""

    what: str
    size_bytes: int
    finding: Finding | None


def verify_files(
    repository: Repository, objects: ObjectStore, heads: Iterable[str], staged: Iterable[Named]
) -> Iterator[CheckedFile]:
    """Yield each file referenced by staged entries or by commits that lead to `heads`, and each unreadable commit."""

    def check(holder: Named | CheckedFile) -> list[CheckedFile]:
        return [holder] if isinstance(holder, CheckedFile) else list(_check(objects, holder))

    seen: set[str] = set()
    # Evaluated lazily, after all committed files were seen.
    new_staged = (holder for holder in staged if file_path(holder.files[0]) not in seen)
    for checked in at_once(check, chain(_named(repository, objects, heads, seen), new_staged)):
        yield from checked


def _check(objects: ObjectStore, holder: Named) -> Iterator[CheckedFile]:
    """Read files up to the first that exists. A staged file may have been collected before it was acknowledged."""
    problem: CheckedFile | None = None
    for file in holder.files:
        path = file_path(file)
        try:
            yield CheckedFile("file", len(read_file(objects, file)), None)
            return
        except DamageError as error:
            finding = object_finding(objects, "file", path, f"{holder.what} names it: {error}")
            is_gone = finding.kind == "missing"
            if not is_gone or is_fresh(file, holder.epoch):
                problem = CheckedFile("file", 0, finding)
            if not is_gone:
                break
    if problem is not None:
        yield problem


def _named(
    repository: Repository, objects: ObjectStore, heads: Iterable[str], files: set[str]
) -> Iterator[Named | CheckedFile]:
    """Yield the referenced files, each once: for every commit, those that its first parent does not reference."""
    todo = list(heads)
    seen = {""}
    while todo:
        commit_id = todo.pop()
        if commit_id in seen:
            continue
        seen.add(commit_id)
        try:
            parents = repository.commit(commit_id).parents
            todo.extend(parents)
            for path, file in _new_files(repository, commit_id, parents):
                if file_path(file) not in files:
                    files.add(file_path(file))
                    yield Named(path, (file,))
        except DamageError as error:
            path = path_of(Commit, commit_id)
            yield CheckedFile("commit", 0, object_finding(objects, "commit", path, error))


def _new_files(
    repository: Repository, commit_id: str, parents: tuple[str, ...]
) -> Iterator[tuple[str, FileAt]]:
    try:
        yield from _files(repository, parents[0] if parents else "", commit_id)
    # perhaps damage of the parent, which is checked itself: treat all files of this commit as new
    except DamageError:
        yield from _files(repository, "", commit_id)


def _files(repository: Repository, before: str, after: str) -> Iterator[tuple[str, FileAt]]:
    for change in repository.diff(before, after):
        if isinstance(change.after, FileAt):
            yield change.path, change.after
