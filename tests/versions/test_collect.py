"""Garbage collection of a repository: unreachable objects are deleted two epochs later; all others stay whole."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tests.patience import HANG_S
from tests.versions.collected_world import World
from tracelake._errors import (
    ConflictError,
    DamageError,
    NothingToCommitError,
    UsageError,
)
from tracelake.storage import MemoryObjectStore
from tracelake.versions.branch_store import BranchSnapshot
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import (
    Answer,
    BranchRecord,
    ChangeSet,
    Commit,
    Metarange,
    OldAnswer,
    Range,
    TableAt,
)
from tracelake.versions.protocol import ANSWERS_KEPT_EPOCHS, is_forgotten
from tracelake.versions.tree import Content, path_of


def test_a_deleted_branch_goes_and_what_others_lead_to_stays() -> None:
    """The second collection deletes the commits of a deleted branch, except shared, tagged and merged ones."""
    world = World()
    first = world.commit("a", 1)
    world.repository.create_branch("side", first)
    world.repository.create_branch("merged", first)
    lost = [world.commit(f"side/{number}", number, "side") for number in range(3)]
    kept = world.commit("kept", 1, "merged")
    world.repository.merge(kept, message="merge")
    world.repository.tag("v1", lost[0])
    world.repository.delete_branch("side")
    world.repository.delete_branch("merged")
    assert world.collect().objects == 0
    collected = world.collect()
    assert (collected.commits, collected.objects) == (2, 6)
    world.check()
    assert world.opened().entries(world.repository.resolve("v1"))["side/0"] == TableAt("s", 0)
    for commit_id in lost[1:]:
        with pytest.raises(DamageError, match="is missing"):
            world.opened().commit(commit_id)
    assert world.collect().objects == 0


def test_a_collector_that_was_faster_is_no_damage() -> None:
    """If two collectors run, an object that one deleted after the other listed it is no damage."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    lost = path_of(Commit, world.commit("b", 1, "side"))
    world.repository.delete_branch("side")
    world.collect()

    class Overtaken(MemoryObjectStore):
        def get(self, path: str) -> bytes:
            if path == lost:
                self.delete(lost)
            return super().get(path)

    world.objects.__class__ = Overtaken
    assert world.collect().objects == 2, "its metarange and its range; the commit went before"
    world.check()


def test_a_dry_run_deletes_nothing() -> None:
    """A dry run reports the garbage and begins no epoch."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    world.commit("b", 1, "side")
    world.repository.delete_branch("side")
    world.collect()
    before = world.paths()
    assert world.collect(dry_run=True).objects == world.collect(dry_run=True).objects == 0
    assert world.paths() == before
    assert world.collect().objects == 3
    assert len(world.paths()) == len(before) - 3


def test_the_same_entries_again_are_other_objects_in_another_epoch() -> None:
    """The same entries have another object name in a later epoch, so a collector never deletes a newly named
    object."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    once = world.repository.commit(world.commit("b", 1, "side")).metarange
    world.repository.delete_branch("side")
    world.collect()
    again = world.repository.commit(world.commit("b", 1)).metarange
    assert again != once
    assert world.collect().commits == 1
    world.check()


