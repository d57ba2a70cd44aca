"""What pages and API read of history and datasets: commits, differences, examples, a page of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tracelake.lake.lake import Lake
from tracelake.results import BranchInfo, CommitInfo, EntryChange


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


def list_commits(lake: Lake, ref: str, limit: int) -> CommitPage:
    """Return one page of the history of a commit. Raises RefNotFoundError."""
    commits = lake.log(ref, limit + 1)
    return CommitPage(commits[:limit], commits[limit].id if len(commits) > limit else None)


def list_changes(lake: Lake, before: str | None, after: str, limit: int) -> ChangePage:
    """Return the first entries that differ; `before` None is the first parent. Raises RefNotFoundError."""
    changes = lake.diff(before, after, limit + 1)
    return ChangePage(changes[:limit], len(changes) > limit)


def list_examples(lake: Lake, name: str, ref: str, after: str, limit: int) -> ExamplePage:
    """Return one page of a dataset, on a branch with what is staged. Raises DatasetNotFoundError."""
    dataset = lake.datasets.get(name, ref)
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
