"""Mutants that `tests/search/test_analyzers.py` notices."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tests.search import test_analyzers
from tracelake.search import analyzers, query_compiler, tokenization
from tracelake.search.analyzers import CJK, WHITESPACE, Analyzer
from tracelake.search.searcher import Searcher

BROKEN: Final = [
    (
        Mutation("each letter begins a word", tokenization._paired, drop("yield _[_]")),
        CJK,
        lambda searcher: test_analyzers.check_runs(searcher, "都"),
    ),
    (
        Mutation("a run goes on in a text", Analyzer.words_wanted, rewrite("_1(_._)", "_1('')")),
        CJK,
        lambda searcher: test_analyzers.check_runs(searcher, "東京"),
    ),
    (
        Mutation("a letter alone begins words", Analyzer.words_wanted, rewrite("True", "False")),
        CJK,
        lambda searcher: test_analyzers.check_runs(searcher, "大"),
    ),
    (
        Mutation("only in its run", analyzers._goes_on, rewrite("_ and _1", "_1")),
        CJK,
        lambda searcher: test_analyzers.check_mixed(searcher, ["大の", "の", "gpt"]),
    ),
    (
        Mutation(
            "words have no brackets at their ends",
            tokenization.between_spaces,
            rewrite(
                "for _1 in _.a(_2): ...",
                "for _1 in compile_object('\\\\S+').a(_2): ...",
                compile_object=re.compile,
            ),
        ),
        WHITESPACE,
        lambda searcher: test_analyzers.check_whole(searcher, "order_id"),
    ),
    (
        Mutation("parts between punctuation", tokenization.parts_of_words, rewrite("not _1._()", "_1 == ''")),
        WHITESPACE,
        lambda searcher: test_analyzers.check_parts(searcher, "orders"),
    ),
    (
        Mutation("parts between capitals", tokenization.parts_of_words, rewrite("_1\n_2 = _", "_1\n_2 = {}")),
        WHITESPACE,
        lambda searcher: test_analyzers.check_parts(searcher, "policy"),
    ),
]


@pytest.mark.parametrize(("broken", "analyzer", "check"), BROKEN, ids=[each[0].rule for each in BROKEN])
def test_a_broken_rule_is_caught(
    broken: Mutation,
    analyzer: Analyzer,
    check: Callable[[Searcher], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checks detect each tokenizer rule broken at index or query time."""
    texts = test_analyzers.CJK_TEXTS if analyzer is CJK else test_analyzers.SPACED_TEXTS
    tokenization._parts_of_short_name.cache_clear()
    query_compiler._prepared.cache_clear()
    monkeypatch.setitem(vars(analyzer), "wording", dataclasses.replace(analyzer).wording)
    assert_caught(broken, lambda: check(test_analyzers.searcher_of(analyzer, texts, tmp_path)))