def test_what_was_built_two_epochs_ago_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that slept through two collections rebuilds the commit, because they may have deleted its objects."""
    world = World()
    world.commit("a", 1)

    committer = world.repository._committer
    write, collections = committer._contents.write, iter(range(3))

    def write_then_sleep(records: dict[str, Content]) -> None:
        write(records)
        if next(collections, None) is not None:
            world.collect()
            world.collect()

    monkeypatch.setattr(committer._contents, "write", write_then_sleep)
    head = world.commit("b", 2)
    assert world.repository.commit(head).epoch == 6
    world.check()
    assert world.opened().entries(head)["b"] == TableAt("s", 2)


def test_main_is_fenced_before_it_has_a_record() -> None:
    """A first commit that read its epoch before two collections is rebuilt, so its objects are not collected."""
    world = World()
    collections = iter(range(2))
    swap = world.repository._records.swap

    def swap_late(
        branch: str, at: BranchSnapshot, record: BranchRecord, is_mine: Callable[[BranchRecord], bool]
    ) -> tuple[bool, BranchSnapshot]:
        if next(collections, None) == 0:
            world.collect()
            world.collect()
        return swap(branch, at, record, is_mine)

    vars(world.repository._records)["swap"] = swap_late
    head = world.commit("a", 1)
    assert world.repository.commit(head).epoch == 2
    world.check()


@pytest.mark.parametrize(
    ("kind", "stays"),
    [
        (Commit, {"commits", "metaranges", "ranges", "files"}),
        (Metarange, {"ranges", "files"}),
        (Range, {"files"}),
    ],
)
@pytest.mark.parametrize("is_gone", [True, False])
def test_damage_keeps_what_may_lie_behind_it(kind: type[Content], stays: set[str], is_gone: bool) -> None:
    """If an object cannot be read, objects of the kinds that it leads to are kept; all others are collected."""
    world = World()
    first = world.commit("a", 1)
    world.repository.create_branch("side", first)
    world.repository.commit_entries({"f": world.file("lost")}, "side")
    world.repository.commit_entries({f"many/{n}": TableAt("s", n) for n in range(100)}, "side")
    garbage = world.paths()
    world.repository.delete_branch("side")
    commit = world.repository.commit(first)
    metarange = world.repository._contents.read(Metarange, commit.metarange)
    damaged = path_of(kind, {Commit: first, Metarange: commit.metarange, Range: metarange.ranges[0].id}[kind])
    reached = {
        path_of(Commit, first),
        path_of(Metarange, commit.metarange),
        path_of(Range, metarange.ranges[0].id),
    }
    world.collect()
    world.objects.delete(damaged) if is_gone else world.objects.put(damaged, b"altered")
    collected = world.collect()
    assert collected.indexes is None
    assert [damaged in what for what in collected.damage] == [True]
    kinds = {path.removeprefix("versions/").partition("/")[0] for path in world.paths() & garbage - reached}
    assert kinds == stays
    assert world.collect().objects == 0


def test_a_staged_entry_that_is_damaged_keeps_files_alone() -> None:
    """A damaged staged entry may name a file, so files are kept; unreachable commits are still collected."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    world.repository.commit_entries({"f": world.file("lost")}, "side")
    world.repository.delete_branch("side")
    world.repository.stage({"damaged": world.file("staged"), "whole": world.file("whole")})
    world.key_value.set("staged", f"{world.repository.branch().staging}/damaged", b"torn")
    world.collect()
    collected = world.collect()
    assert (collected.commits, len(world.files())) == (1, 3)
    assert "staged entry damaged" in collected.damage[0]


def test_a_recorded_answer_that_is_damaged_stays_and_the_others_are_forgotten() -> None:
    """A damaged recorded answer stays and stops no collection; `verify` names it."""
    world = World()
    world.commit("a", 1)
    for _ in range(40):
        world.repository.commit_entries({"a": TableAt("s", 1)})
    first, *others = world.key_value.scan("answers")
    assert others
    world.key_value.set("answers", first.key, b"torn")
    for _ in range(3):
        assert world.collect().damage == ()
    assert [entry.key for entry in world.key_value.scan("answers")] == [first.key]


def test_each_object_is_read_once_and_commits_all_at_once() -> None:
    """Shared ranges are read once, and all commits are read concurrently."""

    class Counting(MemoryObjectStore):
        def get(self, path: str) -> bytes:
            reads.append(path)
            return super().get(path)

    reads: list[str] = []
    world = World()
    world.repository.commit_entries({f"t/{number}": TableAt("s", 0) for number in range(1_000)})
    world.repository.create_branch("side", world.commit("t/1", 1))
    for number in range(20):
        world.commit(f"t/{number}", 2, "side" if number % 2 else "main")
    world.repository.delete_branch("side")
    world.collect()
    world.objects.__class__ = Counting
    assert world.collect().commits == 10
    assert len(reads) == len(set(reads))
    kinds = [path.split("/")[1] for path in reads]
    assert kinds[:22] == ["commits"] * 22, "as they are listed, and not one parent after the other"
    counted = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counted["metaranges"] == 22
    assert counted["ranges"] < 22 + 10


