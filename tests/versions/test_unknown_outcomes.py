"""A store failure during a commit: the error says if the outcome is unknown, and a retry is safe (V4)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import IndeterminateError, StorageError, UsageError
from tracelake.storage import (
    ABSENT,
    Expected,
    Indeterminate,
    MemoryKeyValueStore,
    MemoryObjectStore,
    ObjectInfo,
    Outcome,
)
from tracelake.tasks.runners import InProcess
from tracelake.versions import committer
from tracelake.versions.branch_store import BRANCHES
from tracelake.versions.model import FileAt
from tracelake.versions.repository import Repository

CALLS = {
    MemoryKeyValueStore: ("get", "scan", "keys", "set", "set_if", "delete_if", "note", "notes", "forget"),
    MemoryObjectStore: ("put", "create", "get", "get_range", "head", "list", "delete"),
}
READS = ("get", "scan", "keys", "notes", "get_range", "head", "list")
REQUEST = "nightly-17"
QUESTION = {"key": "input.value", "value": {"stringValue": "a question"}}


class Outage:
    """Store that fails from its n-th call on, once or for good. The first failing write still happens."""

    def __init__(self, at: int, *, for_good: bool) -> None:
        self.at, self.for_good = at, for_good
        self.calls = 0

    @property
    def met(self) -> bool:
        """Whether a call has failed."""
        return self.calls >= self.at

    @contextmanager
    def over(self) -> Iterator[None]:
        """Make all in-memory stores fail this way."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "sleep", lambda _: None)
            for kind, names in CALLS.items():
                for name in names:
                    patch.setattr(kind, name, self._failing(name, getattr(kind, name)))
            yield

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls != self.at and not (self.for_good and self.met):
                return real(*given, **options)
            if name not in READS and not self.calls > self.at:
                real(*given, **options)
                if name in ("set_if", "delete_if"):
                    return Indeterminate("unknown", "the reply was lost")
            raise StorageError(f"the store was cut off at {name}")

        return call


def main_commit(lake: Lake) -> object:
    return lake.branch("main").commit("what is staged", committer="me", request_id=REQUEST)


def merge(lake: Lake) -> object:
    return lake.merge("dev", committer="me", request_id=REQUEST)


def revert(lake: Lake) -> object:
    return lake.branch("main").revert("main", committer="me", request_id=REQUEST)


def cherry_pick(lake: Lake) -> object:
    return lake.branch("main").cherry_pick("dev", committer="me", request_id=REQUEST)


def create_dataset(lake: Lake) -> object:
    return lake.datasets.create("new", message="made", committer="me", request_id=REQUEST)


def delete_dataset(lake: Lake) -> object:
    return lake.datasets.delete("d", message="deleted", committer="me", request_id=REQUEST)


def add_examples(lake: Lake) -> object:
    dataset = lake.datasets.get("d")
    return dataset.add(where="true", message="added", committer="me", request_id=REQUEST)


def remove_examples(lake: Lake) -> object:
    dataset = lake.datasets.get("d")
    (known,) = _examples
    return dataset.remove([known], message="removed", committer="me", request_id=REQUEST)


_examples: list[str] = []
OPERATIONS = (
    main_commit,
    merge,
    revert,
    cherry_pick,
    create_dataset,
    delete_dataset,
    add_examples,
    remove_examples,
)


