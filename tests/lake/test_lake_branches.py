"""Branches for users: commits, merges with conflicts, reverts, protection, and concurrent readers."""

from __future__ import annotations

import getpass
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import (
    Branch,
    BranchInfo,
    ConflictError,
    EntryChange,
    Lake,
    MergeConflict,
    NothingToCommitError,
    RefNotFoundError,
    UsageError,
)
from tracelake.search.searcher import SearchRequest
from tracelake.tasks.runners import InProcess
from tracelake.versions.model import FileAt, IndexAt


def ingest(lake: Lake, folder: Path, number: int) -> str:
    """Ingest a trace of two spans whose texts identify them; return the commit."""
    file = folder / f"{number}.jsonl"
    file.write_bytes(a_line(a_span(number, 0, note=f"word n{number}"), a_span(number, 1)))
    commit = lake.ingest(file, runner=InProcess()).commit
    assert commit is not None
    return commit


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake of two transactions."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        for number in range(2):
            ingest(lake, tmp_path, number)
        yield lake


def file(text: str) -> FileAt:
    """Return a reference to a file, which need not exist."""
    return FileAt(hashlib.sha256(text.encode()).hexdigest(), len(text))


def put(branch: Branch, **files: str | None) -> str:
    """Commit entries with these names."""
    entries = {name: None if text is None else file(text) for name, text in files.items()}
    branch._repository.stage(entries, branch.name)
    return branch.commit(f"put {', '.join(files)}", committer="ada")


def test_a_branch_begins_at_a_commit_and_goes_its_own_way(lake: Lake, tmp_path: Path) -> None:
    """A branch has the entries of its first commit; later transactions are on main alone, until they are merged."""
    work = lake.create_branch("work", at="main~1")
    assert work.head == lake.log()[1].id
    assert lake.table("spans", at="work").info().rows == 2
    put(work, note="one")
    lake.objects.put(f"files/000000/{file('one').sha256}", b"one")
    ingest(lake, tmp_path, 2)
    assert [info.name for info in lake.branches()] == ["main", "work"]
    assert lake.branches()[1] == BranchInfo("work", work.head, protected=False, staged=0)
    assert next(commit.message for commit in work.log()) == "put note"
    assert len(work.log(limit=1)) == 1
    made = work.merge("main")
    assert lake.log("work", limit=1)[0].parents == (work.log()[1].id, lake.branch().head)
    assert lake.log("work", limit=1)[0].message == "merge main into work"
    assert work.head == made
    assert lake.table("spans", at="work").content_hash() == lake.table("spans").content_hash()
    assert [(hit.trace_id, hit.name) for hit in lake.search("n2", at="work")] == [(f"{3:032x}", "work")]
    assert [change.path for change in work.diff("main")] == ["note"]
    assert lake.merge("work") == lake.branch("main").head
    assert lake.diff("work", "main") == []
    assert lake.verify().findings == ()


def test_staged_entries_are_told_against_the_head(lake: Lake) -> None:
    """Staged entries are listed as added, changed or removed; unchanged entries are omitted; discard removes them."""
    main = lake.branch("main")
    put(main, a="1", b="1", c="1")
    entries = {"a": file("2"), "b": None, "c": file("1"), "d": file("1"), "e": None}
    lake._opened.repository.stage(entries, "main")
    staged = main.staged()
    assert [(change.path, change.change) for change in staged] == [
        ("a", "changed"),
        ("b", "removed"),
        ("d", "added"),
    ]
    assert staged[0].before == {"type": "file", "sha256": file("1").sha256, "size_bytes": 1, "epoch": 0}
    assert lake.branches()[0].staged == 5
    assert main.discard() == 5
    assert main.staged() == []
    with pytest.raises(NothingToCommitError, match="nothing to commit on branch main"):
        main.commit("nothing")
    head = main.head
    assert lake.log()[0].parents != (head,)
    assert main.commit("nothing", allow_empty=True) != head


