"""One order of several: reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009). Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


def fused(rankings: Sequence[Sequence[int]], smoothed: int = 60) -> list[tuple[int, float]]:
    """Return what is in any of the rankings with its score, best first: the sum of 1 / (60 + rank), from 1.

    Equal ones are in the order of their numbers. `smoothed` is the constant of the paper.
    """
    scores: defaultdict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, row in enumerate(ranking, 1):
            scores[row] += 1 / (smoothed + rank)
    return sorted(scores.items(), key=lambda one: (-one[1], one[0]))
