"""Garbage collection during naming: commits with a name stay, and killed clients leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.versions.collected_world import World
from tracelake._errors import (
    RefNotFoundError,
    UsageError,
)
from tracelake.storage import Entry, MemoryKeyValueStore
from tracelake.versions.branch_store import BRANCHES, TAGS


def test_only_what_a_name_leads_to_is_named_again() -> None:
    """An unreachable commit cannot be tagged, branched, merged, picked or reverted: it may be collected at once."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    lost = world.commit("b", 1, "side")
    world.repository.delete_branch("side")
    for give in (
        lambda: world.repository.tag("v1", lost),
        lambda: world.repository.create_branch("again", lost),
        lambda: world.repository.merge(lost, message="merge"),
        lambda: world.repository.cherry_pick(lost, message="pick"),
        lambda: world.repository.revert(lost, message="revert"),
    ):
        with pytest.raises(RefNotFoundError, match="no branch or tag reaches"):
            give()
    assert world.repository.tags() == {}
    assert list(world.repository.branches()) == ["main"]


def test_who_is_killed_while_he_gives_a_name_leaves_nothing() -> None:
    """The claim of a killed client keeps the commit for two epochs, is no visible name, and blocks no other client."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    lost = world.commit("b", 1, "side")
    world.collect()
    reaches = world.repository.reaches

    def killed(commit_id: str) -> bool:
        assert reaches(commit_id)
        raise KeyboardInterrupt

    world.repository._names._reaches = killed
    with pytest.raises(KeyboardInterrupt):
        world.repository.tag("v1", lost)
    for name in ("again", "other"):
        with pytest.raises(KeyboardInterrupt):
            world.repository.create_branch(name, lost)
    world.repository.delete_branch("side")
    world.repository = world.opened()
    assert (world.repository.tags(), list(world.repository.branches())) == ({}, ["main"])
    with pytest.raises(RefNotFoundError, match="branch again"):
        world.commit("c", 1, "again")
    with pytest.raises(RefNotFoundError, match="no branch or tag reaches"):
        world.repository.tag("v2", lost)
    world.repository.create_branch("other", world.repository.resolve("main"))
    assert world.collect().objects == 0
    assert world.opened().commit(lost)
    assert world.collect().commits == 1
    assert world.key_value.scan("tags") == []
    assert [entry.key for entry in world.key_value.scan("branches")] == ["main", "other"]


def test_whoever_was_slow_to_give_a_name_claims_it_once_more() -> None:
    """A slow client that lost its claim claims the name again, and gets it only if the commit is still reachable."""
    world = World()
    first = world.commit("a", 1)
    reaches, looks = world.repository.reaches, iter(range(9))

    def slow(commit_id: str) -> bool:
        found = reaches(commit_id)
        if next(looks) == 0:
            for _ in range(3):
                world.collect()
        return found

    world.repository._names._reaches = slow
    world.repository.tag("v1", first)
    assert world.repository.tags() == {"v1": first}

    def overtaken(commit_id: str) -> bool:
        world.opened().tag("v2", first)
        return reaches(commit_id)

    world.repository._names._reaches = overtaken
    with pytest.raises(UsageError, match="v2"):
        world.repository.create_branch("v2", first)
    assert list(world.repository.branches()) == ["main"]
    world.check()


class Moving(MemoryKeyValueStore):
    """Store in which a commit's name moves, before some scans of a collector, to the kind that is not scanned."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = 0
        self.move: Callable[[str], None] = lambda _: None

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Scan after the move (see `KeyValueStore`)."""
        if self.moves and partition in (BRANCHES, TAGS):
            moves, self.moves = self.moves - 1, 0  # the client that moves it scans too
            self.move(partition)
            self.moves = moves
        return super().scan(partition, start, stop, limit)


@pytest.mark.parametrize("moves", range(1, 20))
def test_a_name_that_moves_while_a_collector_looks(moves: int) -> None:
    """A commit stays if its only name keeps moving between tag and branch, so that no scan sees it."""
    world = World()
    world.key_value = Moving()
    world.repository = world.opened()
    world.repository.create_branch("side", world.commit("a", 1))
    kept = world.commit("b", 1, "side")
    names = (f"name-{number}" for number in range(99))
    now = ["branch", "side"]

    def move(scanned: str) -> None:
        kind, name = now
        if (kind, scanned) == ("branch", BRANCHES):
            now[:] = "tag", next(names)
            world.repository.tag(now[1], kept)
            world.repository.delete_branch(name)
        elif (kind, scanned) == ("tag", TAGS):
            now[:] = "branch", next(names)
            world.repository.create_branch(now[1], kept)
            world.repository.delete_tag(name)

    world.key_value.move = move
    for _ in range(3):
        world.collect()
    world.key_value.moves = moves
    world.collect()
    world.key_value.moves = 0
    assert world.opened().commit(kept)
    world.check()
