"""Commits of transactions: one each, whoever builds it; refs; damage."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from tracelake._errors import DamageError, RefNotFoundError
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
from tracelake.versions.store import Repository


class LostReplies(MemoryKeyValueStore):
    """Does every conditional write, and says that it does not know."""

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
    """The next transaction is built, one below is there, one above is a mistake."""
    for t, head in itertools.product(range(4), [None, 0, 1, 2]):
        upper = 0 if head is None else head + 1
        expected = (
            CommitDecision.THERE
            if t < upper
            else CommitDecision.BUILD
            if t == upper
            else CommitDecision.AHEAD
        )
        assert decide(t, head) is expected


def test_history_is_linear_and_names_what_belongs_together() -> None:
    """Each commit has the one before as its parent, and names table and index of its transaction."""
    repository = a_repository()
    ids = [commit(repository, t) for t in range(3)]
    assert repository.head() == ids[2]
    assert [commit_id for commit_id, _ in repository.log(ids[2])] == ids[::-1]
    assert repository.commit(ids[1]).parents == (ids[0],)
    assert repository.entries(ids[1]) == {"tables/spans": TableAt("spans", 1), "indexes/spans": IndexAt("m1")}


def test_replicas_that_race_agree_on_every_commit() -> None:
    """Eight replicas commit the same transactions: one commit each, and all get the same ids."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()

    def race(_: int) -> list[str]:
        repository = Repository(key_value, objects)
        return [commit(repository, t) for t in range(10)]

    with ThreadPoolExecutor(8) as threads:
        histories = list(threads.map(race, range(8)))
    assert all(history == histories[0] for history in histories)
    assert len(list(objects.list("versions/commits/"))) == 10


def test_v7_lost_replies_make_one_commit() -> None:
    """V7: the write of the head succeeds and its reply is lost; the commit is there once."""
    repository = a_repository(LostReplies())
    ids = [commit(repository, t) for t in (0, 0, 1, 1, 0)]
    assert ids == [ids[0], ids[0], ids[2], ids[2], ids[0]]
    assert len(list(repository.log(ids[2]))) == 2


def test_refs_resolve_to_commits() -> None:
    """A branch, a commit id, and its beginning name a commit; anything else is refused with a hint."""
    repository = a_repository()
    with pytest.raises(RefNotFoundError, match="still empty"):
        repository.resolve("main")
    first = commit(repository, 0)
    assert repository.resolve("main") == repository.resolve(first) == repository.resolve(first[:6]) == first
    for ref in ("nothing", first[:5], "0" * 64, "../../etc"):
        with pytest.raises(RefNotFoundError, match="no branch or commit"):
            repository.resolve(ref)


def test_altered_objects_are_damage() -> None:
    """A commit, metarange or range whose bytes are not those of its id is named, as is one that is gone."""
    for kind in ("commits", "metaranges", "ranges"):
        objects = MemoryObjectStore()
        repository = a_repository(objects=objects)
        head = commit(repository, 0)
        (info,) = objects.list(f"versions/{kind}/")
        objects.put(info.path, objects.get(info.path) + b" ")
        with pytest.raises(DamageError, match=f"versions/{kind}/.* is not what was written"):
            repository.entries(head)
        objects.delete(info.path)
        with pytest.raises(DamageError, match=f"versions/{kind}/.* is gone"):
            repository.entries(head)
