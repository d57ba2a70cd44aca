"""Garbage collection of a repository: what nothing leads to goes two epochs later; all else stays whole."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.patience import HANG_S
from tracelake._errors import (
    ConflictError,
    DamageError,
    ExpiredError,
    NothingToCommitError,
    RefNotFoundError,
    UsageError,
)
from tracelake.datasets.files import read_file, write_file
from tracelake.limits import ANSWERS_KEPT_EPOCHS
from tracelake.storage import MemoryKeyValueStore, MemoryObjectStore
from tracelake.versions.branches import BranchAt
from tracelake.versions.collect import CollectedCommits, RepositoryCollector
from tracelake.versions.entries import Staged, Under
from tracelake.versions.model import (
    Answer,
    BranchRecord,
    Change,
    ChangeSet,
    Commit,
    FileAt,
    Metarange,
    OldAnswer,
    Range,
    Request,
    RequestKind,
    TableAt,
)
from tracelake.versions.objects import FILES, Content, file_path, folder_of, id_of, path_of
from tracelake.versions.protocol import is_forgotten, known_tokens, seal
from tracelake.versions.store import Repository


class World:
    """A repository in memory, and its collector."""

    def __init__(self) -> None:
        self.key_value, self.objects = MemoryKeyValueStore(), MemoryObjectStore()
        self.repository = self.opened()

    def opened(self) -> Repository:
        """Open it anew: nothing is remembered."""
        return Repository(self.key_value, self.objects)

    def collect(self, *, dry_run: bool = False) -> CollectedCommits:
        """Collect once; every call begins an epoch."""
        return RepositoryCollector(self.key_value, self.objects).collect(epoch_min_s=0.0, dry_run=dry_run)

    def commit(self, path: str, number: int, branch: str = "main") -> str:
        """Commit one entry."""
        return self.repository.commit_entries({path: TableAt("s", number)}, branch, message=path)

    def file(self, text: str) -> FileAt:
        """Write a file, as whoever adds an example does."""
        return write_file(self.objects, text.encode(), self.repository.epoch())

    def files(self) -> set[str]:
        """Return the paths of all files."""
        return {path for path in self.paths() if path.startswith(FILES)}

    def paths(self) -> set[str]:
        """Return the paths of all objects."""
        return {info.path for info in self.objects.list("")}

    def check(self) -> None:
        """Read every commit that a ref leads to, with all of its entries and their files."""
        repository = self.opened()
        heads = [record.head for record in repository.branches().values()] + list(repository.tags().values())
        todo, seen = [head for head in heads if head], set()
        while todo:
            commit_id = todo.pop()
            if commit_id not in seen:
                seen.add(commit_id)
                for named in repository.entries(commit_id).values():
                    if isinstance(named, FileAt):
                        read_file(self.objects, named)
                todo.extend(repository.commit(commit_id).parents)


def test_a_deleted_branch_goes_and_what_others_lead_to_stays() -> None:
    """Its commits go with the second collection; shared ones, tagged ones and merged ones stay."""
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
        with pytest.raises(DamageError, match="is gone"):
            world.opened().commit(commit_id)
    assert world.collect().objects == 0


def test_a_collector_that_was_faster_is_no_damage() -> None:
    """Two collect at once: what the one has deleted since the other listed it is garbage that is gone, no more."""
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
    """It tells what would go now, and begins no epoch."""
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
    """What a collection may be about to delete is never named anew: the same content has another name by then."""
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
    """A helper that slept through two collections publishes nothing that they may have deleted."""
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


def test_files_stay_as_long_as_an_entry_names_them() -> None:
    """A file that is staged, committed, or in a commit that is reached stays; one that nothing names goes."""
    world = World()
    files = {name: world.file(name) for name in "abcd"}
    world.repository.commit_entries({"f/a": files["a"]}, message="a")
    world.repository.commit_entries({"f/a": None}, message="gone from the head, not from the history")
    world.repository.stage({"f/b": files["b"]})
    many = {f"many/{number}": files["c"] for number in range(100)}
    world.repository.commit_entries(many, message="many")
    assert len([path for path in world.paths() if path.startswith(folder_of(ChangeSet))]) == 1
    assert world.collect().objects == 0, "all of it is of this epoch or the one before"
    world.collect()
    assert world.files() == {file_path(files[name]) for name in "abc"}
    assert not [path for path in world.paths() if path.startswith(folder_of(ChangeSet))]
    world.repository.discard()
    world.collect()
    assert file_path(files["b"]) not in world.paths()
    world.check()


def test_a_file_of_an_earlier_epoch_is_written_again_or_refused() -> None:
    """A client that sleeps between upload and stage, or commit, names what is there, or is told that it is gone."""
    world = World()
    slept = world.file("slept")
    world.collect()
    world.collect(dry_run=True)
    world.repository.stage({"f/staged": slept})
    world.repository.commit_entries({"f/committed": slept})
    late = world.file("late")
    for _ in range(3):
        world.collect()
    for act in (
        lambda: world.repository.stage({"f/late": late}),
        lambda: world.repository.commit_entries({"f/late": late}),
        lambda: world.repository.commit_entries({f"f/{number}": late for number in range(100)}),
    ):
        with pytest.raises(ExpiredError, match="write it again"):
            act()
    head = world.repository.commit_staged()
    assert world.opened().entries(head) == {"f/staged": slept, "f/committed": slept}
    world.check()


def test_the_same_file_in_a_later_epoch_is_no_change_and_no_conflict() -> None:
    """Two branches that have the same bytes under names of two epochs have the same entry."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    world.repository.commit_entries({"f": world.file("same")}, "side")
    world.collect()
    head = world.repository.commit_entries({"f": world.file("same")})
    assert len(world.files()) == 2
    assert world.repository.commit_entries({"f": world.file("same")}) == head
    assert list(world.repository.diff(head, world.repository.head("side") or "")) == []
    world.repository.merge(world.repository.head("side") or "", message="no conflict")
    world.check()