@contextmanager
def prepared(operation: Callable[[Lake], object], folder: Path) -> Iterator[Lake]:
    """Open a new lake with changes to commit, merge, revert and remove."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as lake:
        if operation in (add_examples, remove_examples):
            path = folder / "spans.jsonl"
            path.write_bytes(a_line(a_span(1, 1, attributes=[QUESTION])))
            lake.ingest(path, runner=InProcess())
        dataset = lake.datasets.create("d", message="made", committer="me")
        if operation is remove_examples:
            dataset.add(where="true", message="added", committer="me")
            _examples[:] = [example.id for example in dataset.examples()]
        lake.create_branch("dev")
        lake.datasets.create("e", branch="dev", message="made on dev", committer="me")
        if operation is main_commit:
            lake.datasets.create("staged")
        yield lake


def made(lake: Lake) -> list[str]:
    """Return the commits of the request."""
    repository = lake._opened.repository
    return [id for id, commit in repository.log(repository.head() or "") if commit.request == REQUEST]


def fail_everywhere(operation: Callable[[Lake], object], folder: Path, *, for_good: bool) -> set[str]:
    """Fail at each call of an operation in turn; return the outcomes that occurred."""
    outcomes: set[str] = set()
    at = 0
    while True:
        at += 5 if operation in (add_examples, remove_examples) else 1 if for_good else 2
        with prepared(operation, folder) as lake:
            outage = Outage(at, for_good=for_good)
            outcome, said = "done", ""
            with outage.over():
                try:
                    operation(lake)
                except IndeterminateError as error:
                    outcome, said = "unknown", str(error)
                except StorageError:
                    outcome = "not done"
            # Helps to finish the pending work, after short polls for the one that left it.
            with mock.patch.object(committer, "_COMMIT_POLL_MAX_S", 0.001):
                lake._opened.repository.commit_entries({"other": FileAt("0" * 64, at)})
            assert outcome != "unknown" or not made(lake) or REQUEST in said, said
            if outcome == "not done":
                assert made(lake) == [], f"call {at} failed, and the commit is there"
            operation(lake)
            assert len(made(lake)) == 1, f"a retry after call {at} failed has made {len(made(lake))} commits"
            outcomes.add(outcome)
            if not outage.met:
                return outcomes


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("for_good", [False, True])
def test_v4_a_retry_with_the_same_request_id_commits_once(
    operation: Callable[[Lake], object], for_good: bool, tmp_path: Path
) -> None:
    """If an error does not report an unknown outcome, nothing was committed, whichever put, list or get fails (V4)."""
    outcomes = fail_everywhere(operation, tmp_path, for_good=for_good)
    assert "done" in outcomes
    assert "unknown" in outcomes or not for_good


class LateStore(MemoryKeyValueStore):
    """Store whose first write to a branch is delayed, with its reply lost."""

    late: tuple[str, bytes] | None = None

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """Write, or delay the write."""
        if partition == BRANCHES and self.late is None:
            self.late = key, value
            return Indeterminate("unknown", "the reply was lost")
        return super().set_if(partition, key, value, expected)

    def land(self) -> None:
        """Make the delayed write."""
        assert self.late is not None
        super().set_if(BRANCHES, *self.late, ABSENT)


def check_first_commit_that_lands_late() -> None:
    """Check that a first commit whose write is in flight has an unknown outcome if the next read fails."""
    store, objects = LateStore(), MemoryObjectStore()
    repository = Repository(store, objects)
    entries = {"a": FileAt("0" * 64, 1)}

    def cut_off(_prefix: str) -> Iterator[ObjectInfo]:
        if store.late is not None:
            raise StorageError("the store was cut off at list")
        return iter(())

    with mock.patch.object(objects, "list", cut_off), pytest.raises(IndeterminateError):
        repository.commit_entries(entries, request_id=REQUEST)
    store.land()
    made = repository.commit_entries(entries, request_id=REQUEST)
    assert [(id, commit.request) for id, commit in repository.log(made)] == [(made, REQUEST)]


def test_a_first_commit_that_lands_late() -> None:
    """See `check_first_commit_that_lands_late`."""
    check_first_commit_that_lands_late()


def test_the_error_names_an_id_for_the_retry(tmp_path: Path) -> None:
    """If the caller chose no request id, the error message names one for the retry."""
    for at in range(1, 1000):
        with prepared(main_commit, tmp_path) as lake:
            with Outage(at, for_good=True).over():
                try:
                    lake.branch("main").commit("m", committer="me")
                except IndeterminateError as error:
                    said = str(error)
                except StorageError:
                    continue
            named = said.partition("the same request id, ")[2].partition(" ")[0]
            first = lake.branch("main").commit("m", committer="me", request_id=named)
            assert lake.branch("main").commit("m", committer="me", request_id=named) == first
            with pytest.raises(UsageError, match="has already made commit"):
                lake.branch("main").commit("another", committer="me", request_id=named)
            return


def test_a_branch_is_created_once(tmp_path: Path) -> None:
    """Creating a branch again with its request id returns it; with another id or none, its name is taken."""
    with prepared(merge, tmp_path) as lake:
        lake.create_branch("new", "dev", request_id="one")
        assert lake.create_branch("new", "dev", request_id="one").head == lake.branch("dev").head
        for other in (None, "two"):
            with pytest.raises(UsageError, match="branch 'new' already exists"):
                lake.create_branch("new", "dev", request_id=other)
