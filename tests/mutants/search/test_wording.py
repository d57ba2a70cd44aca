"""Mutants that `tests/search/test_wording.py` notices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tests.search import test_wording
from tests.search.worded import check_words, few_at_a_time
from tracelake.search import build, tokenization
from tracelake.search.analyzers import ENGLISH
from tracelake.search.documents import texts_of
from tracelake.search.tokenization import BatchTokenizer

BROKEN: Final[list[tuple[Mutation, Callable[[], None]]]] = [
    (
        Mutation("too long is measured", BatchTokenizer._stemmed, rewrite("_1._()", "_1")),
        lambda: check_words(dataclasses.replace(ENGLISH), ["a " + "é" * 50 + " b"]),
    ),
    (
        Mutation(
            "a long word leaves its place",
            BatchTokenizer._stemmed,
            rewrite("_1.a(_2[0], _)", "_1.a(_2[0], '')"),
        ),
        lambda: check_words(dataclasses.replace(ENGLISH), ["a " + "x" * 100 + " b"]),
    ),
    (
        Mutation("short ones are remembered", BatchTokenizer._remember, rewrite("_ <= _1", "0 <= _1")),
        test_wording.check_remembered,
    ),
    (Mutation("few are remembered", BatchTokenizer._remember, drop("_()")), test_wording.check_remembered),
    (
        Mutation("all chunks have their turn", BatchTokenizer._different, rewrite("a + b", "b")),
        test_wording.check_remembered,
    ),
    (
        Mutation(
            "parts are made anew",
            BatchTokenizer._chunks,
            rewrite("(_ for _ in _1 if _)", "((text, worded) for at, (text, worded) in _1)"),
        ),
        test_wording.check_remembered,
    ),
    (
        Mutation(
            "parts of a row are there once",
            tokenization._together,
            rewrite("a._(_1 + _2)", "a.sort(_1 + _2)"),
        ),
        lambda: check_words(dataclasses.replace(ENGLISH), ["aB x aB"]),
    ),
    (
        Mutation("pairs go on in the next piece", tokenization._paired, rewrite("_1 + 1", "_1")),
        lambda: test_wording.check_pieces("cjk"),
    ),
    (
        Mutation(
            "words end where pieces do",
            tokenization.pieces,
            rewrite("(_1.a() for _1 in _2 if not _)", "(_1.a() for _1 in _2)"),
        ),
        lambda: test_wording.check_pieces("english"),
    ),
    (
        Mutation("pieces have an end", tokenization.together, rewrite("_ >= _1", "-1 >= _1")),
        lambda: test_wording.check_pieces("whitespace"),
    ),
    (
        Mutation(
            "few bytes at a time", tokenization._some_at_a_time, rewrite("_1 = _2 + _", "_1 = _2 + 10 ** 9")
        ),
        lambda: test_wording.check_pieces("english"),
    ),
    (Mutation("many bytes are cut", build._bounded, rewrite("_ <= 1", "True")), test_wording.check_batches),
    (
        Mutation(
            "input of an attribute", texts_of, rewrite("for _1 in (_, _2): ...", "for _1 in (_2,): ...")
        ),
        test_wording.check_repeated,
    ),
    (
        Mutation("output that is the input", texts_of, rewrite("_1[_2] == _1[_]", "_1[_2] < -1")),
        test_wording.check_repeated,
    ),
    (
        Mutation("an empty text is none", texts_of, rewrite("_ != _1", "-1 != _1")),
        test_wording.check_repeated,
    ),
]


@pytest.mark.parametrize(("broken", "check"), BROKEN, ids=[broken.rule for broken, _ in BROKEN])
def test_a_broken_rule_is_caught(
    broken: Mutation, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks detect each broken rule of bulk tokenization."""
    few_at_a_time(monkeypatch, test_wording.AT_ONCE)
    monkeypatch.setattr(tokenization, "INDEX_CHUNKS_KEPT", 8)
    monkeypatch.setattr("tracelake.limits.INDEX_BATCH_MAX_BYTES", 3000)
    check()
    assert_caught(broken, check)
