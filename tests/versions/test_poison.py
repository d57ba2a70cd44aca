"""Requests that cannot be built: each is refused alone, and the branch goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracelake._errors import (
    ConflictError,
    DamageError,
    NothingToCommitError,
    StorageError,
    UsageError,
)
from tracelake.limits import ANSWER_DETAIL_MAX_BYTES
from tracelake.storage import MemoryKeyValueStore, MemoryObjectStore
from tracelake.versions.branch_store import MAIN, REQUESTS, BranchRecords, BranchSnapshot, scope
from tracelake.versions.committer import BRANCH_ANSWERS_KEPT, _Building
from tracelake.versions.model import (
    TRANSACTION,
    Announcement,
    Answer,
    BranchRecord,
    Change,
    Commit,
    FileAt,
    MergeRequest,
    PathChanges,
    Request,
    Revert,
    SealedRequest,
    TableAt,
    to_bytes,
)
from tracelake.versions.protocol import BRANCH_SWEEP_MAX_REQUESTS, Refusal, excerpt, fit_texts, seal
from tracelake.versions.repository import Repository
from tracelake.versions.tree import Content


def a_file(number: int) -> FileAt:
    return FileAt("0" * 64, number)


def a_repository(answers_kept: int = BRANCH_ANSWERS_KEPT) -> Repository:
    return Repository(
        MemoryKeyValueStore(), MemoryObjectStore(), patience_polls=0, answers_retained=answers_kept
    )


def asked(name: str, operation: Change | MergeRequest | Revert, **metadata: str) -> Request:
    return Request(name, operation, "", "", "2026-01-01T00:00:00+00:00", metadata)


def put_on_list(repository: Repository, *requests: Request, branch: str = MAIN) -> None:
    """Seal requests, as committers do that are then killed."""
    at = repository._records.read(branch)
    record = seal(at.record, requests, f"token of {requests[0].id}", 0)
    assert repository._records.swap(branch, at, record, is_mine=lambda _: False)[0]


def poison(name: str = "poison", *, staged: bool = False) -> Request:
    """Return a request that no public interface accepts: building it raises ValueError."""
    entries: PathChanges = () if staged else (("p", a_file(1)),)
    return asked(name, Change(entries, staged=staged), **{TRANSACTION: "no number"})


def left_staged(repository: Repository) -> list[str]:
    """Return the paths staged under any token."""
    store = repository._key_value
    assert isinstance(store, MemoryKeyValueStore)
    return [entry.key.partition("/")[2] for entry in store.scan("staged")]


def answers_of(repository: Repository) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {answer.request: (answer.refusal, answer.detail) for answer in repository.branch().done}


@pytest.mark.parametrize("number", [-5, -1, 1, 2**70, True, "0", None, 0.0])
def test_a_parent_that_is_none_is_refused_at_the_door(number: object) -> None:
    """An invalid parent (number, type, or too few parents) is refused before it is on the list; the branch goes on."""
    repository = a_repository()
    first = repository.commit_entries({"a": a_file(1)})
    for call in (repository.revert, repository.cherry_pick):
        with pytest.raises(UsageError, match="has no parent"):
            call(first, parent=number)  # type: ignore[arg-type]
    assert repository.branch().sealed == ()
    assert repository.resolve("main") == first


def test_a_request_that_cannot_be_built_is_refused_by_itself() -> None:
    """Any exception from building a request becomes its answer; the requests before and after it are built."""
    repository = a_repository()
    base = repository.commit_entries({"a": a_file(1)})
    odd = asked("odd", Revert(base, parent=-5))
    put_on_list(repository, asked("before", Change((("b", a_file(1)),))), poison(), odd)
    head = repository.commit_entries({"c": a_file(1)})
    assert repository.entries(head).keys() == {"a", "b", "c"}
    found = answers_of(repository)
    assert found["poison"] == (
        Refusal.FAILED,
        ("ValueError: invalid literal for int() with base 10: 'no number'",),
    )
    assert found["odd"][0] == Refusal.DAMAGED
    assert (found["before"][0], len(repository.branch().sealed)) == ("", 0)


def test_what_was_staged_for_it_is_in_the_next_commit() -> None:
    """A refusal does not remove acknowledged staged entries, nor revert newer ones; the next commit has them."""
    repository = a_repository()
    repository.commit_entries({"a": a_file(1)})
    repository.stage({"s/1": a_file(1), "s/2": a_file(1)})
    put_on_list(repository, poison("first", staged=True))
    repository.stage({"s/2": a_file(2), "s/3": a_file(2)})
    put_on_list(repository, poison("second", staged=True))
    repository.stage({"s/3": a_file(3)})
    expected = {"a": a_file(1), "s/1": a_file(1), "s/2": a_file(2), "s/3": a_file(3)}
    assert repository.uncommitted() == expected
    assert repository.entries(repository.commit_staged()) == expected
    assert repository.staged() == ()


def test_the_store_and_the_machine_are_no_fault_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing store or lack of memory is not a request's fault: it stays on the list and is built later."""
    made = _Building._make
    for error in (StorageError("away"), OSError("EIO"), MemoryError()):
        repository = a_repository()

        def failing(*_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(_Building, "_make", failing)
        with pytest.raises(type(error)):
            repository.commit_entries({"a": a_file(1)})
        assert len(repository.branch().sealed) == 1
        monkeypatch.setattr(_Building, "_make", made)
        assert repository.entries(repository.commit_entries({"b": a_file(1)})).keys() == {"a", "b"}


def test_a_failure_in_the_middle_of_a_commit_leaves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes of a failed request are not in the commits of later ones."""
    repository = a_repository()
    repository.commit_entries({"a": a_file(1)})
    kept = _Building._keep

    def failing(self: _Building, record: Content) -> str:
        if isinstance(record, Commit) and record.request == "fails":
            raise ZeroDivisionError
        return kept(self, record)

    monkeypatch.setattr(_Building, "_keep", failing)
    put_on_list(repository, *(asked(name, Change(((name, a_file(1)),))) for name in ("b", "fails", "c")))
    head = repository.commit_entries({"d": a_file(1)})
    assert repository.entries(head).keys() == {"a", "b", "c", "d"}


def test_a_request_is_dropped() -> None:
    """A request that kills every process that builds it can be dropped; its committer gets an error, others go on."""
    repository = a_repository()
    base = repository.commit_entries({"a": a_file(1)})
    repository.stage({"s": a_file(1)})
    put_on_list(
        repository,
        asked("one", Change((("b", a_file(1)),))),
        asked("two", Change((("c", a_file(1)),), staged=True)),
        asked("three", Change((("d", a_file(1)),))),
    )
    with pytest.raises(UsageError, match="no request 'four' on its list; these wait: one, two, three"):
        repository.drop_request("four")
    repository.drop_request("two", why="it needs too much memory")
    assert repository.head() == base
    assert answers_of(repository)["two"] == (Refusal.DROPPED, ("it needs too much memory",))
    assert [change[0] for change in repository.staged()] == ["s"]
    repository.drop_request("one")
    head = repository.commit_entries({"e": a_file(1)})
    assert repository.entries(head).keys() == {"a", "d", "e"}
    assert repository.entries(repository.commit_staged()).keys() == {"a", "d", "e", "s"}
    with pytest.raises(UsageError, match="none waits there"):
        repository.drop_request("two")


def test_who_waits_for_a_request_that_is_dropped_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The committer of a dropped request gets an error with the reason; the operator can see its id."""
    repository = a_repository()
    other = Repository(repository._key_value, repository._contents._objects)
    make = _Building._make

    def dropped_meanwhile(self: _Building, sealed: SealedRequest) -> object:
        monkeypatch.setattr(_Building, "_make", make)
        other.drop_request(sealed.request.id, why="not today")
        return make(self, sealed)

    monkeypatch.setattr(_Building, "_make", dropped_meanwhile)
    with pytest.raises(UsageError, match="taken off the list: not today"):
        repository.commit_entries({"a": a_file(1)})
    assert repository.head() is None


def test_a_transaction_that_was_refused_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline may request a refused transaction again by its id, because unreadable objects may recover."""
    repository = a_repository()
    entries = {"t": TableAt("t", 0)}
    repository.commit_transaction(0, entries)
    make = _Building._make

    def failing(*_: object) -> None:
        raise DamageError("a range is gone")

    monkeypatch.setattr(_Building, "_make", failing)
    for _ in range(2):
        with pytest.raises(DamageError, match="a range is gone"):
            repository.commit_transaction(1, {"t": TableAt("t", 1)})
    monkeypatch.setattr(_Building, "_make", make)
    second = repository.commit_transaction(1, {"t": TableAt("t", 1)})
    assert repository.commit_transaction(1, {"t": TableAt("t", 1)}) == second
    third = repository.commit_transaction(2, {"t": TableAt("t", 2)})
    assert [commit.metadata[TRANSACTION] for _, commit in repository.log(third)] == ["2", "1", "0"]


# the record is bounded


def test_waiting_merges_in_conflict_have_room_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred waiting merges with long conflicting paths are all answered, in records far below the limit."""
    repository = a_repository()
    paths = [f"{number:03}/{'x' * 200}/{'y' * 200}/{'z' * 200}" for number in range(120)]
    base = repository.commit_entries(dict.fromkeys(paths, a_file(1)))
    repository.create_branch("dev", base)
    theirs = repository.commit_entries(dict.fromkeys(paths, a_file(2)), "dev")
    repository.commit_entries(dict.fromkeys(paths, a_file(3)))
    put_on_list(repository, *(asked(f"merge-{number}", MergeRequest(theirs)) for number in range(300)))
    sizes = []
    swap = BranchRecords.swap

    def measured(
        self: BranchRecords,
        branch: str,
        at: BranchSnapshot,
        record: BranchRecord,
        is_mine: Callable[[BranchRecord], bool],
    ) -> tuple[bool, BranchSnapshot]:
        sizes.append(len(to_bytes(record)))
        return swap(self, branch, at, record, is_mine)

    monkeypatch.setattr(BranchRecords, "swap", measured)
    head = repository.commit_entries({"after": a_file(1)}, request_id="mine")
    assert "after" in repository.entries(head)
    assert max(sizes) < (BRANCH_SWEEP_MAX_REQUESTS + 2 * BRANCH_ANSWERS_KEPT) * ANSWER_DETAIL_MAX_BYTES
    assert repository.branch().sealed == ()
    with pytest.raises(ConflictError) as conflict:
        repository.merge(theirs)
    assert conflict.value.paths == tuple(paths[: len(conflict.value.paths)])
    assert len(conflict.value.paths) > 10


@pytest.mark.parametrize("character", ["x", "\x01", "€", "\N{GRINNING FACE}"])
def test_an_answer_says_what_it_has_room_for(character: str) -> None:
    """An answer is shortened by its encoded size, in which a character may take six bytes or more."""
    answers = [fit_texts(character * 200 for _ in range(10**4)), (excerpt(character * 10**6),)]
    for detail in answers:
        assert detail
        assert len(to_bytes(Answer("r", detail=detail))) <= ANSWER_DETAIL_MAX_BYTES + 200
    assert fit_texts(str(number) for number in range(10**4)) == tuple(map(str, range(100)))
    assert excerpt("a\ud800b") == "a?b"


# recorded refusals


def test_a_refusal_that_has_left_the_record_is_known() -> None:
    """A refused request is not built later from an old announcement, even if the record has forgotten the refusal."""
    repository = a_repository(answers_kept=1)
    base = repository.commit_entries({"a": a_file(1)})
    for number in range(3):
        with pytest.raises(NothingToCommitError):
            repository.commit_staged(request_id=f"nothing-{number}")
    for number in range(3):
        put_on_list(repository, asked(f"also-{number}", Change(staged=True)))
        with pytest.raises(NothingToCommitError):
            repository.commit_staged()
    assert "also-0" not in answers_of(repository)
    late = Announcement(asked("also-0", Change(staged=True)), base)
    repository._records.announce(scope(MAIN, repository.branch()), late)
    repository.stage({"s": a_file(1)})
    head = repository.commit_entries({"b": a_file(1)})
    head = repository.commit_entries({"c": a_file(1)})
    assert repository.entries(head).keys() == {"a", "b", "c"}
    assert [path for path, _ in repository.staged()] == ["s"]
    assert repository._records.announced(scope(MAIN, repository.branch())) == []


def test_a_branch_is_deleted_when_what_is_on_its_list_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a branch is deleted, sealed commits are built, and no staged entry remains."""
    repository = a_repository()
    base = repository.commit_entries({"a": a_file(1)})
    repository.create_branch("dev", base)
    repository.stage({"s": a_file(1)}, "dev")
    put_on_list(repository, asked("begun", Change(staged=True)), branch="dev")
    found: list[str] = []
    delete = BranchRecords.delete

    def deleted(self: BranchRecords, branch: str, at: BranchSnapshot) -> bool:
        found.append(at.record.head)
        return delete(self, branch, at)

    monkeypatch.setattr(BranchRecords, "delete", deleted)
    repository.delete_branch("dev")
    assert repository.entries(found[0]).keys() == {"a", "s"}
    assert left_staged(repository) == []


def test_forced_deletion_takes_what_is_on_the_list_along() -> None:
    """A forced deletion drops the listed requests, and no staged entry remains."""
    repository = a_repository()
    repository.create_branch("dev", repository.commit_entries({"a": a_file(1)}))
    repository.stage({"s": a_file(1)}, "dev")
    put_on_list(repository, asked("begun", Change(staged=True)), branch="dev")
    repository.stage({"t": a_file(1)}, "dev")
    repository.delete_branch("dev", force=True)
    assert left_staged(repository) == []


def test_a_damaged_announcement_or_answer_keeps_nobody_waiting() -> None:
    """Unreadable announcements are deleted, and an unreadable answer affects only its own committer."""
    repository = a_repository(answers_kept=0)
    base = repository.commit_entries({"a": a_file(1)})
    for name in ("answered", "another"):
        with pytest.raises(NothingToCommitError):
            repository.commit_staged(request_id=name)
    store, here = repository._key_value, scope(MAIN, repository.branch())
    repository._records.announce(here, Announcement(asked("torn", Change(staged=True)), base))
    (torn,) = [entry.key for entry in store.notes(REQUESTS)]
    store.note(REQUESTS, torn, b"{")
    (recorded,) = [entry.key for entry in store.scan("answers") if b'"answered"' in entry.value]
    store.set("answers", recorded, b"{")
    repository._records.announce(here, Announcement(asked("answered", Change(staged=True)), base))
    for number in range(2):
        assert f"n/{number}" in repository.entries(repository.commit_entries({f"n/{number}": a_file(1)}))
    assert [waiting.request.id for waiting in repository._records.announced(here)] == ["answered"]
    assert torn not in [entry.key for entry in store.notes(REQUESTS)]
    with pytest.raises(DamageError, match=r"the answer .* cannot be read"):
        repository.commit_staged(request_id="answered")