def test_differences_name_tables_by_their_time(lake: Lake) -> None:
    """The difference of two transactions lists both tables and the index, by path, up to a limit."""
    changes = lake.diff("main~1")
    assert [(change.path, change.change) for change in changes] == [
        ("indexes/spans", "changed"),
        ("tables/spans", "changed"),
        ("tables/traces", "changed"),
    ]
    assert changes[1] == EntryChange(
        "tables/spans",
        {"type": "table", "shard": "spans", "as_of": 0},
        {"type": "table", "shard": "spans", "as_of": 1},
    )
    assert changes[1].to_dict()["change"] == "changed"
    assert lake.diff("main~1", limit=2) == changes[:2]
    back = lake.diff("main", "main~1")
    assert [(change.before, change.after) for change in back] == [(c.after, c.before) for c in changes]


def test_conflicts_are_listed_and_a_side_can_be_preferred(lake: Lake) -> None:
    """An entry that both sides changed stops a merge, which changes nothing; changes of one side do not."""
    main, work = lake.branch("main"), None
    put(main, a="1", b="1", c="1")
    work = lake.create_branch("work")
    put(main, a="main", b="main", mine="1")
    put(work, a="work", c="work", same=None, theirs="1")
    before = main.head
    with pytest.raises(ConflictError, match="changed the same entries") as caught:
        main.merge("work")
    assert caught.value.paths == ("a",)
    assert main.head == before
    (conflict,) = main.conflicts("work")
    assert isinstance(conflict, MergeConflict)
    sizes = [named and named["size_bytes"] for named in (conflict.base, conflict.ours, conflict.theirs)]
    assert (conflict.path, sizes) == ("a", [1, 4, 4])
    with pytest.raises(UsageError, match="`source` or `dest`"):
        main.merge("work", prefer="neither")
    other = lake.create_branch("other")
    other.merge("work", prefer="dest", message="theirs, but for a")
    main.merge("work", prefer="source", committer="ada")
    for branch, text in (("other", "main"), ("main", "work")):
        named = lake._opened.repository.entries(lake.branch(branch).head or "", "a", "z")
        assert [named[name] for name in ("a", "b", "c", "mine", "theirs")] == [
            file(text), file("main"), file("work"), file("1"), file("1")
        ]  # fmt: skip
    assert [(c.message, c.committer) for c in main.log(limit=1)] == [("merge work into main", "ada")]
    assert main.conflicts("work") == []


def test_revert_and_cherry_pick(lake: Lake) -> None:
    """A commit is reverted, or picked onto another branch, and later commits stay."""
    main = lake.branch("main")
    put(main, a="1")
    wrong = put(main, b="wrong")
    put(main, c="1")
    work = lake.create_branch("work", at="main~3")
    work.cherry_pick(wrong[:12])
    assert [change.path for change in work.diff("main~3")] == ["b"]
    assert work.log(limit=1)[0].message == "put b"
    main.revert(wrong)
    assert main.log(limit=1)[0].message == f"revert {wrong[:12]} put b"
    named = lake._opened.repository.entries(main.head or "", "a", "d")
    assert list(named) == ["a", "c"]
    with pytest.raises(NothingToCommitError):
        main.revert(wrong)
    put(work, b="other")
    with pytest.raises(ConflictError):
        work.revert(wrong)
    with pytest.raises(RefNotFoundError):
        main.revert("nowhere")


def test_a_reverted_transaction_shows_older_rows_until_the_next(lake: Lake, tmp_path: Path) -> None:
    """The revert resets tables and index together. The next transaction restores all rows, and everything is
    consistent."""
    main = lake.branch("main")
    main.revert("main")
    assert (lake.table("spans").info().rows, len(lake.search("n1")), len(lake.search("n0"))) == (2, 0, 1)
    ingest(lake, tmp_path, 2)
    assert (lake.table("spans").info().rows, len(lake.search("n1"))) == (6, 1)
    assert lake.verify().findings == ()


def test_protected_branches_take_merges_and_pipelines_only(lake: Lake, tmp_path: Path) -> None:
    """Users' commits to a protected branch are refused with a solution; protection can end; the branch cannot be
    deleted."""
    main, work = lake.branch("main"), lake.create_branch("work")
    main.protect()
    assert main.protected
    refused: list[Callable[[], str]] = [
        lambda: put(main, a="1"),
        lambda: main.revert("main"),
        lambda: main.cherry_pick("main~1"),
    ]
    for call in refused:
        with pytest.raises(UsageError, match="Commit to another branch and merge it"):
            call()
    put(work, a="1")
    main.merge("work")
    ingest(lake, tmp_path, 2)
    work.protect()
    with pytest.raises(UsageError, match="protected"):
        lake.delete_branch("work", force=True)
    work.protect(False)
    lake.delete_branch("work")
    main.protect(on=False)
    put(main, b="1")


