"""Readers and writers of staged entries during commits (V5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracelake._errors import ContentionError
from tracelake.storage import (
    Entry,
    Expected,
    Indeterminate,
    MemoryKeyValueStore,
    MemoryObjectStore,
    Outcome,
)
from tracelake.versions.branch_store import MAIN, BranchRecords
from tracelake.versions.model import Change, FileAt, Request
from tracelake.versions.protocol import seal
from tracelake.versions.repository import Repository


def a_file(number: int) -> FileAt:
    return FileAt("0" * 64, number)


class Meddled(MemoryKeyValueStore):
    """Store that calls an action before each scan of staged entries."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Callable[[], None] | None = None

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        meddle, self.meddle = self.meddle, None
        if meddle is not None and partition == "staged":
            meddle()
        self.meddle = meddle
        return super().scan(partition, start, stop, limit)


@pytest.mark.parametrize("commits", [1, 6])
def test_v5_a_read_between_commits_is_whole_or_says_that_it_is_not(commits: int) -> None:
    """A reader that repeatedly loses against commits fails instead of returning less than was acknowledged (V5)."""
    store = Meddled()
    repository = Repository(store, MemoryObjectStore(), answers_retained=4)
    records = BranchRecords(store)
    count = 0

    def stage_and_seal() -> None:
        nonlocal count
        count += 1
        repository.stage({"x": a_file(count)})
        at = records.read(MAIN)
        request = Request(f"r{count}", Change(staged=True), "", "", "", {})
        records.swap(MAIN, at, seal(at.record, [request], f"t{count}", 0), is_mine=lambda _: False)

    def go_on() -> None:
        repository._committer.finish(MAIN, records.read(MAIN))
        for number in range(commits - 1):
            repository.commit_entries({"y": a_file(10 * count + number)})
        stage_and_seal()

    stage_and_seal()
    store.meddle = go_on
    if commits == 1:
        assert repository.uncommitted()["x"].size_bytes >= 1  # type: ignore[union-attr]  # a file
    else:
        with pytest.raises(ContentionError, match="too many commits"):
            repository.uncommitted()
    store.meddle = None
    assert repository.uncommitted()["x"] == a_file(count)


class LateWrites(MemoryKeyValueStore):
    """Store that delays the first write of a staged entry and reports its outcome as unknown."""

    late: Callable[[], object] | None = None

    def set(self, partition: str, key: str, value: bytes) -> str:
        if partition == "staged" and self.late is None:
            self.late = lambda: super(LateWrites, self).set(partition, key, value)
            raise TimeoutError
        return super().set(partition, key, value)

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        if partition == "staged" and self.late is None:
            self.late = lambda: super(LateWrites, self).set_if(partition, key, value, expected)
            return Indeterminate("lost", "no reply")
        return super().set_if(partition, key, value, expected)


def test_v5_a_write_that_lands_late_does_not_undo_a_later_one() -> None:
    """A late first write does not undo a second, acknowledged one (V5)."""
    store = LateWrites()
    records = BranchRecords(store)
    try:
        records.stage("t", "x", a_file(1))
    except TimeoutError:
        assert store.get("staged", "t/x") is None
    records.stage("t", "x", a_file(2))
    assert store.late is not None
    store.late()
    assert records.staged("t") == (("x", a_file(2)),)
