"""Checks of a branch after many concurrent commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracelake.versions.repository import Repository


def check_history(repository: Repository, acknowledged: Sequence[tuple[str, str]]) -> list[str]:
    """Assert that a branch is one line of commits, and each acknowledged one is in it exactly once.

    `acknowledged` has (entry, commit id) of commits. Each names one new entry, with its name as the message.
    Returns all messages, oldest first.
    """
    head = repository.head()
    assert head is not None, "nothing was committed"
    history = list(repository.log(head))[::-1]
    assert all(len(commit.parents) <= 1 for _, commit in history), "a commit has two parents"
    messages = Counter(commit.message for _, commit in history)
    assert max(messages.values()) == 1, f"committed twice: {messages.most_common(3)}"
    by_id = {commit_id: commit.message for commit_id, commit in history}
    for entry, commit_id in acknowledged:
        assert by_id.get(commit_id) == entry, (
            f"{entry} was acknowledged as {commit_id[:12]}, which is not its"
        )
    missing = {entry for entry, _ in acknowledged} - repository.entries(head).keys()
    assert not missing, f"acknowledged and not named by the head: {sorted(missing)[:3]}"
    return [commit.message for _, commit in history]
