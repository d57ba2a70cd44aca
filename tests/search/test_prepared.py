"""Queries are parsed once, and a cached query is never used for a different one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.build_inputs import index_of, span, table
from tracelake._errors import QueryError
from tracelake.search import query_compiler as module
from tracelake.search.analyzers import ENGLISH, WHITESPACE
from tracelake.search.query_compiler import prepared
from tracelake.search.searcher import Searcher

HOUR_NS = 3_600_000_000_000
NOW_NS = 1_700_000_000_000_000_000


def check_what_is_kept(folder: Path) -> None:
    """Check that the same words at two times, in two services, under two analyzers and repeated have the right
    answers."""
    module._read.cache_clear()
    module._prepared.cache_clear()
    rows = table(
        [
            span(1, span_id=f"{1:016x}", start_ns=NOW_NS, service="Shop", input="refunds"),
            span(2, span_id=f"{2:016x}", start_ns=NOW_NS - 3 * HOUR_NS, service="Bank", input="refund"),
        ]
    )
    searchers = [
        Searcher(*index_of([rows], analyzer=analyzer), folder / analyzer.name)
        for analyzer in (ENGLISH, WHITESPACE)
    ]
    english, whitespace = searchers

    def found(searcher: Searcher, query: str, now_ns: int, service: str | None = None) -> set[int]:
        return {int(hit.span_id, 16) for hit in searcher.search(query, 10, service=service, now_ns=now_ns)}

    for _ in range(2):
        assert found(english, "refund last 2h", NOW_NS) == {1}
        assert found(english, "refund last 2h", NOW_NS - 2 * HOUR_NS) == {2}
        assert found(english, "refund", NOW_NS) == {1, 2}
        assert found(english, "refund", NOW_NS, "Shop") == {1}
        assert found(english, "refunds", NOW_NS) == {1, 2}
        assert found(whitespace, "refunds", NOW_NS) == {1}
        assert found(english, "refund", NOW_NS, "Bank") == {2}


def test_what_is_kept_is_of_the_same_time_service_and_analyzer(tmp_path: Path) -> None:
    """Time, service and analyzer are each part of the cache key."""
    check_what_is_kept(tmp_path)


def test_a_query_is_read_once_and_one_that_does_not_parse_each_time(tmp_path: Path) -> None:
    """Results that depend only on a query's words are cached; errors are not."""
    searcher = Searcher(*index_of([table([span(1, input="refund")])]), tmp_path)
    before = module._read.cache_info()
    for _ in range(3):
        assert len(searcher.search("refund nobody_else_asks OR refund", 10)) == 1
        with pytest.raises(QueryError, match="no field 'foo'"):
            searcher.search("foo:bar", 10)
    after = module._read.cache_info()
    assert after.misses - before.misses == 2, "the tree is kept, and what it means is refused each time"
    assert prepared("refund", None, ENGLISH, 1) is prepared("refund", None, ENGLISH, 2)
