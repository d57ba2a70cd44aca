"""Invalid arguments: each call works or reports the mistake, and blocks nothing afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelake
from tests.datasets.conversations import a_lake
from tracelake import Lake, LimitError, TracelakeError, UsageError
from tracelake.limits import COMMIT_REQUEST_MAX_BYTES
from tracelake.versions.model import FileAt, IndexAt, TableAt
from tracelake.versions.repository import Repository

NAMES = (
    "main",
    "work",
    "v1",
    "new",
    "a/b",
    "abcdef",
    "f" * 64,
    "main~1",
    "main~0",
    "main@0",
    "main@2026-01-01",
)
ODD = (
    *("", " ", "\n", "\0", "..", "../main", "a//b", "a/", "/a", "@", "~", "main~", "main@", "main~-1"),
    *("\ud800", "main\udfff", "é", "main\n", "main@0001-01-01T00:00+23:59", "main@9999-12-31T23:59-23:59"),
    *(
        "x" * 101,
        "x" * 2_000,
        "m" * 100_000,
        "main~\u0663",
        "main@\u0661",
        "-x",
        "--help",
        "*",
        "%2e",
        "main@nan",
    ),
    *("HEAD", "main~999999999"),
)
texts = st.one_of(st.sampled_from(NAMES), st.sampled_from(ODD), st.text(max_size=20))
others = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=3), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.floats(), max_size=2), st.just(object()), st.just(2**70),
)  # fmt: skip
anything = st.one_of(texts, texts, texts, others)
numbers = st.one_of(st.integers(-6, 6), others)

Call = Callable[[Lake, Any, Any, Any], object]
CALLS: dict[str, Call] = {
    "branch": lambda lake, a, _b, _c: lake.branch(a),
    "create_branch": lambda lake, a, b, _: lake.create_branch(a, b),
    "delete_branch": lambda lake, a, _b, c: lake.delete_branch(a, c),
    "merge": lambda lake, a, b, c: lake.merge(a, b, c),
    "merge_prefer": lambda lake, a, b, c: lake.branch("work").merge(a, b, prefer=c),
    "conflicts": lambda lake, a, _b, _c: lake.branch("work").conflicts(a),
    "log": lambda lake, a, _b, c: lake.log(a, c),
    "diff": lambda lake, a, b, c: lake.diff(a, b, c),
    "tag": lambda lake, a, b, _: lake.tag(a, b),
    "delete_tag": lambda lake, a, _b, _c: lake.delete_tag(a),
    "commit": lambda lake, a, b, c: lake.branch("work").commit(a, allow_empty=c, committer=b),
    "revert": lambda lake, a, b, c: lake.branch("work").revert(a, b, parent=c),
    "cherry_pick": lambda lake, a, b, c: lake.branch("work").cherry_pick(a, b, parent=c),
    "committer": lambda lake, a, b, _: lake.branch("work").revert("main", a, committer=b),
    "drop_request": lambda lake, a, b, _: lake.branch("work").drop_request(a, b),
    "protect": lambda lake, a, _b, _c: lake.branch("work").protect(a),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Return a lake with two branches and a tag, shared by all examples."""
    with a_lake(tmp_path_factory.mktemp("hostile")) as lake:
        lake.create_branch("work")
        lake.tag("v1")
        for number in range(2):
            commit_on(lake, number)
        yield lake


def commit_on(lake: Lake, number: int) -> None:
    """Commit an entry on both branches, and check that it is readable."""
    for branch in ("main", "work"):
        repository = lake._opened.repository
        repository.stage({f"notes/{number % 10}": IndexAt(f"m{number}")}, branch)
        made = lake.branch(branch).commit(f"note {number}")
        assert (lake.branch(branch).head, lake.branch(branch).requests()) == (made, [])
        assert lake.log(branch, limit=1)[0].message == f"note {number}"


turn = itertools.count(2)


@given(
    st.lists(st.tuples(st.sampled_from(sorted(CALLS)), anything, anything, numbers), min_size=1, max_size=4)
)
@settings(max_examples=100, deadline=None)
def test_any_arguments(lake: Lake, calls: list[tuple[str, Any, Any, Any]]) -> None:
    """Each call works or raises one of our errors; afterwards both branches still commit and are readable."""
    for name, *arguments in calls:
        with suppress(TracelakeError):
            CALLS[name](lake, *arguments)
    if "work" not in {branch.name for branch in lake.branches()}:
        lake.create_branch("work")
    lake.branch("work").protect(False)
    commit_on(lake, next(turn))
    assert all(record.sealed == () for record in lake._opened.repository.branches().values())
    assert {*lake.tags()}.isdisjoint({branch.name for branch in lake.branches()})


def test_the_lake_is_whole_after_all_that(lake: Lake) -> None:
    """Another process can read every commit of every branch afterwards."""
    with tracelake.open(lake.url) as fresh:
        for branch in fresh.branches():
            assert all(isinstance(commit.message, str) for commit in fresh.log(branch.name))
        report = fresh.verify()
    assert [found for found in report.findings if found.kind != "missing"] == []


WRONG: list[dict[str, object]] = [
    {"message": 5}, {"message": b"x"}, {"message": "\ud800"}, {"message": None}, {"committer": 5},
    {"committer": "\udfff"}, {"metadata": {"a": 1}}, {"metadata": {"a": float("nan")}}, {"metadata": {1: "a"}},
    {"metadata": [("a", "b")]}, {"metadata": {"\ud800": "a"}}, {"metadata": {"a": None}}, {"metadata": {"a": True}},
    {"created_at": "yesterday"}, {"created_at": "2026-01-01"}, {"created_at": 5}, {"created_at": "2026-01-01T00:00"},
    {"request_id": 5}, {"request_id": True}, {"request_id": "transaction-1"}, {"request_id": "x" * 2_000},
    {"metadata": {"a": "x" * COMMIT_REQUEST_MAX_BYTES}}, {"allow_empty": "yes"}, {"allow_empty": 1},
    {"message": "x" * COMMIT_REQUEST_MAX_BYTES},
]  # fmt: skip


@pytest.mark.parametrize("about", WRONG, ids=lambda about: f"{about}"[:40])
def test_what_no_commit_can_say(lake: Lake, about: Any) -> None:
    """An invalid commit is refused in one sentence before it is on the list; the head is unchanged."""
    repository: Repository = lake._opened.repository
    head = repository.head()
    with pytest.raises((UsageError, LimitError)):
        repository.commit_staged(**{"allow_empty": True, **about})
    assert repository.branch().sealed == ()
    assert repository.head() == head


ENTRIES: list[Any] = [
    (FileAt, "x", True),
    (FileAt, 5, 1),
    (TableAt, "t", "now"),
    (IndexAt, None),
    (FileAt, "x", 0.5),
]


@pytest.mark.parametrize("parts", ENTRIES, ids=repr)
@pytest.mark.parametrize("count", [1, 100])
def test_entries_that_could_not_be_read_again(lake: Lake, parts: Any, count: int) -> None:
    """Entries that could not be read back are neither staged nor committed, in the request or in separate objects."""
    repository: Repository = lake._opened.repository
    head = repository.head()
    kind, *fields = parts
    entries = {f"odd/{number}": kind(*fields) for number in range(count)}
    with pytest.raises(UsageError, match="could not be read back"):
        repository.commit_entries(entries)
    with pytest.raises(UsageError, match="could not be read back"):
        repository.stage(entries)
    assert (repository.head(), repository.staged()) == (head, ())
