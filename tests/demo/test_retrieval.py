"""Passages of Python's documentation, and the ones that a query finds."""

from __future__ import annotations

import pytest

from tracelake.demo.agent import QUESTIONS, Passage, passages, search, words


def test_words_split_names_and_plurals() -> None:
    """Names are split at dots and underscores; plurals and stop words are removed."""
    assert words("functools.lru_cache of 3 Caches") == ["functool", "lru", "cache", "3", "cache"]


def test_rare_words_count_more() -> None:
    """A passage scores by the words that it shares with the query, each divided by the passages that have it."""
    apple, pie, sky = (Passage("m", text) for text in ("red apple", "green apple pie", "blue sky"))
    assert search([apple, pie, sky], "apple pie") == [(1.5, pie), (0.5, apple)]
    assert search([apple, pie, sky], "apple pie", limit=1) == [(1.5, pie)]
    assert search([apple], "nothing of it") == search([], "apple") == []


@pytest.mark.parametrize(
    ("question", "name"),
    [
        (QUESTIONS[0], "shlex.split"),
        (QUESTIONS[1], "heapq.nlargest"),
        (QUESTIONS[2], "hmac.compare_digest"),
        (QUESTIONS[4], "textwrap.wrap"),
        (QUESTIONS[5], "tempfile.TemporaryDirectory"),
        (QUESTIONS[6], "bisect.insort"),
        (QUESTIONS[8], "urllib.parse.urlparse"),
        (QUESTIONS[9], "shutil.copytree"),
        (QUESTIONS[11], "dataclasses.asdict"),
    ],
)
def test_questions_find_their_passage(question: str, name: str) -> None:
    """The function that answers a question is among the first five passages."""
    assert name in [passage.name for _, passage in search(passages(), question)]