def test_what_was_staged_long_ago_is_committed_while_a_collector_looks() -> None:
    """Forty commits come between its look at what is staged and its look at heads: their files stay."""
    world = World()
    world.commit("a", 0)
    world.repository.stage({"f": world.file("f")})
    world.collect()
    world.collect()
    collector = RepositoryCollector(world.key_value, world.objects)
    under, looks = collector._records.under, iter(range(9))

    def under_after_commits(token: str, start: str = "", stop: str | None = None) -> Under:
        if next(looks) == 0:
            world.repository.commit_staged(message="f")
            for number in range(40):
                world.commit("a", number + 1)
        return under(token, start, stop)

    vars(collector._records)["under"] = under_after_commits
    collector.collect(epoch_min_s=0.0)
    world.check()


def test_an_entry_whose_writer_was_late_does_not_take_an_acknowledged_one_with_it() -> None:
    """It names a file that was collected before it was staged: what it was put on is committed, and else nothing."""
    world = World()
    late = world.file("late")
    world.repository.stage({"f": world.file("acknowledged"), "table": TableAt("s", 1)})
    for _ in range(3):
        world.collect()
    token = world.repository.branch().staging
    assert file_path(late) not in world.paths()
    for path in ("f", "alone", "table"):  # as a writer does that read the token before all these collections
        world.repository._records.stage(token, path, late)
    head = world.repository.commit_staged()
    assert world.opened().entries(head) == {"f": world.file("acknowledged"), "table": TableAt("s", 1)}
    world.check()


def sealed(world: World, *requests: Request, later: str = "later") -> None:
    """Seal requests on `main`, as a committer does that is killed then."""
    records = world.repository._records
    at = records.read("main")
    records.swap("main", at, seal(at.record, requests, later, 0), is_mine=lambda _: False)


