"""One client's request or failure never stops others: a branch goes on with any request on its list."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from tracelake._errors import DamageError, LimitError, RefNotFoundError, UsageError
from tracelake.storage import (
    Expected,
    Indeterminate,
    MemoryKeyValueStore,
    MemoryObjectStore,
    Outcome,
)
from tracelake.testing.stores import Crashed, CrashingKeyValueStore, CrashPoint
from tracelake.versions.branch_store import MAIN, REQUESTS, BranchRecords, scope
from tracelake.versions.committer import BRANCH_ANSWERS_KEPT
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import (
    Announcement,
    Answer,
    BranchRecord,
    Change,
    Commit,
    FileAt,
    Metarange,
    Range,
    Request,
    to_bytes,
)
from tracelake.versions.protocol import seal
from tracelake.versions.repository import Repository
from tracelake.versions.tree import path_of


class LostWrites(MemoryKeyValueStore):
    """Store that runs `instead` in place of a conditional write, and loses the reply."""

    instead: bytes = b""

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        if not self.instead:
            return super().set_if(partition, key, value, expected)
        self.set(partition, key, self.instead)
        return Indeterminate("nowhere", "lost")


def a_file(number: int) -> FileAt:
    return FileAt("0" * 64, number)


def a_repository() -> Repository:
    return Repository(MemoryKeyValueStore(), MemoryObjectStore())


def test_after_a_lost_reply_what_is_there_counts() -> None:
    """After a lost reply, a helper's different result counts, not ours (V7)."""
    store = LostWrites()
    records = BranchRecords(store)
    at = records.read(MAIN)
    theirs = BranchRecord(head="theirs", done=(Answer("r", "theirs"),))
    ours = BranchRecord(head="ours", done=(Answer("r", "ours"),))
    store.instead = to_bytes(theirs)
    is_there, found = records.swap(MAIN, at, ours, is_mine=lambda record: record.done[0].request == "r")
    assert is_there
    assert found.record == theirs
    assert found == records.read(MAIN)


@pytest.mark.parametrize("key", ["transaction", "after_transaction"])
@pytest.mark.parametrize("number", ["7", "0", "many"])
def test_the_number_of_a_transaction_is_not_for_everyone_to_give(key: str, number: str) -> None:
    """A client's commit that claims to be a transaction is refused before it is on the list."""
    repository = a_repository()
    with pytest.raises(UsageError, match=key):
        repository.commit_entries({"a": a_file(1)}, metadata={key: number})
    assert repository.head() is None
    repository.commit_entries({"a": a_file(1)})
    assert repository.head() is not None


@pytest.mark.parametrize("request_id", ["transaction-3", "x" * 2_000, "\ud800"])
def test_an_id_that_cannot_be_looked_up_is_refused(request_id: str) -> None:
    """A pipeline's request id, or one that no store accepts as a key, is refused before it is on the list."""
    repository = a_repository()
    with pytest.raises((UsageError, LimitError)):
        repository.commit_entries({"a": a_file(1)}, request_id=request_id)
    assert repository.branches()[MAIN].sealed == ()


@pytest.mark.parametrize("kind", [Commit, Metarange, Range])
def test_a_merge_of_something_damaged_keeps_nobody_from_committing(
    kind: type[Commit] | type[Metarange] | type[Range],
) -> None:
    """An object that only one request needs, and that is unreadable, fails only that request."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
    repository = Repository(key_value, objects)
    base = repository.commit_entries({"a": a_file(1)})
    repository.create_branch("dev", base)
    repository.commit_entries({"b": a_file(1)}, "dev")
    tip = repository.commit_entries({"c": a_file(1)}, "dev")
    lost = {Commit: repository.commit(tip).parents[0], Metarange: repository.commit(tip).metarange}
    lost[Range] = repository._contents.read(Metarange, lost[Metarange]).ranges[0].id
    objects.delete(path_of(kind, lost[kind]))
    repository = Repository(key_value, objects)
    with pytest.raises(DamageError, match=lost[kind]):
        repository.merge(tip)
    head = repository.commit_entries({"d": a_file(1)})
    assert repository.commit(head).parents == (base,)
    with pytest.raises(DamageError, match="nothing was committed"):
        repository.cherry_pick(tip)


def a_branch(repository: Repository, base: str) -> BranchRecords:
    repository.create_branch("dev", base)
    return repository._records


def test_who_waits_on_a_branch_that_is_deleted_and_made_again_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a branch is deleted and recreated, its waiting committer gets an error; nothing was committed or damaged."""
    repository = a_repository()
    base = repository.commit_entries({"a": a_file(1)})
    records = a_branch(repository, base)
    at = records.read("dev")
    dead = Request("dead", Change((("b", a_file(1)),)), "", "", "", {})
    records.swap("dev", at, seal(at.record, [dead], "t", 0), is_mine=lambda _: False)

    def made_again(_: float) -> None:
        repository.delete_branch("dev", force=True)
        repository.create_branch("dev", base)

    monkeypatch.setattr("tracelake.versions.committer.time.sleep", made_again)
    with pytest.raises(RefNotFoundError, match="was deleted; nothing was committed"):
        repository.commit_entries({"c": a_file(1)}, "dev")
    assert repository.head("dev") == base


