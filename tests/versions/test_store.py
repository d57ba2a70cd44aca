"""Commits of transactions: each exists once, whichever replica builds it; refs; damage."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from tracelake._errors import DamageError, RefNotFoundError, UsageError
from tracelake.storage import (
    Done,
    Expected,
    Indeterminate,
    KeyValueStore,
    MemoryKeyValueStore,
    MemoryObjectStore,
    ObjectStore,
    Outcome,
)
from tracelake.versions.model import IndexAt, TableAt
from tracelake.versions.protocol import CommitDecision, decide
from tracelake.versions.repository import Repository


class LostReplies(MemoryKeyValueStore):
    """Store that does every conditional write, and reports its outcome as unknown."""

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        outcome = super().set_if(partition, key, value, expected)
        return Indeterminate(outcome.version, "lost") if isinstance(outcome, Done) else outcome


def commit(repository: Repository, t: int) -> str:
    return repository.commit_transaction(
        t,
        {"tables/spans": TableAt("spans", t), "indexes/spans": IndexAt(f"m{t}")},
        message=f"transaction {t}",
        committer="pipeline",
        created_at=f"2026-01-01T00:00:{t:02d}+00:00",
        metadata={"spans_new": "1"},
    )


def a_repository(key_value: KeyValueStore | None = None, objects: ObjectStore | None = None) -> Repository:
    return Repository(key_value or MemoryKeyValueStore(), objects or MemoryObjectStore())


def test_decide_over_all_small_cases() -> None:
    """The next transaction is built, a lower one exists already, and a higher one is an error."""
    for t, head in itertools.product(range(4), [None, 0, 1, 2]):
        upper = 0 if head is None else head + 1
        expected = (
            CommitDecision.THERE
            if t < upper
            else CommitDecision.BUILD
            if t == upper
            else CommitDecision.TOO_EARLY
        )
        assert decide(t, head) is expected


def test_history_is_linear_and_names_what_belongs_together() -> None:
    """Each commit has the previous one as parent, and names table and index of its transaction."""
    repository = a_repository()
    ids = [commit(repository, t) for t in range(3)]
    assert repository.head() == ids[2]
    assert [commit_id for commit_id, _ in repository.log(ids[2])] == ids[::-1]
    assert repository.commit(ids[1]).parents == (ids[0],)
    assert repository.entries(ids[1]) == {"tables/spans": TableAt("spans", 1), "indexes/spans": IndexAt("m1")}


def test_replicas_that_race_agree_on_every_commit() -> None:
    """Eight replicas that commit the same transactions make one commit each, and all get the same ids."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()

    def race(_: int) -> list[str]:
        repository = Repository(key_value, objects)
        return [commit(repository, t) for t in range(10)]

    with ThreadPoolExecutor(8) as threads:
        histories = list(threads.map(race, range(8)))
    assert all(history == histories[0] for history in histories)
    assert len(list(objects.list("versions/commits/"))) == 10


def test_v7_lost_replies_make_one_commit() -> None:
    """If the write of the head succeeds and its reply is lost, the commit exists once (V7)."""
    repository = a_repository(LostReplies())
    ids = [commit(repository, t) for t in (0, 0, 1, 1, 0)]
    assert ids == [ids[0], ids[0], ids[2], ids[2], ids[0]]
    assert len(list(repository.log(ids[2]))) == 2


def test_refs_resolve_to_commits() -> None:
    """A branch, a commit id, or its beginning names a commit; anything else is refused with a hint."""
    repository = a_repository()
    with pytest.raises(RefNotFoundError, match="the lake is empty"):
        repository.resolve("main")
    first = commit(repository, 0)
    assert repository.resolve("main") == repository.resolve(first) == repository.resolve(first[:6]) == first
    for ref in ("nothing", first[:5], "0" * 64, "../../etc"):
        with pytest.raises(RefNotFoundError, match=r"is not a commit reference|no branch, tag or commit"):
            repository.resolve(ref)


def test_altered_objects_are_damage() -> None:
    """A commit, metarange or range that is absent or does not match its id is damage, and the error names it."""
    for kind in ("commits", "metaranges", "ranges"):
        objects = MemoryObjectStore()
        repository = a_repository(objects=objects)
        head = commit(repository, 0)
        (info,) = objects.list(f"versions/{kind}/")
        objects.put(info.path, objects.get(info.path) + b" ")
        with pytest.raises(DamageError, match=f"versions/{kind}/.* is damaged"):
            a_repository(objects=objects).entries(head)
        objects.delete(info.path)
        with pytest.raises(DamageError, match=f"versions/{kind}/.* is missing"):
            a_repository(objects=objects).entries(head)