def test_collections_beside_committers_leave_every_commit_whole() -> None:
    """Concurrent collections keep everything that refs lead to while threads commit, branch, merge and delete."""
    world = World()
    world.commit("a", 0)

    def work(seed: int) -> None:
        rng, repository = random.Random(seed), world.opened()
        for number in range(20):
            name = f"b{seed}-{number % 3}"
            with contextlib.suppress(UsageError, NothingToCommitError, ConflictError):
                repository.create_branch(name, repository.resolve("main"))
            with contextlib.suppress(UsageError):
                repository.commit_entries({f"f/{rng.randrange(9)}": TableAt("s", seed)}, name, message="b")
            with contextlib.suppress(UsageError, NothingToCommitError, ConflictError):
                repository.merge(repository.resolve(name), message="m", prefer="source")
            if rng.random() < 0.5:
                with contextlib.suppress(UsageError):
                    repository.delete_branch(name)

    def collect() -> None:
        for _ in range(20):
            world.collect()

    with ThreadPoolExecutor(5) as threads:
        working = [threads.submit(work, seed) for seed in range(3)]
        for running in (*working, threads.submit(collect), threads.submit(collect)):
            running.result(timeout=HANG_S)
    world.check()
    assert len([path for path in world.paths() if path.startswith(path_of(ChangeSet, "")[:17])]) == 0


def test_answers_are_kept_for_as_long_as_they_may_be_asked_for() -> None:
    """Refusals stay for two epochs, answers to a caller's request id longer, while the branch exists."""
    world = World()
    first = world.commit("a", 1)
    world.repository.create_branch("side", first)
    for number in range(100):
        world.repository.commit_entries({"a": TableAt("s", 1)})
        world.repository.commit_entries({"a": TableAt("s", 1)}, "side", request_id=f"id-{number}")
        told = world.repository.commit_entries({"b": TableAt("s", number)}, request_id=f"id-{number}")
    world.repository.delete_branch("side")
    before = len(world.key_value.scan("answers"))
    for _ in range(2):
        world.collect()
    after = len(world.key_value.scan("answers"))
    assert before > 200
    assert 50 < after < 100
    assert world.repository.commit_entries({"b": TableAt("s", 7)}, request_id="id-99") == told
    early = world.repository.commit_entries({"b": TableAt("s", 7)}, request_id="id-1")
    assert world.repository.commit(early).request == "id-1"
    newest = OldAnswer("main", Answer("id", remembered=True), 0)
    assert not is_forgotten(newest, ANSWERS_KEPT_EPOCHS, {"main"})
    assert is_forgotten(newest, ANSWERS_KEPT_EPOCHS + 1, {"main"})


def test_a_clock_that_was_ahead_once_does_not_end_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch that a machine ten years ahead began ends when others collect, and not in ten years."""
    world, now_s = World(), 1e9
    monkeypatch.setattr("tracelake.versions.gc.time", SimpleNamespace(time=lambda: now_s))
    collector = RepositoryCollector(world.key_value, world.objects)
    world.repository.create_branch("side", world.commit("a", 1))
    world.commit("b", 2, "side")
    world.repository.delete_branch("side")
    now_s += 10 * 365 * 86_400
    collector.collect(epoch_min_s=3_600)
    now_s = 1e9
    gone = 0
    for _ in range(3):
        gone += collector.collect(epoch_min_s=3_600).commits
        now_s += 3_600
    assert gone == 1
