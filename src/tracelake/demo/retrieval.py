"""Retrieval over passages by BM25 (Robertson and Zaragoza, 2009, equation 3.15, with idf that stays positive)."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from typing import Final

from tracelake.demo.corpus import Passage

K1: Final = 1.2
B: Final = 0.75
NAME_WEIGHT: Final = 3
"""A word in the name of a thing counts as so many in its text."""

_STOP: Final = (
    "a an and are as at be by can do does for from how i if in into is it its may not of on or s so than "
    "that the their then there this to use used using want what when which will with without you your "
    "python"
)
_STOP_WORDS: Final = frozenset(_STOP.split())


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, names split at dots and underscores, plurals cut."""
    every_word = re.findall(r"[a-z]+|\d+", text.lower())
    return [w[:-1] if len(w) > 3 and w.endswith("s") else w for w in every_word if w not in _STOP_WORDS]


class Index:
    """An inverted index in memory; immutable once built."""

    def __init__(self, passages: list[Passage]) -> None:
        """Index the passages."""
        self.passages = passages
        self._postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._lengths = []
        for number, passage in enumerate(passages):
            counts = Counter(words(passage.text) + words(passage.name) * NAME_WEIGHT)
            self._lengths.append(counts.total())
            for word, count in counts.items():
                self._postings[word].append((number, count))
        self._mean = sum(self._lengths) / max(len(passages), 1)

    def search(self, query: str, limit: int = 5) -> list[tuple[float, Passage]]:
        """Return the best `limit` passages with their scores, best first."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(words(query)):
            postings = self._postings.get(word, [])
            idf = math.log(1 + (len(self.passages) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, count in postings:
                norm = K1 * (1 - B + B * self._lengths[number] / self._mean)
                scores[number] += idf * count * (K1 + 1) / (count + norm)
        best = heapq.nlargest(limit, scores.items(), key=lambda item: (item[1], -item[0]))
        return [(score, self.passages[number]) for number, score in best]
