"""Garbage collection beside who gives a name: what it leads to stays, and who was killed leaves nothing."""

from __future__ import annotations

import pytest

from tests.versions.collected_world import World
from tracelake._errors import (
    RefNotFoundError,
    UsageError,
)
from tracelake.versions.collect import RepositoryCollector
from tracelake.versions.model import (
    TableAt,
)


def test_only_what_a_name_leads_to_is_named_again() -> None:
    """A commit of a deleted branch is not tagged, branched from, merged, picked or reverted: it may be gone at once."""
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
        with pytest.raises(RefNotFoundError, match="no branch or tag leads to"):
            give()
    assert world.repository.tags() == {}
    assert list(world.repository.branches()) == ["main"]


def test_who_is_killed_while_he_gives_a_name_leaves_nothing() -> None:
    """Its claim keeps the commit for two epochs, is no name to anybody, and stands in nobody's way."""
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
    with pytest.raises(RefNotFoundError, match="no branch or tag leads to"):
        world.repository.tag("v2", lost)
    world.repository.create_branch("other", world.repository.resolve("main"))
    assert world.collect().objects == 0
    assert world.opened().commit(lost)
    assert world.collect().commits == 1
    assert world.key_value.scan("tags") == []
    assert [entry.key for entry in world.key_value.scan("branches")] == ["main", "other"]


def test_whoever_was_slow_to_give_a_name_claims_it_once_more() -> None:
    """Collections, or another who wants the name, take a claim away: it is given to what is reached still, or not."""
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


def test_a_name_that_moves_while_it_is_looked_for_is_found() -> None:
    """A branch is made from a tag, and the tag deleted, when branches were read and tags were not: it stays whole."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    kept = world.commit("b", 1, "side")
    world.repository.tag("v1", kept)
    world.repository.delete_branch("side")
    world.collect()
    world.collect()
    collector = RepositoryCollector(world.key_value, world.objects)
    tags, looks = collector._records.tags, iter(range(9))

    def tags_after_the_move() -> dict[str, str]:
        if next(looks) == 1:  # the first look is at the names alone
            world.repository.create_branch("moved", kept)
            world.repository.delete_tag("v1")
        return tags()

    vars(collector._records)["tags"] = tags_after_the_move
    assert collector.collect(epoch_min_s=0.0).objects == 0
    assert world.opened().entries(world.repository.resolve("moved"))["b"] == TableAt("s", 1)
