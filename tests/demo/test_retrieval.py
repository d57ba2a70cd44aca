"""Passages of Python's documentation, and the ones that a query finds."""

from __future__ import annotations

import math

import pytest

from tracelake.demo.agent import K1, NAME_WEIGHT, B, Index, Passage, passages, words


def test_the_corpus_is_pythons_own_documentation() -> None:
    """The corpus has thousands of passages, in a stable order, documenting the listed modules."""
    found = passages()
    assert len(found) > 2_000
    assert found == passages()
    assert any(p.name == "heapq.nlargest" and "n largest" in p.text for p in found)


def test_words_split_names_and_plurals() -> None:
    """Names are split at dots and underscores; plurals and stop words are removed."""
    assert words("functools.lru_cache of 3 Caches") == ["functool", "lru", "cache", "3", "cache"]


def test_scores_are_bm25() -> None:
    """The score of a passage follows the BM25 formula."""
    texts = ["red apple", "green apple pie", "blue sky"]
    index = Index([Passage(f"m{n}", text) for n, text in enumerate(texts)])
    lengths = [len(words(f"m{n}")) * NAME_WEIGHT + len(words(text)) for n, text in enumerate(texts)]
    mean = sum(lengths) / 3
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    expected = [idf * (K1 + 1) / (1 + K1 * (1 - B + B * length / mean)) for length in lengths[:2]]
    assert [score for score, _ in index.search("apple")] == pytest.approx(sorted(expected, reverse=True))
    assert index.search("nothing of it") == []
    assert Index([]).search("apple") == []


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("n largest elements of an iterable", "heapq.nlargest"),
        ("copy a whole directory tree", "shutil.copytree"),
        ("split a shell command line", "shlex.split"),
    ],
)
def test_questions_find_their_passage(question: str, name: str) -> None:
    """The function that answers a question is among the first five passages."""
    assert name in [passage.name for _, passage in Index(passages()).search(question)]
