"""Bounds of a score's error while replaced rows count that no merge has removed yet."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

import tracelake
from tests.lake.test_lake_search import ingest, scores
from tests.pipeline.spans import a_span
from tracelake.search.protocol import INDEX_REWRITTEN_SHARE, counts_replaced
from tracelake.tasks.runners import InProcess

WORDS = ("often", "common", "usual", "seldom", "rare", "single")
LIVE = 64
REPLACED = int(INDEX_REWRITTEN_SHARE * LIVE / (1 - INDEX_REWRITTEN_SHARE))
"""Number of replaced rows that an index with so many live rows keeps: with one more, parts are rewritten."""


def weight(documents: int, having: int) -> float:
    """Return BM25's weight of a word with a given document frequency."""
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


def note(chance: random.Random) -> str:
    """Return a text of four words, some of them more frequent than others."""
    return " ".join(chance.choices(WORDS, [32, 16, 8, 4, 2, 1], k=4))


@pytest.mark.parametrize("seed", range(3))
def test_scores_while_replaced_rows_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Each score is between those if all replaced rows had the word, and if no replaced row had it. No hit is
    missing.

    Texts have similar lengths, so that only the weight of the word differs.
    """
    monkeypatch.setattr("tracelake.search.protocol.INDEX_REPLACED_MIN", 1)
    assert not counts_replaced(LIVE + REPLACED, LIVE)
    assert counts_replaced(LIVE + REPLACED + 2, LIVE)
    chance = random.Random(seed)
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        ingest(lake, tmp_path, 0, *(a_span(n, 0, note=note(chance)) for n in range(LIVE)))
        ingest(lake, tmp_path, 1, *(a_span(n, 0, end=99, note=note(chance)) for n in range(REPLACED)))
        info = lake.index()
        assert info is not None
        assert info.documents == LIVE + REPLACED, "nothing was written again"
        counted = {word: dict(scores(lake, word)) for word in WORDS}
        lake.maintenance.rebuild_index(runner=InProcess())
        differs = False
        for word, with_replaced in counted.items():
            exact = dict(scores(lake, word))
            assert with_replaced.keys() == exact.keys()
            having = len(exact)
            if not having:
                continue
            least, most = (
                weight(LIVE + REPLACED, having + more) / weight(LIVE, having) for more in (REPLACED, 0)
            )
            for hit, score in exact.items():
                ratio = with_replaced[hit] / score
                assert least - 0.02 <= ratio <= most + 0.02, (word, least, ratio, most)
                differs |= abs(ratio - 1) > 0.001
        assert differs, "else nothing was tried"
