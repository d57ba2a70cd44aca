"""Unreadable staged entries are named and kept, and block only commits of staged entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torn import lake_in_bucket, tear
from tracelake._errors import DamageError, LimitError, NotFoundError, NothingToCommitError
from tracelake.limits import STAGED_PATH_MAX_BYTES
from tracelake.storage import MemoryKeyValueStore, MemoryObjectStore
from tracelake.versions.branch import Branch, branches
from tracelake.versions.model import Reference, TableAt
from tracelake.versions.repository import Repository


def at(number: int) -> Reference:
    """Return a target for an entry."""
    return TableAt("s", number)


@pytest.fixture
def repository() -> Repository:
    """Return a repository with three staged entries, of which `b` is damaged."""
    repository = Repository(MemoryKeyValueStore(), MemoryObjectStore())
    repository.commit_entries({"x": at(0)})
    repository.stage({"a": at(1), "b": at(2), "c": at(3)})
    damage(repository, "b")
    return repository


def damage(repository: Repository, path: str, branch: str = "main") -> None:
    """Replace the bytes of a staged entry."""
    repository._key_value.set("staged", f"{repository.branch(branch).staging}/{path}", b"torn")


def test_a_commit_names_it_and_all_stays_staged(repository: Repository) -> None:
    """A commit of staged entries names the damage, as `git commit` does, and keeps all staged; other commits go on."""
    for number in range(3):
        with pytest.raises(DamageError, match=r"staged entry b cannot be read.*tracelake discard PATH"):
            repository.commit_staged()
        repository.commit_entries({"y": at(number)})
        repository.stage({"d": at(4)})
    changes = Branch("main", repository).staged()
    assert [(change.path, change.change) for change in changes] == [
        ("a", "added"),
        ("b", "damaged"),
        ("c", "added"),
        ("d", "added"),
    ]
    assert "b" in (changes[1].problem or "")
    assert changes[1].to_dict()["problem"] == changes[1].problem
    assert [found.staged for found in branches(repository)] == [4]


def test_it_is_discarded_alone_and_the_others_are_committed(repository: Repository) -> None:
    """A damaged entry is discarded alone; a path without a staged entry is an error, and nothing is discarded."""
    with pytest.raises(NotFoundError, match="nothing is staged under 'nowhere'"):
        Branch("main", repository).discard(["b", "nowhere"])
    assert Branch("main", repository).discard(["b"]) == 1
    assert repository.entries(repository.commit_staged()) == {"a": at(1), "c": at(3), "x": at(0)}


def test_a_path_that_can_be_read_is_discarded_in_the_same_way(repository: Repository) -> None:
    """A readable path is discarded in the same way; naming it twice has no further effect."""
    assert repository.discard(paths=["a", "c", "a"]) == 2
    assert repository.staged() == ()
    assert repository.discard() == 1
    with pytest.raises(NothingToCommitError):
        repository.commit_staged()


def test_it_is_staged_anew(repository: Repository) -> None:
    """Staging its path again replaces a damaged entry."""
    repository.stage({"b": at(5)})
    assert repository.entries(repository.commit_staged())["b"] == at(5)


def test_what_is_staged_over_it_counts_where_it_was_carried_on(repository: Repository) -> None:
    """A new entry replaces a damaged one even after a refused commit moved that one to another token."""
    with pytest.raises(DamageError):
        repository.commit_staged()
    repository.stage({"b": at(6)})
    assert repository.uncommitted()["b"] == at(6)
    assert repository.entries(repository.commit_staged())["b"] == at(6)


def test_what_lies_beside_it_is_read(repository: Repository) -> None:
    """Paths next to a damaged entry are readable; reading its own path reports the damage and the remedy."""
    assert repository.find_uncommitted("main", ["a", "x"]) == {"a": at(1), "x": at(0)}
    assert repository.uncommitted("main", "c") == {"c": at(3), "x": at(0)}
    repository.keep_staged("main", ["a"])
    for read in (
        lambda: repository.find_uncommitted("main", ["b"]),
        repository.uncommitted,
        lambda: repository.keep_staged("main", ["b"]),
    ):
        with pytest.raises(DamageError, match="staged entry b"):
            read()


def test_some_of_many_are_told_and_the_others_counted(repository: Repository) -> None:
    """The message names some of many damaged entries and counts the others."""
    repository.stage({f"many/{number}": at(number) for number in range(9)})
    for number in range(9):
        damage(repository, f"many/{number}")
    with pytest.raises(DamageError, match=r"staged entry b, many/0, many/1 and 7 more cannot be read"):
        repository.commit_staged()
    assert repository.discard() == 12


def test_a_branch_with_one_can_be_deleted(repository: Repository) -> None:
    """A branch with a damaged entry can be deleted, and nothing remains."""
    repository.create_branch("side", repository.resolve("main"))
    repository.stage({"b": at(1)}, "side")
    damage(repository, "b", "side")
    token = repository.branch("side").staging
    repository.delete_branch("side", force=True)
    assert not repository._records.has_staged(token)


def test_one_of_which_the_store_itself_can_read_nothing_stays_named(tmp_path: Path) -> None:
    """A torn record in an object store is moved to the next token, then discarded, and blocks nothing."""
    with lake_in_bucket(tmp_path) as lake:
        repository = Repository(lake._opened.key_value, MemoryObjectStore())
        repository.stage({"a": at(1), "b": at(2)})
        tear(tmp_path, f"{repository.branch().staging}/b")
        assert [change.change for change in Branch("main", repository).staged()] == ["added", "damaged"]
        with pytest.raises(DamageError, match="staged entry b cannot be read"):
            repository.commit_staged()
        assert repository.discard(paths=["b"]) == 1
        assert repository.entries(repository.commit_staged()) == {"a": at(1)}


def test_a_path_has_room_beside_any_token(repository: Repository) -> None:
    """A path too long for the key of any token is refused before it is staged, because a refused commit moves it."""
    longest = "/".join(["p" * 200] * 5)[:STAGED_PATH_MAX_BYTES]
    repository.stage({longest: at(1)})
    with pytest.raises(LimitError, match="STAGED_PATH_MAX_BYTES"):
        repository.stage({f"{longest}x": at(1)})
