"""A query for words that the index cannot hold is refused at its character, never answered with more hits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.search.build_inputs import index_of, span, table
from tracelake._errors import QueryError
from tracelake.search.analyzers import ANALYZERS, get_analyzer
from tracelake.search.searcher import Searcher

LONG = "a1" * 50
CHINESE = "\u6771\u4eac\u90fd\u306e\u5929\u6c17" * 6
"""More than 100 bytes without a space."""
EMOJI = "\U0001f680"
ROWS = (span(0, name="deploy ok"), span(1, name=f"deploy ok {EMOJI} {LONG}"), span(2, name="undo"))
QUERIES = ("deploy AND {}", "deploy NOT {}", "deploy -{}", "deploy OR {}", "{}", "NOT {}", "deploy (ok {})")


def check_refused(searcher: Searcher, query: str, character: int) -> None:
    """Check that search and count refuse a query at a character."""
    for ask in (lambda: searcher.search(query, 10), lambda: searcher.count(query)):
        with pytest.raises(QueryError) as caught:
            ask()
        assert caught.value.character == character, query


def check_every_position(searcher: Searcher, dropped: str) -> None:
    """Check that a clause without a word is refused under each operator and in each field of text."""
    for query in QUERIES:
        check_refused(searcher, query.format(dropped), query.index("{}") + 1)
    check_refused(searcher, f"deploy name:{dropped}", 8)
    check_refused(searcher, f'deploy "ok {dropped}"', 8)


@pytest.fixture(params=sorted(ANALYZERS))
def searcher(request: pytest.FixtureRequest, tmp_path: Path) -> Searcher:
    """An index of each analyzer."""
    objects, manifest = index_of([table(ROWS)], analyzer=get_analyzer(request.param))
    return Searcher(objects, manifest, tmp_path)


@pytest.mark.parametrize("dropped", [LONG, EMOJI, "\u20ac", "\u2192"])
def test_a_word_that_the_index_cannot_hold_is_refused(searcher: Searcher, dropped: str) -> None:
    """A long word, an emoji or a non-ASCII sign is refused under AND, OR, NOT, in groups, fields and phrases."""
    check_every_position(searcher, dropped)


@pytest.mark.parametrize("signs", ["!!!", "&", '"-"', '""', "\u2014", "!!!*", "!!!~1"])
def test_a_clause_of_signs_alone_is_refused(searcher: Searcher, signs: str) -> None:
    """A clause without a letter or digit is refused, because it would drop out of AND and NOT."""
    for query in QUERIES:
        check_refused(searcher, query.format(signs), query.index("{}") + 1)


def test_a_long_run_of_chinese_is_refused_or_found(tmp_path: Path) -> None:
    """`cjk` indexes it as pairs of letters; the other analyzers cannot."""
    rows = [span(0, name="deploy"), span(1, name=f"deploy {CHINESE}")]
    for name in sorted(ANALYZERS):
        objects, manifest = index_of([table(rows)], analyzer=get_analyzer(name))
        searcher = Searcher(objects, manifest, tmp_path / name)
        if name == "cjk":
            assert searcher.count(f"deploy {CHINESE}").total == 1
            assert searcher.count(f"deploy -{CHINESE}").total == 1
        else:
            check_refused(searcher, f"deploy -{CHINESE}", 9)


def test_signs_between_words_still_separate_them(searcher: Searcher) -> None:
    """Punctuation and ASCII signs in a word or phrase only separate words, as in names and ids."""
    for query in (
        '"deploy -> ok"',
        "deploy,ok",
        '"deploy \u2014 ok"',
        "deploy/ok",
        "+deploy",
        "deploy\u00b4ok",
    ):
        searcher.count(query)
    assert searcher.count('"deploy (ok)"').total == 2