def test_what_a_sealed_request_names_stays() -> None:
    """Entries under a token that is sealed, files and sets of changes that a request names, until it is built."""
    world = World()
    world.commit("a", 1)
    staged, named, listed = world.file("staged"), world.file("named"), world.file("listed")
    world.repository.stage({"f/staged": staged})
    made = ChangeSet((("f/listed", listed),), "nonce")
    world.repository._contents.write({id_of(made): made})
    change = Change((("f/named", named),), (id_of(made),))
    sealed(world, request("staged", Change(staged=True)), request("named", change))
    for _ in range(4):
        world.collect()
    head = world.commit("b", 1)
    assert {path for path in world.opened().entries(head) if path.startswith("f/")} == {
        "f/staged",
        "f/named",
        "f/listed",
    }
    world.check()


def request(name: str, operation: RequestKind) -> Request:
    """Return a request that says nothing of itself."""
    return Request(name, operation, "", "", "", {})


def test_what_is_staged_anew_under_another_token_is_seen_under_one() -> None:
    """It goes from the one to the other between a collector's looks at both: then the record names the one no more."""
    world = World()
    world.repository.stage({"f": world.file("f")})
    world.collect()
    world.collect()
    sealed(world, request("refused", Change(staged=True)), later="0")
    records = world.repository._records
    before, to = records.read("main").record.sealed[0].token, records.read("main").record.staging
    assert to < before, "so it is looked at first"
    collector = RepositoryCollector(world.key_value, world.objects)
    under, looks = collector._records.under, iter(range(9))

    def under_while_it_moves(token: str, start: str = "", stop: str | None = None) -> Under:
        if next(looks) == 1:
            for path, (named, *_) in records.layers(before):
                records.stage(to, path, named)
            at = records.read("main")
            records.swap("main", at, replace(at.record, sealed=()), is_mine=lambda _: False)
            records.unstage(before)
        return under(token, start, stop)

    vars(collector._records)["under"] = under_while_it_moves
    collector.collect(epoch_min_s=0.0)
    world.repository.commit_staged()
    assert world.opened().entries(world.repository.resolve("main")) == {"f": world.file("f")}
    world.check()


def test_the_source_of_a_pending_merge_stays() -> None:
    """Its branch is deleted and collected after a helper found that it leads there, and before it cuts."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    source = world.commit("b", 1, "side")
    world.collect()
    contents = world.repository._committer._contents
    write, builds = contents.write, iter(range(9))

    def write_late(records: Mapping[str, Content]) -> None:
        write(records)
        if next(builds) == 0:
            world.opened().delete_branch("side")
            world.collect()

    vars(contents)["write"] = write_late
    world.repository.merge(source, message="m")
    assert next(builds) == 1, "what was built before is published after"
    world.check()


def test_a_file_that_goes_between_build_and_cut_is_not_published() -> None:
    """Its entry was staged late, behind the look of the collection that took it, and in front of a helper's."""
    world = World()
    world.commit("a", 1)
    world.collect()
    late = world.file("late")
    world.repository.stage({"in": TableAt("s", 1)})
    world.collect()
    token = world.repository.branch().staging
    layers, looks = world.repository._records.layers, iter(range(9))

    def layers_late(of: str, start: str = "", stop: str | None = None) -> Staged:
        if next(looks) == 0:
            world.collect()
            world.repository._records.stage(token, "late", late)
        return layers(of, start, stop)

    vars(world.repository._records)["layers"] = layers_late
    head = world.repository.commit_staged()
    assert world.opened().entries(head) == {"a": TableAt("s", 1), "in": TableAt("s", 1)}
    world.check()


