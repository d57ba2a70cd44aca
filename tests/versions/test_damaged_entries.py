"""Staged entries that cannot be read: named, kept, in nobody's way but that of a commit of what is staged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelake._errors import DamageError, LimitError, NotFoundError, NothingToCommitError
from tracelake.limits import STAGED_PATH_MAX_BYTES
from tracelake.storage import MemoryKeyValueStore, MemoryObjectStore, open_key_value
from tracelake.storage.object_records import record_path
from tracelake.versions.branch import Branch, branches
from tracelake.versions.model import Reference, TableAt
from tracelake.versions.repository import Repository


def at(number: int) -> Reference:
    """Return something to name."""
    return TableAt("s", number)


@pytest.fixture
def repository() -> Repository:
    """Return a repository in which three entries are staged, `b` of them damaged."""
    repository = Repository(MemoryKeyValueStore(), MemoryObjectStore())
    repository.commit_entries({"x": at(0)})
    repository.stage({"a": at(1), "b": at(2), "c": at(3)})
    damage(repository, "b")
    return repository


def damage(repository: Repository, path: str, branch: str = "main") -> None:
    """Put other bytes in the place of a staged entry."""
    repository._key_value.set("staged", f"{repository.branch(branch).staging}/{path}", b"torn")


def test_a_commit_names_it_and_all_stays_staged(repository: Repository) -> None:
    """As `git commit` does; commits of other things go on, and so does staging."""
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
    """A path that nothing is staged under is an error, and nothing is forgotten then."""
    with pytest.raises(NotFoundError, match="nothing is staged under 'nowhere'"):
        Branch("main", repository).discard(["b", "nowhere"])
    assert Branch("main", repository).discard(["b"]) == 1
    assert repository.entries(repository.commit_staged()) == {"a": at(1), "c": at(3), "x": at(0)}


def test_a_path_that_can_be_read_is_discarded_in_the_same_way(repository: Repository) -> None:
    """And twice the same path is one."""
    assert repository.discard(paths=["a", "c", "a"]) == 2
    assert repository.staged() == ()
    assert repository.discard() == 1
    with pytest.raises(NothingToCommitError):
        repository.commit_staged()


def test_it_is_staged_anew(repository: Repository) -> None:
    """What is staged at its path replaces it."""
    repository.stage({"b": at(5)})
    assert repository.entries(repository.commit_staged())["b"] == at(5)


def test_what_is_staged_over_it_counts_where_it_was_carried_on(repository: Repository) -> None:
    """A commit that was refused has carried it to another token."""
    with pytest.raises(DamageError):
        repository.commit_staged()
    repository.stage({"b": at(6)})
    assert repository.uncommitted()["b"] == at(6)
    assert repository.entries(repository.commit_staged())["b"] == at(6)


def test_what_lies_beside_it_is_read(repository: Repository) -> None:
    """Reading its own path says what is wrong, and what to do."""
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
    """The message stays short."""
    repository.stage({f"many/{number}": at(number) for number in range(9)})
    for number in range(9):
        damage(repository, f"many/{number}")
    with pytest.raises(DamageError, match=r"staged entry b, many/0, many/1 and 7 more cannot be read"):
        repository.commit_staged()
    assert repository.discard() == 12


def test_a_branch_with_one_can_be_deleted(repository: Repository) -> None:
    """And nothing of it is left."""
    repository.create_branch("side", repository.resolve("main"))
    repository.stage({"b": at(1)}, "side")
    damage(repository, "b", "side")
    token = repository.branch("side").staging
    repository.delete_branch("side", force=True)
    assert not repository._records.has_staged(token)


def test_one_of_which_the_store_itself_can_read_nothing_stays_named(tmp_path: Path) -> None:
    """In a store of objects the record is torn: it is carried on, then discarded, and nothing stands still."""
    repository = Repository(open_key_value(tmp_path.as_uri()), MemoryObjectStore())
    repository.stage({"a": at(1), "b": at(2)})
    key = f"{repository.branch().staging}/b"
    (version,) = (tmp_path / record_path("staged", key)).iterdir()
    version.write_bytes(version.read_bytes()[:-1])
    assert [change.change for change in Branch("main", repository).staged()] == ["added", "damaged"]
    with pytest.raises(DamageError, match="staged entry b cannot be read"):
        repository.commit_staged()
    assert repository.discard(paths=["b"]) == 1
    assert repository.entries(repository.commit_staged()) == {"a": at(1)}


def test_a_path_has_room_beside_any_token(repository: Repository) -> None:
    """One that is too long is refused before it is staged: a commit that is refused carries it to a longer key."""
    longest = "/".join(["p" * 200] * 5)[:STAGED_PATH_MAX_BYTES]
    repository.stage({longest: at(1)})
    with pytest.raises(LimitError, match="STAGED_PATH_MAX_BYTES"):
        repository.stage({f"{longest}x": at(1)})
