"""Reading back every file that a commit of any branch or tag names, for `tracelake verify`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracelake._errors import DamageError
from tracelake.datasets.files import at_once, read_file
from tracelake.storage import ObjectStore
from tracelake.versions.model import Commit, FileAt
from tracelake.versions.objects import file_path, path_of
from tracelake.versions.store import Repository


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that was read, or a commit that could not be; `problem` says what is wrong with it."""

    what: str
    path: str
    size_bytes: int
    problem: str | None


def verify_files(repository: Repository, objects: ObjectStore) -> Iterator[Checked]:
    """Yield each file once, and each commit that cannot be read. Raises DamageError where a branch or tag cannot."""

    def check(named: tuple[str, FileAt] | Checked) -> Checked:
        if isinstance(named, Checked):
            return named
        entry, file = named
        try:
            size_bytes, problem = len(read_file(objects, file)), None
        except DamageError as error:
            size_bytes, problem = 0, f"{entry} names it: {error}"
        return Checked("file", file_path(file), size_bytes, problem)

    yield from at_once(check, _named(repository))


def _named(repository: Repository) -> Iterator[tuple[str, FileAt] | Checked]:
    """Yield the files that entries name, each once: of every commit, those that its first parent does not name."""
    todo = [record.head for record in repository.branches().values()] + list(repository.tags().values())
    seen = {""}
    files: set[str] = set()
    while todo:
        commit_id = todo.pop()
        if commit_id in seen:
            continue
        seen.add(commit_id)
        try:
            parents = repository.commit(commit_id).parents
            todo.extend(parents)
            for path, file in _new_files(repository, commit_id, parents):
                if file.sha256 not in files:
                    files.add(file.sha256)
                    yield path, file
        except DamageError as error:
            yield Checked("commit", path_of(Commit, commit_id), 0, str(error))


def _new_files(
    repository: Repository, commit_id: str, parents: tuple[str, ...]
) -> Iterator[tuple[str, FileAt]]:
    try:
        yield from _files(repository, parents[0] if parents else "", commit_id)
    except DamageError:  # perhaps of the parent, which has its own turn: all that this one names may be new
        yield from _files(repository, "", commit_id)


def _files(repository: Repository, before: str, after: str) -> Iterator[tuple[str, FileAt]]:
    for change in repository.diff(before, after):
        if isinstance(change.after, FileAt):
            yield change.path, change.after
