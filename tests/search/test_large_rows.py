"""Large single rows: they are tokenized in pieces, of which few are in memory at a time."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from tests.search.worded import check_large, few_at_a_time
from tracelake.search import analyzers, tokenization
from tracelake.search.analyzers import ANALYZERS
from tracelake.search.tokenization import BatchTokenizer

AT_ONCE: Final = 100
NAMES: Final = [f"a{n}Bc" for n in range(120)]
WITH_PARTS: Final = (
    " ".join(NAMES),
    ",".join(NAMES),
    "/".join(NAMES),
    ",".join(f"{name}.x" for name in NAMES),
    " ".join(["word"] * 10 + ["x" * 400] + [f"c{n}Dd" for n in range(50)]),
    *(f"one t{n}wO three" for n in range(20)),
)


def check_large_row(name: str) -> None:
    """Check that a large row gives a small row's words, with little in Arrow and few parts in Python at a time."""
    held_at_once: list[int] = []

    class Counting(BatchTokenizer):
        def _at_once(self, texts: Any, firsts: tokenization.Numbers) -> Any:
            held_at_once.append(sum(map(len, texts.to_pylist())))
            return super()._at_once(texts, firsts)

        def _parts(self, texts: list[str]) -> Any:
            for owners, parts in super()._parts(texts):
                held_at_once.append(len(parts))
                yield owners, parts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analyzers, "BatchTokenizer", Counting)
        patch.setattr(tokenization, "INDEX_BATCH_MAX_BYTES", 1_000)
        array = pa.array(WITH_PARTS)
        dataclasses.replace(ANALYZERS[name]).wording.texts_of_rows(array, np.array([0, len(array)]))
    check_large(ANALYZERS[name], [*WITH_PARTS])
    assert len(held_at_once) > len(WITH_PARTS)
    assert max(held_at_once) <= AT_ONCE


@pytest.mark.parametrize("name", ANALYZERS)
def test_little_of_a_large_row_is_there_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large row is processed in pieces without loss, with many parts or none, with whitespace or none."""
    few_at_a_time(monkeypatch, AT_ONCE)
    check_large_row(name)
