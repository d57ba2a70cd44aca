"""Results of lists that a lake caches: of one commit, one workspace and one query, and of committed rows alone."""

# ruff: noqa: ARG002, ARG005  the fakes have the parameters of the real ones

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from tracelake.context import LakeContext
from tracelake.erasure.store import NOTHING_MASKED, MaskedTraces
from tracelake.hot.rows import HotList
from tracelake.lake.reads import LakeReads
from tracelake.shards.parts import ByteLRU


@dataclass
class FakeView:
    """A commit that counts the queries."""

    commit_id: str = "c1"
    masked: MaskedTraces = NOTHING_MASKED
    asked: list[str] = field(default_factory=list)

    def select(
        self,
        query: str,
        newer: Mapping[str, pa.Table] | None = None,
        workspace: str | None = None,
        traces: Collection[str] = (),
    ) -> pa.Table:
        """Return one row with the query's number."""
        self.asked.append(query)
        return pa.table({"number": [len(self.asked)]})


class Lake:
    """Reads of a lake with one view."""

    def __init__(self) -> None:
        self.view = FakeView()
        self.newer = HotList()
        self._opened = SimpleNamespace(
            read=lambda at, read: read(self.view), selected=ByteLRU(lambda table: 1, lambda: 100)
        )

    def select(self, *queries: str, workspace: str | None = None) -> list[int]:
        """Return the numbers of the queries that were run."""
        hot = SimpleNamespace(newer=lambda: self.newer)
        reads = LakeReads(cast("LakeContext", self._opened), cast("Any", hot), workspace)
        return [table["number"][0].as_py() for table in reads.select(*queries)]


def test_a_result_is_of_its_commit_query_and_workspace() -> None:
    """The same query on the same commit runs once; another commit, mask, query or workspace runs it again."""
    lake = Lake()
    assert lake.select("a", "b") == [1, 2]
    assert lake.select("b", "a") == [2, 1]
    assert lake.select("a", workspace="team") == [3]
    assert lake.select("a", workspace="team") == [3]
    lake.view.masked = MaskedTraces(1, frozenset({"0" * 32}))
    assert lake.select("a") == [4]
    lake.view.commit_id = "c2"
    assert lake.select("a") == [5]


def test_uncommitted_rows_are_read_each_time() -> None:
    """With uncommitted rows, no result is cached, and a cached one is not returned."""
    lake = Lake()
    assert lake.select("a") == [1]
    lake.newer = HotList({"traces": pa.table({"trace_id": ["x"]})})
    assert lake.select("a") == [2]
    assert lake.select("a") == [3]
    lake.newer = HotList()
    assert lake.select("a") == [1]