def test_main_is_fenced_before_it_has_a_record() -> None:
    """A first commit that read its epoch before two collections is not built in it: its objects could go at once."""
    world = World()
    collections = iter(range(2))
    swap = world.repository._records.swap

    def swap_late(
        branch: str, at: BranchAt, record: BranchRecord, is_mine: Callable[[BranchRecord], bool]
    ) -> tuple[bool, BranchAt]:
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
    """Where an object cannot be read, nothing of the kinds that it leads to is deleted; all others are."""
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
    """What it names is not known, and it may be a file: commits that nothing leads to go, and files stay."""
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
    """It stops no collection; `verify` names it."""
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
    """Ranges that commits share are read once, and no commit after another has been looked at."""

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
    """Threads commit, branch, merge and delete branches, while others collect: what refs lead to stays whole."""
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
    """A refusal goes two epochs later; that to an id of the caller's is good for many, while its branch is there."""
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


def test_a_deleted_branch_takes_all_with_it_that_was_staged_on_it() -> None:
    """What is staged now, what a request took that nobody built, and what was committed of late."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    tokens = []
    for number in range(3):
        world.repository.stage({"s": TableAt("s", number)}, "side")
        tokens.append(world.repository.branch("side").staging)
        if number == 0:
            world.repository.commit_staged("side")
        if number == 1:
            records = world.repository._records
            at = records.read("side")
            record = seal(at.record, [request("killed", Change(staged=True))], "later", 0)
            records.swap("side", at, record, is_mine=lambda _: False)
    assert all(world.repository._records.staged(token) for token in tokens)
    world.repository.delete_branch("side", force=True)
    assert not any(world.repository._records.staged(token) for token in tokens)


def test_what_a_killed_process_left_staged_goes_with_a_collection() -> None:
    """It deleted a branch, published a commit or discarded, and was killed before it erased entries; or wrote late."""
    world = World()
    world.repository.create_branch("side", world.commit("a", 1))
    world.repository.stage({"deleted": world.file("deleted")}, "side")
    world.repository.stage({"discarded": world.file("discarded")})
    records = world.repository._records
    dead = records.read("main").record.staging
    killed = world.opened()
    vars(killed._records)["unstage"] = lambda _: None
    killed.discard()
    killed.delete_branch("side", force=True)
    for number in range(40):
        killed.stage({"committed": TableAt("s", number)})
        killed.commit_staged()
    world.repository.stage({"staged": world.file("staged")})
    records.stage(dead, "late", TableAt("s", 1))
    known = known_tokens(records.read("main").record)
    assert len(records.tokens() - known) > 3
    world.collect(dry_run=True)
    assert len(records.tokens() - known) > 3, "a dry run erases nothing"
    world.collect()
    assert records.tokens() == {token for token in known if records.has_staged(token)}
    assert len(records.tokens()) > 32, "who reads what was committed of late may look for it"
    assert dict(world.opened().staged()) == {"staged": world.file("staged")}


def test_entries_that_are_staged_while_a_collector_looks_stay() -> None:
    """A branch comes to be, and something is staged on it, before, between or after its looks."""
    world = World()
    first = world.commit("a", 1)
    collector = RepositoryCollector(world.key_value, world.objects)
    tokens, every = collector._records.tokens, collector._records.all

    def make(name: str) -> None:
        world.repository.create_branch(name, first)
        world.repository.stage({"s": TableAt("s", 1)}, name)

    def tokens_late() -> set[str]:
        make("before")
        found = tokens()
        make("between")
        vars(collector._records)["all"] = all_late
        return found

    def all_late() -> dict[str, BranchAt]:
        del vars(collector._records)["all"]
        found = every()
        make("after")
        return found

    vars(collector._records)["tokens"] = tokens_late
    collector.collect(epoch_min_s=0.0)
    for name in ("before", "between", "after"):
        assert world.repository.staged(name) == (("s", TableAt("s", 1)),)


def test_a_clock_that_was_ahead_once_does_not_end_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch that a machine ten years ahead began ends when others collect, and not in ten years."""
    world, now_s = World(), 1e9
    monkeypatch.setattr("tracelake.versions.collect.time", SimpleNamespace(time=lambda: now_s))
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
