"""Garbage collection of staged entries and files: acknowledged ones stay, those of deleted branches go."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from tests.versions.collected_world import World
from tracelake._errors import (
    ExpiredError,
)
from tracelake.versions.branch_store import BranchSnapshot, Staged, Under, scope
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import (
    Announcement,
    Change,
    ChangeSet,
    Request,
    RequestKind,
    TableAt,
)
from tracelake.versions.protocol import known_tokens, seal
from tracelake.versions.tree import Content, file_path, folder_of, id_of


def test_files_stay_as_long_as_an_entry_names_them() -> None:
    """A file that is staged, committed, or in a reachable commit stays; an unnamed one is deleted."""
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
    """A client that sleeps between upload and stage, or commit, names an existing file or gets an error."""
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
    """The same bytes on two branches, under names of two epochs, are one entry: no change and no conflict."""
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
    """Files stay although forty commits take their entries between the collector's looks at staging and at heads."""
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
    """A late entry whose file was collected does not hide an acknowledged one, which is committed alone."""
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
    """Seal requests on `main`, as a committer does that is then killed."""
    records = world.repository._records
    at = records.read("main")
    records.swap("main", at, seal(at.record, requests, later, 0), is_mine=lambda _: False)


def test_what_a_sealed_request_names_stays() -> None:
    """Entries under a sealed token, and files and change sets that a sealed request names, stay until it is built."""
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


def test_what_an_announced_request_names_stays() -> None:
    """Objects that an announced request names stay for any number of collections until it is sealed."""
    world = World()
    world.commit("a", 1)
    records, at = world.repository._records, world.repository._records.read("main")
    change = Change((("f", world.file("f")),))
    records.announce(scope("main", at.record), Announcement(request("named", change), at.record.head))
    for _ in range(4):
        world.collect()
    world.commit("b", 1)
    (answer,) = [one for one in records.read("main").record.done if one.request == "named"]
    assert not answer.refusal
    assert world.opened().entries(answer.commit)["f"] == world.file("f")
    world.check()


def request(name: str, operation: RequestKind) -> Request:
    """Return a request without a message."""
    return Request(name, operation, "", "", "", {})


def test_what_is_staged_anew_under_another_token_is_seen_under_one() -> None:
    """An entry moved to another token between the collector's two looks is seen under one of them."""
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
    """The source commit of a pending merge stays, even if its branch is deleted and collected before the cut."""
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
    """A commit is not published if a late entry's file was collected between build and cut."""
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


def test_a_deleted_branch_takes_all_with_it_that_was_staged_on_it() -> None:
    """Deleting a branch deletes everything staged on it, also for unbuilt requests and recent commits."""
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
    """Entries that a killed process, or a late writer, left after a delete, commit or discard are collected."""
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
    """Entries staged on a branch that is created before, during or after the collector's looks stay."""
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

    def all_late() -> dict[str, BranchSnapshot]:
        del vars(collector._records)["all"]
        found = every()
        make("after")
        return found

    vars(collector._records)["tokens"] = tokens_late
    collector.collect(epoch_min_s=0.0)
    for name in ("before", "between", "after"):
        assert world.repository.staged(name) == (("s", TableAt("s", 1)),)
