"""Mutants that `tests/search/test_query.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_query, test_what_people_paste
from tests.search.test_query import searcher
from tracelake.search import query_compiler
from tracelake.search.inheritance import Inheritance
from tracelake.search.searcher import Searcher


@pytest.mark.parametrize(
    "broken",
    [Mutation("only those that are asked for", Searcher.matching_traces, rewrite("_1 & _", "_1"))],
    ids=rule_of,
)
def test_traces_of_which_a_query_finds_spans(broken: Mutation, searcher: Searcher) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_query.test_traces_of_which_a_query_finds_spans(searcher))


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("ids decide", Inheritance.spans, rewrite("_.a(b)", "True", nth=2)),
        Mutation("each clause with an id", query_compiler.names_span, rewrite("_ == _", "False")),
        Mutation("ids in words", query_compiler.names_span, rewrite("_1 or _2", "_1")),
    ],
    ids=rule_of,
)
def test_span_ids(broken: Mutation, tmp_path: Path) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_what_people_paste.check_span_ids(tmp_path))
