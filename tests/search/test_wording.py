"""Bulk tokenization for the index: the same words as in queries, at the same positions."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.build_inputs import span, table
from tests.search.worded import check_large, check_words, few_at_a_time
from tracelake.search import build, tokenization
from tracelake.search.analyzers import ANALYZERS, ENGLISH, Analyzer
from tracelake.search.documents import texts_of

LONG: Final = ("x" * 99, "x" * 100, "é" * 50, "İ" * 40, "https://shop/" + "a/" * 60)
PIECES: Final = (
    "refunds",
    "Refund",
    "refundPolicy",
    "HTTPServer",
    "東京都",
    "naïve—café",
    "order_id=42",
    "don\u2019t",
    *LONG,
)
JOINTS: Final = (" ", "\n", ", ", "_", "…", "\0", "\1", "\x1c", "\x85", "\u2028", "")
texts = st.lists(
    st.tuples(st.sampled_from(PIECES) | st.text(max_size=4), st.sampled_from(JOINTS)), max_size=6
).map(lambda pieces: "".join(piece + joint for piece, joint in pieces))


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(list(ANALYZERS.values())), st.lists(texts, max_size=5), st.integers(1, 40))
def test_texts_at_once_have_the_words_of_queries(
    analyzer: Analyzer, given_texts: list[str], at_once: int
) -> None:
    """This holds for each analyzer, too long words, letters with a longer lower case, odd white space, and pieces."""
    check_words(analyzer, given_texts)
    with pytest.MonkeyPatch.context() as patch:
        few_at_a_time(patch, at_once)
        check_words(dataclasses.replace(analyzer), given_texts)  # which caches nothing
        check_large(analyzer, given_texts)


AT_ONCE: Final = 300
HAN: Final = [chr(0x4E00 + n) for n in range(2_000)]
LARGE: Final = (
    "".join(HAN),
    "".join(f"{letter}京。" for letter in HAN),
    "".join(
        f"{letter}\u0903\u3000" for letter in HAN
    ),  # tantivy has \u0903 in words, Python's expressions do not
    " ".join(HAN),
    "".join(f"x{n}—" for n in range(1_000)),
)
"""Texts of different words that are cut into pieces wherever possible."""


def check_pieces(text: str) -> None:
    """Check that large texts have the words of queries and that few are in memory at a time."""
    analyzer = dataclasses.replace(ANALYZERS[text])
    given_at_once: list[int] = []

    def counting(words: str) -> list[str]:
        given_at_once.append(len(words))
        return stems_of(words)

    stems_of = analyzer.wording._stems_of
    analyzer.wording._stems_of = counting
    check_words(analyzer, list(LARGE))
    assert " ".join(tokenization.pairs(LARGE[0])).split() == [a + b for a, b in pairwise(HAN)] + HAN[-1:]
    assert len(given_at_once) > len(LARGE)
    assert max(given_at_once) <= 2 * AT_ONCE


@pytest.mark.parametrize("text", ANALYZERS)
def test_few_words_of_a_large_text_are_there_at_a_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for any size and any characters between words."""
    few_at_a_time(monkeypatch, AT_ONCE)
    check_pieces(text)


def check_remembered() -> None:
    """Check that words beyond the cache's size or length, and identifiers, are tokenized each time."""
    analyzer = dataclasses.replace(ENGLISH)
    for first in (0, 20, 40, 40):
        check_words(analyzer, [f"words{n} {'long' * 10}{n} a{n}Bc" for n in range(first, first + 20)])
        assert len(analyzer.wording._known) <= 8
    assert not [word for word in analyzer.wording._known if len(word) > 32 or "B" in word]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is bounded by number and by length, and gives the same answer again."""
    monkeypatch.setattr(tokenization, "INDEX_CHUNKS_KEPT", 8)
    check_remembered()


def check_batches() -> None:
    """Check that large rows are cut into small batches without loss, and that a single row of any size is accepted."""
    rows = table([span(n, input="word " * (n * 100)) for n in range(20)])
    batches = list(build._small_batches(rows))
    assert pa.Table.from_batches(batches).column("_row_id").to_pylist() == rows.column("_row_id").to_pylist()
    assert all(batch.num_rows == 1 or batch.nbytes <= 3_000 for batch in batches)
    assert max(batch.num_rows for batch in batches) > 1


def test_rows_of_many_bytes_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their texts are one column of Arrow, whose size is limited."""
    monkeypatch.setattr("tracelake.limits.INDEX_BATCH_MAX_BYTES", 3_000)
    check_batches()


def check_repeated() -> None:
    """Check that input and output equal to an attribute or each other count once; an empty or missing text is none."""
    given_rows: list[dict[str, Any]] = [
        {"input": "a", "output": "b", "attributes": [("k", "a"), ("l", "b")]},
        {"input": "a", "output": "a", "attributes": [("k", "b")]},
        {"input": "", "output": None, "attributes": [("k", ""), ("l", None)]},
        {"input": "b", "output": "c", "attributes": [("k", "a")]},
    ]
    rows = [span(n, status_message=None, events=None, **row) for n, row in enumerate(given_rows)]
    words, firsts = texts_of(table(rows).combine_chunks().to_batches()[0])
    own = words.to_pylist()
    assert [own[a:b] for a, b in pairwise(firsts)] == [
        ["a", "b"],
        ["b", "a"],
        [],
        ["a", "b", "c"],
    ]


def test_a_text_of_a_row_counts_once() -> None:
    """The result equals `document_text`, from which highlights are cut."""
    check_repeated()


def test_texts_of_a_row_are_no_phrase() -> None:
    """A phrase does not extend from one text of a span to the next."""
    [row] = ENGLISH.wording.texts_of_rows(pa.array(["one two", "three four"]), np.array([0, 2]))
    assert [token.position for token in ENGLISH.tokenizer().pre_tokenize(row).tokens] == [0, 1, 3, 4]
