"""What pages and API read of history and datasets: commits, differences, examples, a page of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from tracelake.datasets.dataset import Dataset
from tracelake.results import BranchInfo, CommitInfo, DatasetInfo, EntryChange
from tracelake.versions.branch import Branch


class LakeVersions(Protocol):
    """The part of a lake that knows of branches, commits and datasets; `tracelake.Lake` is one."""

    @property
    def url(self) -> str:
        """Where the lake is."""

    def branches(self) -> list[BranchInfo]:
        """Return all branches, `main` first."""

    def tags(self) -> dict[str, str]:
        """Return the commit of each tag."""

    def log(self, ref: str = "main", limit: int | None = None) -> list[CommitInfo]:
        """Return commits, newest first. Raises RefNotFoundError."""

    def diff(self, before: str | None, after: str = "main", limit: int | None = None) -> list[EntryChange]:
        """Return the entries that differ. Raises RefNotFoundError."""

    def branch(self, name: str = "main") -> Branch:
        """Return a branch. Raises RefNotFoundError."""

    def create_branch(self, name: str, at: str = "main") -> Branch:
        """Make a branch. Raises UsageError, RefNotFoundError."""

    def delete_branch(self, name: str, force: bool = False) -> None:
        """Delete a branch. Raises UsageError, RefNotFoundError."""

    def tag(self, name: str, ref: str = "main") -> str:
        """Give a commit a name; return its id. Raises UsageError, RefNotFoundError."""

    def delete_tag(self, name: str) -> None:
        """Take a tag away. Raises RefNotFoundError."""

    def datasets(self, at: str = "main") -> list[DatasetInfo]:
        """Return all datasets. Raises RefNotFoundError."""

    def dataset(self, name: str, at: str = "main") -> Dataset:
        """Return a dataset. Raises DatasetNotFoundError, RefNotFoundError."""


@dataclass(frozen=True, slots=True)
class CommitPage:
    """Commits, newest first; `next` is the reference of the following one, None where there is none."""

    commits: list[CommitInfo]
    next: str | None


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Entries that differ, in order of path, and whether there are more."""

    changes: list[EntryChange]
    more: bool


@dataclass(frozen=True, slots=True)
class ExamplePage:
    """Examples of a dataset, in order of id, each with its state; `next` is the id after which others follow."""

    description: str
    examples: list[dict[str, Any]]
    removed: list[str]
    """Ids of examples that are staged to go."""
    next: str | None


def list_commits(lake: LakeVersions, ref: str, limit: int) -> CommitPage:
    """Return one page of the history of a commit. Raises RefNotFoundError."""
    commits = lake.log(ref, limit + 1)
    return CommitPage(commits[:limit], commits[limit].id if len(commits) > limit else None)


def list_changes(lake: LakeVersions, before: str | None, after: str, limit: int) -> ChangePage:
    """Return the first entries that differ; `before` None is the first parent. Raises RefNotFoundError."""
    changes = lake.diff(before, after, limit + 1)
    return ChangePage(changes[:limit], len(changes) > limit)


def list_examples(lake: LakeVersions, name: str, ref: str, after: str, limit: int) -> ExamplePage:
    """Return one page of a dataset, on a branch with what is staged. Raises DatasetNotFoundError."""
    dataset = lake.dataset(name, ref)
    states = dataset.states()
    examples = list(islice(dataset.examples(staged=dataset.on_branch, after=after), limit + 1))
    return ExamplePage(
        dataset.description,
        [example.to_row() | {"state": states.get(example.id, "committed")} for example in examples[:limit]],
        [identity for identity, state in states.items() if state == "removed"],
        examples[limit - 1].id if len(examples) > limit else None,
    )


def names_of(branches: Sequence[BranchInfo], tags: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the branches and tags that name each commit."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for branch in branches:
        names[branch.head or ""].append(branch.name)
    for tag, commit_id in tags.items():
        names[commit_id].append(tag)
    return dict(names)
