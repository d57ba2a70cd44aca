"""Decisions of a repository (PROTOCOLS §3). Pure: no I/O.

A commit stands for a transaction of the pipeline, or for a write to a table of the user. Every replica of a
pipeline builds the same commit for T: time and message come from the journal, the parent is the commit before.
So a replica that loses the race finds its own commit in the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tracelake.versions.model import Reference, TableAt


class CommitDecision(Enum):
    """What to do about transaction T, given the head of the branch."""

    BUILD = "T is next: build its commit and move the head"
    THERE = "T is in the history of the head already"
    AHEAD = "an earlier transaction has no commit yet: a mistake of the caller"


def decide(transaction: int, head_transaction: int | None) -> CommitDecision:
    """Decide on the commit of a transaction; `head_transaction` is None on an empty branch."""
    upper = 0 if head_transaction is None else head_transaction + 1
    if transaction < upper:
        return CommitDecision.THERE
    return CommitDecision.BUILD if transaction == upper else CommitDecision.AHEAD


def carried(head: Mapping[str, Reference], wanted: Mapping[str, Reference]) -> dict[str, Reference]:
    """Return what a commit names that changes some entries: all others as before, and no table at an older time.

    Writers of one table append one after the other, and may commit in another order: who comes late finds that
    the head names his rows already, and has nothing to add.
    """
    entries = dict(head)
    for name, reference in wanted.items():
        before = head.get(name)
        older = (
            isinstance(before, TableAt)
            and isinstance(reference, TableAt)
            and before.shard == reference.shard
            and before.as_of > reference.as_of
        )
        if not older:
            entries[name] = reference
    return entries
