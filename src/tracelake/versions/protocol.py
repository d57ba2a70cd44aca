"""Decisions of a repository (PROTOCOLS §3), in the form for one committer a transaction. Pure: no I/O.

Every replica of a pipeline builds the same commit for T: time and message come from the journal, the parent is
the commit of T-1. So a replica that loses the race finds its own commit in the history.
"""

from __future__ import annotations

from enum import Enum


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
