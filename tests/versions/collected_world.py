"""Repository in memory with its collector, for tests of garbage collection."""

from __future__ import annotations

from tracelake.datasets.files import read_file, write_file
from tracelake.storage import MemoryKeyValueStore, MemoryObjectStore
from tracelake.versions.gc import CollectedCommits, RepositoryCollector
from tracelake.versions.model import (
    FileAt,
    TableAt,
)
from tracelake.versions.repository import Repository
from tracelake.versions.tree import FILES


class World:
    """Repository in memory, and its collector."""

    def __init__(self) -> None:
        self.key_value, self.objects = MemoryKeyValueStore(), MemoryObjectStore()
        self.repository = self.opened()

    def opened(self) -> Repository:
        """Open it again, with empty caches."""
        return Repository(self.key_value, self.objects)

    def collect(self, *, dry_run: bool = False) -> CollectedCommits:
        """Collect once; each call begins an epoch."""
        return RepositoryCollector(self.key_value, self.objects).collect(epoch_min_s=0.0, dry_run=dry_run)

    def commit(self, path: str, number: int, branch: str = "main") -> str:
        """Commit one entry."""
        return self.repository.commit_entries({path: TableAt("s", number)}, branch, message=path)

    def file(self, text: str) -> FileAt:
        """Write a file, as a client that adds an example does."""
        return write_file(self.objects, text.encode(), self.repository.epoch())

    def files(self) -> set[str]:
        """Return the paths of all files."""
        return {path for path in self.paths() if path.startswith(FILES)}

    def paths(self) -> set[str]:
        """Return the paths of all objects."""
        return {info.path for info in self.objects.list("")}

    def check(self) -> None:
        """Read every commit that a ref leads to, with all entries and their files."""
        repository = self.opened()
        heads = [record.head for record in repository.branches().values()] + list(repository.tags().values())
        todo, seen = [head for head in heads if head], set()
        while todo:
            commit_id = todo.pop()
            if commit_id not in seen:
                seen.add(commit_id)
                for named in repository.entries(commit_id).values():
                    if isinstance(named, FileAt):
                        read_file(self.objects, named)
                todo.extend(repository.commit(commit_id).parents)
