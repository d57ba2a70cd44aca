"""Conditional writes that always lose, or whose replies are lost (V7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tracelake._errors import ContentionError
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX
from tracelake.storage import (
    Conflict,
    Expected,
    Indeterminate,
    MemoryKeyValueStore,
    MemoryObjectStore,
    Outcome,
)
from tracelake.versions.branch_store import MAIN
from tracelake.versions.model import FileAt
from tracelake.versions.repository import Repository


def a_file(number: int) -> FileAt:
    return FileAt("0" * 64, number)


class OneLostReply(MemoryKeyValueStore):
    """Store that loses the reply to one write of a branch, done or not; other clients act before it is read back."""

    meanwhile: Callable[[], object] | None = None
    is_done = True

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is None or partition != "branches":
            self.meanwhile = meanwhile
            return super().set_if(partition, key, value, expected)
        if self.is_done:
            super().set_if(partition, key, value, expected)
        meanwhile()
        return Indeterminate("unknown", "the reply was lost")


class OthersAreFaster(MemoryKeyValueStore):
    """Store that makes every conditional write lose once enabled, and counts the tries."""

    tries = 0
    is_busy = False

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        if not self.is_busy:
            return super().set_if(partition, key, value, expected)
        self.tries += 1
        return Conflict(self.get(partition, key))


@pytest.fixture
def store() -> OneLostReply:
    """Return a store that has not lost a reply yet."""
    return OneLostReply()


@pytest.fixture
def repository(store: OneLostReply) -> Repository:
    """Return a repository on it, with two entries staged."""
    repository = Repository(store, MemoryObjectStore())
    repository.stage({"x": a_file(1), "y": a_file(1)})
    return repository


def test_v7_discard_leaves_what_was_staged_after_it(store: OneLostReply, repository: Repository) -> None:
    """A discard whose reply is lost keeps entries that other clients staged and committed afterwards (V7)."""

    def go_on() -> None:
        repository.stage({"z": a_file(2)})
        repository.commit_entries({"other": a_file(3)})

    before = repository.branch().staging
    store.meanwhile = go_on
    assert repository.discard() == 2
    assert repository.staged() == (("z", a_file(2)),)
    assert store.scan("staged", f"{before}/", f"{before}0") == []


def test_v7_discard_that_was_not_done_is_tried_again(store: OneLostReply, repository: Repository) -> None:
    """A lost discard is tried again, and removes the entries of its token although the branch has moved on (V7)."""
    store.is_done = False
    store.meanwhile = lambda: repository.commit_entries({"other": a_file(3)})
    assert repository.discard() == 2
    assert repository.staged() == ()


def test_v7_discard_leaves_what_a_commit_took(store: OneLostReply, repository: Repository) -> None:
    """If a commit took the entries before a lost discard, they stay committed, and later ones stay staged (V7)."""

    def commit() -> None:
        repository.commit_staged()
        repository.stage({"z": a_file(2)})

    token = repository.branch().staging
    store.is_done = False
    store.meanwhile = commit
    assert repository.discard() == 0
    assert repository.entries(repository.head() or "") == {"x": a_file(1), "y": a_file(1)}
    assert len(store.scan("staged", f"{token}/", f"{token}0")) == 2, (
        "readers that began before the commit look for them"
    )
    assert repository.staged() == (("z", a_file(2)),)


def test_discard_where_nothing_was_ever_staged() -> None:
    """A discard on a branch without a token writes nothing."""
    store = MemoryKeyValueStore()
    assert Repository(store, MemoryObjectStore()).discard() == 0
    assert store.scan("branches") == []


def _discard(repository: Repository) -> None:
    repository.discard()


def _stage(repository: Repository) -> None:
    repository.stage({"x": a_file(1)})


def _protect(repository: Repository) -> None:
    repository.protect(MAIN)


def _advance(repository: Repository) -> None:
    repository._records.advance(lambda epoch: replace(epoch, number=epoch.number + 1))


@pytest.mark.parametrize(
    ("staged", "act", "message"),
    [
        (
            True,
            _discard,
            "branch main: .* conditional writes in a row were lost to others. Nothing was changed; try again",
        ),
        (
            False,
            _stage,
            "branch main: .* conditional writes in a row were lost to others. Nothing was changed; try again",
        ),
        (
            False,
            _protect,
            "branch main: .* conditional writes in a row were lost to others. Nothing was changed; try again",
        ),
        (False, _advance, "the epoch of garbage collection changed .* try again later"),
    ],
)
def test_who_always_loses_gives_up(staged: bool, act: Callable[[Repository], None], message: str) -> None:
    """A writer that always loses stops after some tries; the error says that nothing was done."""
    store = OthersAreFaster()
    repository = Repository(store, MemoryObjectStore())
    if staged:
        repository.stage({"x": a_file(1)})
    before = (store.scan("branches"), store.scan("collector"))
    store.is_busy = True
    with pytest.raises(ContentionError, match=message):
        act(repository)
    assert store.tries == CONDITIONAL_WRITE_TRIES_MAX
    assert (store.scan("branches"), store.scan("collector")) == before
