"""Walks through commits: merge bases against all ancestors, transactions, damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake._errors import DamageError
from tracelake.versions import tree
from tracelake.versions.model import AFTER, TRANSACTION, Commit

Graph = list[list[int]]
"""Parents of each commit, all of them older."""


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw commits with up to three parents each; several may have none."""
    size = draw(st.integers(1, 14))
    return [
        draw(st.lists(st.integers(0, number - 1), max_size=min(3, number), unique=True)) if number else []
        for number in range(size)
    ]


def name(number: int) -> str:
    return f"c{number:02}"


def commits(graph: Graph) -> dict[str, Commit]:
    made: dict[str, Commit] = {}
    for number, parents in enumerate(graph):
        ids = tuple(name(parent) for parent in parents)
        generation = max((made[parent].generation + 1 for parent in ids), default=0)
        made[name(number)] = Commit(ids, "m", "", "", "", {}, generation=generation)
    return made


def ancestors(graph: Graph, number: int) -> set[int]:
    return {number}.union(*(ancestors(graph, parent) for parent in graph[number]))


@given(graphs(), st.data())
def test_merge_bases_are_the_best_common_ancestors(graph: Graph, data: st.DataObject) -> None:
    """Merge bases are the common ancestors from which no other one descends, in a stable order."""
    sides = st.lists(st.integers(0, len(graph) - 1), min_size=1, max_size=3)
    left, right = (data.draw(sides) for _ in range(2))
    reached = [set[int]().union(*(ancestors(graph, at) for at in side)) for side in (left, right)]
    common = reached[0] & reached[1]
    best = {one for one in common if not any(one in ancestors(graph, other) for other in common - {one})}
    read = commits(graph).__getitem__
    ours, theirs = ([name(at) for at in side] for side in (left, right))
    found = tree.merge_bases(ours, theirs, read)
    assert sorted(found) == sorted(name(one) for one in best)
    assert tree.merge_bases(theirs, ours, read) == found
    assert tree.merge_bases([""], ours, read) == ()


@given(graphs(), st.data())
def test_contains_is_being_an_ancestor(graph: Graph, data: st.DataObject) -> None:
    """A commit is contained if some path of parents leads to it."""
    head, commit = (data.draw(st.integers(0, len(graph) - 1)) for _ in range(2))
    read = commits(graph).__getitem__
    assert tree.contains(name(head), name(commit), read) == (commit in ancestors(graph, head))
    assert not tree.contains(name(head), "", read)
    assert not tree.contains("", name(commit), read)


@given(graphs())
def test_log_goes_by_first_parents(graph: Graph) -> None:
    """The log of a branch follows first parents, and leaves out merged commits."""
    at: int | None = len(graph) - 1
    expected = []
    while at is not None:
        expected.append(name(at))
        at = graph[at][0] if graph[at] else None
    read = commits(graph).__getitem__
    assert [found for found, _ in tree.log(name(len(graph) - 1), read)] == expected
    assert list(tree.log("", read)) == []


def test_transactions_in_a_history() -> None:
    """The commit of a transaction is found behind users' commits, which name the last transaction before them."""
    metadata = [{TRANSACTION: "0"}, {AFTER: "0"}, {TRANSACTION: "1"}, {AFTER: "1"}, {AFTER: "1"}]
    made = {
        name(number): Commit((name(number - 1),) if number else (), "m", "", "", "", said, generation=number)
        for number, said in enumerate(metadata)
    }
    read = made.__getitem__
    assert [tree.newest_transaction(name(at), read) for at in range(5)] == [0, 0, 1, 1, 1]
    assert tree.newest_transaction("", read) == -1
    assert tree.commit_of(1, name(4), read) == name(2)
    assert tree.commit_of(0, name(4), read) == name(0)
    with pytest.raises(DamageError, match="no commit of transaction 2 in the history of c04"):
        tree.commit_of(2, name(4), read)