def test_branches_are_deleted_with_care(lake: Lake) -> None:
    """A branch with staged entries is deleted only by force; main stays; a deleted branch has no name any more."""
    work = lake.create_branch("work")
    lake._opened.repository.stage({"a": file("1")}, "work")
    with pytest.raises(UsageError, match="staged entries"):
        lake.delete_branch("work")
    lake.delete_branch("work", force=True)
    lost: list[Callable[[], object]] = [
        lambda: work.head,
        work.staged,
        work.log,
        lambda: work.commit("late"),
        lambda: lake.branch("work"),
    ]
    for late in lost:
        with pytest.raises(RefNotFoundError, match="no branch 'work'"):
            late()
    with pytest.raises(UsageError, match="main cannot be deleted"):
        lake.delete_branch("main")
    for wrong, why in (("main", "already"), ("~", "cannot be"), ("v1", "is a tag")):
        lake.tag("v1")
        with pytest.raises(UsageError, match=why):
            lake.create_branch(wrong)
    with pytest.raises(RefNotFoundError):
        lake.create_branch("other", at="nowhere")


def test_who_commits(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committer is the caller's value, else the setting, else the user of the process, else unknown."""
    main = lake.branch("main")

    def nameless() -> str:
        raise OSError("no user")

    main.commit("1", allow_empty=True, committer="ada")
    monkeypatch.setenv("TRACELAKE_COMMITTER", "grace")
    main.commit("2", allow_empty=True)
    monkeypatch.delenv("TRACELAKE_COMMITTER")
    main.commit("3", allow_empty=True)
    monkeypatch.setattr(getpass, "getuser", nameless)
    main.commit("4", allow_empty=True)
    monkeypatch.undo()
    assert [commit.committer for commit in main.log(limit=4)] == [
        "unknown",
        getpass.getuser(),
        "grace",
        "ada",
    ]


def test_an_empty_lake_has_a_branch(tmp_path: Path) -> None:
    """Branch main exists without a commit; another branch needs a commit to start from."""
    with tracelake.init(tmp_path / "empty") as empty:
        main = empty.branch()
        assert (main.head, main.log(), main.staged(), empty.log()) == (None, [], [], [])
        assert empty.branches() == [BranchInfo("main", None, protected=False, staged=0)]
        with pytest.raises(RefNotFoundError, match="the lake is empty"):
            empty.create_branch("work")
        put(main, a="1")
        assert len(main.log()) == 1


def test_a_reader_sees_tables_and_index_of_one_transaction(lake: Lake, tmp_path: Path) -> None:
    """While a writer commits transactions, a search of one view finds exactly the rows of its tables."""
    stop = Event()
    seen: list[int] = []

    def read() -> None:
        with tracelake.open(tmp_path / "lake") as reader:
            while not stop.is_set():
                view = reader._opened.view()
                rows = view.table("spans").info().rows
                traces = view.table("traces").info().rows
                found = {hit.trace_id for hit in view.search(SearchRequest("word", limit=100))}
                told = {
                    row["trace_id"] for row in view.sql("select distinct trace_id from spans").to_pylist()
                }
                assert rows == 2 * traces
                assert found == told
                assert view.time_of("spans") == view.time_of("traces") == traces - 1
                seen.append(traces)

    with ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        try:
            for number in range(2, 12):
                ingest(lake, tmp_path, number)
                put(lake.branch("main"), note=str(number))
        finally:
            stop.set()
        for reader in readers:
            reader.result()
    assert len(set(seen)) > 2


def test_a_view_reads_tables_and_indexes_only(lake: Lake) -> None:
    """A commit with many other entries opens as fast as one without: their ranges are not read."""
    entries = {f"datasets/x/{number:049}": file(str(number)) for number in range(5_000)}
    lake._opened.repository.commit_entries(entries, message="many", committer="ada")
    with tracelake.open(lake.place) as fresh:
        view = fresh._opened.view()
        assert isinstance(view._entries["indexes/spans"], IndexAt)
        assert set(view._entries) == {"indexes/spans", "tables/spans", "tables/traces"}
        read = [kind.__name__ for kind, _ in fresh._opened.repository._contents._cache]
        assert read.count("Range") <= 2
