"""Walks through commits: back to the first, to a common ancestor, to the commit of a transaction. Reads only."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from tracelake._errors import DamageError
from tracelake.versions.model import AFTER, TRANSACTION, Commit

ReadCommit = Callable[[str], Commit]


def log(commit_id: str, read: ReadCommit) -> Iterator[tuple[str, Commit]]:
    """Yield (id, commit) from this commit back to the first, by first parents: the history of a branch."""
    following: str | None = commit_id or None
    while following is not None:
        commit = read(following)
        yield following, commit
        following = commit.parents[0] if commit.parents else None


def newest_transaction(commit_id: str, read: ReadCommit) -> int:
    """Return the newest transaction that a commit holds, -1 where it holds none, or where there is no commit."""
    if not commit_id:
        return -1
    metadata = read(commit_id).metadata
    return int(metadata.get(TRANSACTION, metadata.get(AFTER, "-1")))


def commit_of(transaction: int, head: str, read: ReadCommit) -> str:
    """Return the commit of a transaction in the history of a commit. Raises DamageError where there is none."""
    for commit_id, commit in log(head, read):
        if commit.metadata.get(TRANSACTION) == str(transaction):
            return commit_id
    raise DamageError(f"no commit of transaction {transaction} in the history of {head[:12]}.")


def merge_base(left: str, right: str, read: ReadCommit) -> str:
    """Return the best common ancestor of two commits, empty where they have none.

    It goes back from both at once, the longest way from the first commit first, so a commit is met after all of
    its descendants: the first one that both sides reach is an ancestor of no other such.
    """
    if not left or not right:
        return ""
    reached: dict[str, int] = {}
    queue: list[tuple[int, str]] = []

    def reach(commit_id: str, side: int) -> None:
        if commit_id not in reached:
            heapq.heappush(queue, (-read(commit_id).generation, commit_id))
        reached[commit_id] = reached.get(commit_id, 0) | side

    reach(left, 1)
    reach(right, 2)
    while queue:
        _, commit_id = heapq.heappop(queue)
        if reached[commit_id] == 3:
            return commit_id
        for parent in read(commit_id).parents:
            reach(parent, reached[commit_id])
    return ""


def contains(head: str, commit_id: str, read: ReadCommit) -> bool:
    """Tell whether a commit is `head` or an ancestor of it, by any parent.

    It goes back no further than to where the commit must have come: ancestors have a lower generation.
    """
    if not head or not commit_id:
        return False
    generation = read(commit_id).generation
    todo, seen = [head], {head}
    while todo:
        at = todo.pop()
        if at == commit_id:
            return True
        commit = read(at)
        if commit.generation > generation:
            todo.extend(parent for parent in commit.parents if parent not in seen)
            seen.update(commit.parents)
    return False