def test_what_was_asked_of_a_deleted_branch_is_not_done_on_one_of_the_same_name() -> None:
    """Requests and answers of a deleted branch do not apply to a new branch of the same name."""
    repository = a_repository()
    base = repository.commit_entries({"a": a_file(1)})
    old = a_branch(repository, base).read("dev")
    request = Request("left behind", Change((("b", a_file(1)),)), "", "", "", {})
    repository._records.announce(scope("dev", old.record), Announcement(request, base))
    first = repository.commit_entries({"c": a_file(1)}, "dev", request_id="mine")
    for number in range(BRANCH_ANSWERS_KEPT + 1):
        repository.commit_entries({"d": a_file(number)}, "dev")
    repository.delete_branch("dev", force=True)
    new = a_branch(repository, base).read("dev")
    repository._records.announce(scope("dev", old.record), Announcement(request, base))
    assert scope("dev", old.record) != scope("dev", new.record)
    again = repository.commit_entries({"c": a_file(2)}, "dev", request_id="mine")
    assert again != first
    assert repository.entries(again) == {"a": a_file(1), "c": a_file(2)}
    assert [at for at, _ in repository.log(again)] == [again, base]


def test_damage_on_another_branch_refuses_no_name() -> None:
    """An unreadable history is skipped if another one leads to the commit; otherwise the error names it."""
    key_value, objects = MemoryKeyValueStore(), MemoryObjectStore()
    repository = Repository(key_value, objects)
    base = repository.commit_entries({"a": a_file(1)})
    repository.create_branch("broken", base)
    lost = repository.commit_entries({"b": a_file(1)}, "broken")
    repository.commit_entries({"c": a_file(1)}, "broken")
    good = repository.commit_entries({"d": a_file(1)})
    repository.commit_entries({"e": a_file(1)})
    objects.delete(path_of(Commit, lost))
    repository = Repository(key_value, objects)
    repository.tag("v1", good)
    repository.create_branch("side", base)
    alone = repository.commit_entries({"f": a_file(1)}, "side")
    repository.delete_branch("side")
    with pytest.raises(DamageError, match=lost):
        repository.tag("v2", alone)


def waiting_on(branch: str) -> tuple[Repository, BranchRecords, str]:
    """Return a repository with one sealed and one announced request on a branch, and the branch's scope.

    Their committers were killed.
    """
    key_value = MemoryKeyValueStore()
    repository, records = (
        Repository(key_value, MemoryObjectStore(), patience_polls=1),
        BranchRecords(key_value),
    )
    repository.create_branch(branch, repository.commit_entries({"a": a_file(1)}))
    at = records.read(branch)
    here = scope(branch, at.record)
    killed = Request("killed", Change((("b", a_file(1)),)), "b", "ann", "2026-01-01T00:00:00+00:00")
    assert records.swap(branch, at, seal(at.record, [killed], "token", 0), lambda _: False)[0]
    records.announce(here, Announcement(replace(killed, id="late"), at.record.head))
    return repository, records, here


def test_what_is_announced_goes_with_its_branch() -> None:
    """Announced requests are deleted with their branch, because they could never be sealed."""
    repository, records, here = waiting_on("dev")
    assert [waiting.request.id for waiting in records.announced(here)] == ["late"]
    repository.delete_branch("dev", force=True)
    assert records.announced(here) == []


def test_what_is_announced_goes_with_a_branch_whose_deleter_is_killed() -> None:
    """After a killed branch deletion, the next collection deletes its announcements; live branches keep theirs."""
    for at in itertools.count(1):
        repository, records, here = waiting_on("dev")
        crash = CrashPoint(at, after=True)
        killed = Repository(
            CrashingKeyValueStore(repository._key_value, crash), repository._contents._objects
        )
        try:
            killed.delete_branch("dev", force=True)
        except Crashed:
            if "dev" in repository.branches():
                assert records.announced(here)
            RepositoryCollector(repository._key_value, repository._contents._objects).collect(epoch_min_s=0)
            assert bool(repository._key_value.notes(REQUESTS)) is ("dev" in repository.branches())
        else:
            break
    assert at > 5


def test_a_branch_of_the_same_name_keeps_what_is_announced_on_it() -> None:
    """A collection deletes announcements of the deleted branch, and keeps those of a new one with the same name."""
    repository, records, here = waiting_on("dev")
    (late,) = records.announced(here)
    at = records.read("dev")
    assert records.delete("dev", at)  # its deleter is killed here
    repository.create_branch("dev", repository.resolve(MAIN))
    new = scope("dev", records.read("dev").record)
    for there in (new, MAIN):
        records.announce(there, late)
    collector = RepositoryCollector(repository._key_value, repository._contents._objects)
    collector.collect(epoch_min_s=0, dry_run=True)
    assert records.announced(here) == [late]
    collector.collect(epoch_min_s=0)
    assert [records.announced(there) for there in (here, new, MAIN)] == [[], [late], [late]]


def test_what_is_announced_while_a_collection_looks_stays() -> None:
    """The collector lists announcements before branches, so those on a branch created later stay."""
    repository, records, here = waiting_on("dev")
    (late,) = records.announced(here)

    def scopes() -> set[str]:
        known = {MAIN, here}
        repository.create_branch("new", repository.resolve(MAIN))
        records.announce(scope("new", records.read("new").record), late)
        return known

    records.forget_requests(scopes)
    assert records.announced(scope("new", records.read("new").record)) == [late]


def test_who_announces_on_a_branch_that_is_just_deleted_takes_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A committer withdraws its announcement if the branch is deleted between its look and the announcement."""
    repository, records, here = waiting_on("dev")
    announce = BranchRecords.announce

    def announce_late(self: BranchRecords, *about: Any) -> None:
        repository.delete_branch("dev", force=True)
        announce(self, *about)

    monkeypatch.setattr(BranchRecords, "announce", announce_late)
    with pytest.raises(RefNotFoundError, match="was deleted"):
        repository.commit_entries({"c": a_file(1)}, "dev")
    assert records.announced(here) == []