def test_a_write_beside_the_pipeline_keeps_what_others_named() -> None:
    """A commit of entries keeps all other entries and the last transaction, and takes no table back in time."""
    repository = a_repository()
    empty = commit_mine(repository, -1)
    assert repository.transaction_of(empty) == -1
    first = commit(repository, 0)
    ahead, late = commit_mine(repository, 4), commit_mine(repository, 3)
    assert late == ahead, "the head names a later time already"
    assert repository.transaction_of(ahead) == 0
    assert commit(repository, 0) == first
    head = commit(repository, 1)
    assert repository.entries(head) == {
        "tables/spans": TableAt("spans", 1),
        "tables/mine": TableAt("mine", 4),
        "indexes/spans": IndexAt("m1"),
    }
    assert [commit_id for commit_id, _ in repository.log(head)] == [head, ahead, first, empty]


def test_writers_and_replicas_race_on_one_branch() -> None:
    """If four writers and four replicas race, each transaction has one commit, and no write is lost."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()

    def race(number: int) -> None:
        repository = Repository(key_value, objects)
        for t in range(8):
            commit(repository, t) if number % 2 else commit_mine(repository, t * 4 + number // 2)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(race, range(8)))
    repository = a_repository(key_value, objects)
    head = repository.head() or ""
    assert repository.entries(head)["tables/mine"] == TableAt("mine", 31)
    numbers = [found.metadata.get("transaction") for _, found in repository.log(head)]
    assert [number for number in numbers if number is not None] == [str(t) for t in range(7, -1, -1)]


def test_a_lost_reply_makes_one_commit_of_a_write() -> None:
    """A table write whose reply is lost has one commit in the history, and a repeated call finds it (V7)."""
    repository = a_repository(LostReplies())
    assert commit_mine(repository, 0) == commit_mine(repository, 0)
    assert len(list(repository.log(repository.head() or ""))) == 1


def commit_mine(repository: Repository, as_of: int) -> str:
    return repository.commit_entries(
        {"tables/mine": TableAt("mine", as_of)},
        message="a write",
        committer="writer",
        created_at=f"2026-01-01T00:01:{as_of + 1:02d}+00:00",
        metadata={"table": "mine"},
    )


def test_references_of_every_form() -> None:
    """A branch, steps back, a transaction, a time in any zone, a tag, or the beginning of an id names a commit."""
    repository = a_repository()
    ids = [commit(repository, t) for t in range(5)]
    repository.tag("v1", ids[1])
    for ref, t in {
        "main": 4,
        "main~0": 4,
        "main~3": 1,
        "main@2": 2,
        "main@2026-01-01T00:00:03Z": 3,
        "main@2026-01-01T01:00:02.5+01:00": 2,
        "main@2026-01-02": 4,
        "v1": 1,
        "v1~1": 0,
        ids[3]: 3,
        ids[3][:8]: 3,
        f"{ids[3][:8]}~2": 1,
    }.items():
        assert repository.resolve(ref) == ids[t], ref
    for ref, words in {
        "main~5": "does not contain",
        "main@9": "does not contain",
        "main@2025-01-01": "does not contain",
        "main@soon": "is not a time",
        "v2": "no branch, tag or commit",
        "main~": "is not a commit reference",
        "ma in": "is not a commit reference",
        "": "is not a commit reference",
        "abc": "no branch",
    }.items():
        with pytest.raises(RefNotFoundError, match=words):
            repository.resolve(ref)


def test_tags_name_one_commit_until_they_are_deleted() -> None:
    """A tag is created once; repeating it for the same commit succeeds, even if replies are lost."""
    repository = a_repository(LostReplies())
    first, second = commit(repository, 0), commit(repository, 1)
    repository.tag("v1", first)
    repository.tag("v1", first)
    with pytest.raises(UsageError, match="already names another commit"):
        repository.tag("v1", second)
    for name in ("main", "a b", "", "abcdef", "-x"):
        with pytest.raises(UsageError):
            repository.tag(name, first)
    assert repository.tags() == {"v1": first}
    repository.delete_tag("v1")
    with pytest.raises(RefNotFoundError, match="no tag"):
        repository.delete_tag("v1")
    repository.tag("v1", second)
    assert repository.tags() == {"v1": second}
