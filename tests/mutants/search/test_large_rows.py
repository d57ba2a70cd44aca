"""Mutants that `tests/search/test_large_rows.py` notices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.search import test_large_rows
from tests.search.worded import check_words, few_at_a_time
from tracelake.search import tokenization
from tracelake.search.analyzers import ANALYZERS
from tracelake.search.tokenization import BatchTokenizer

BROKEN: Final[list[tuple[Mutation, Callable[[], None]]]] = [
    (
        Mutation(
            "a large row is made words in pieces", BatchTokenizer.texts_of_rows, rewrite("_1 > _", "_1 < 0")
        ),
        lambda: test_large_rows.check_large_row("english"),
    ),
    (
        Mutation(
            "pieces are no larger", tokenization.at_spaces, rewrite("_1._(_2, _, _3)", "_1.find(_2, _3)")
        ),
        lambda: test_large_rows.check_large_row("english"),
    ),
    (
        Mutation("a large chunk is by itself", tokenization.at_spaces, rewrite("_1._(_, _)", "len(_1)")),
        lambda: test_large_rows.check_large_row("english"),
    ),
    (
        Mutation(
            "small texts of a large row are few at a time",
            BatchTokenizer._large,
            rewrite("a(_(_1))", "[(0, len(_1))]"),
        ),
        lambda: test_large_rows.check_large_row("english"),
    ),
    (
        Mutation(
            "texts of a large row are no phrase", BatchTokenizer._large, rewrite("if _: ...", "if False: ...")
        ),
        lambda: test_large_rows.check_large_row("english"),
    ),
    (
        Mutation(
            "parts of a large row are there once",
            tokenization._ordered,
            rewrite("_1: _2 = _(_3)", "_1: _2 = _3"),
        ),
        lambda: test_large_rows.check_large_row("cjk"),
    ),
    (
        Mutation("few parts at a time", tokenization.parts_of_long, rewrite("_1(_2, a)", "_1(_2, 10 ** 9)")),
        lambda: test_large_rows.check_large_row("whitespace"),
    ),
    (
        Mutation(
            "few identifiers at a time", tokenization.parts_of_long, rewrite("lambda a: _", "lambda a: True")
        ),
        lambda: test_large_rows.check_large_row("whitespace"),
    ),
    (
        Mutation(
            "identifiers have any letters",
            tokenization.parts_of_long,
            rewrite("lambda a: _", "lambda a: False"),
        ),
        lambda: check_words(
            dataclasses.replace(ANALYZERS["whitespace"]), [f"{'x' * test_large_rows.AT_ONCE}—cD"]
        ),
    ),
]


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=[broken.rule for broken, _ in BROKEN])
def test_a_broken_rule_is_caught(
    broken: Mutation, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check detects each broken rule of large rows."""
    few_at_a_time(monkeypatch, test_large_rows.AT_ONCE)
    assert_caught(broken, check)
