"""Shared helpers of tokenizer tests: words of a text match query words, and those of large rows match those of
small ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from tracelake.search import tokenization
from tracelake.search.analyzers import Analyzer


def check_words(analyzer: Analyzer, given_texts: list[str]) -> None:
    """Check that each text has its query words at the same distances, preceded by those of its parts."""
    array = pa.array(given_texts, pa.string())
    whole = analyzer.wording.texts_of_rows(array, np.arange(len(given_texts) + 1))
    for text, written in zip(given_texts, whole, strict=True):
        tokens = analyzer.tokenizer().pre_tokenize(written).tokens
        expected = [(word.stem, word.position) for word in analyzer.words_of(text)]
        parts = [
            word.stem
            for part in sorted(analyzer.parts([text]).get(0, ()))
            for word in analyzer.words_of(part)
        ]
        assert [token.text for token in tokens] == [*parts, *(stem for stem, _ in expected)]
        own = tokens[len(parts) :]
        if own:
            assert [token.position - own[0].position for token in own] == [
                at - expected[0][1] for _, at in expected
            ]
        if parts and own:
            assert own[0].position > tokens[len(parts) - 1].position + 1, "a phrase goes over a border"


def few_at_a_time(patch: pytest.MonkeyPatch, at_once: int) -> None:
    """Limit the bytes and parts tokenized at a time."""
    for module in (tokenization, tokenization):
        patch.setattr(module, "INDEX_WORDED_AT_ONCE_BYTES", at_once)
    patch.setattr(tokenization, "INDEX_CHUNKS_KEPT", at_once)


def check_large(analyzer: Analyzer, given_texts: list[str]) -> None:
    """Check that a row of several texts has the same words at the same positions with and without pieces."""
    array, firsts = pa.array(given_texts, pa.string()), np.array([0, len(given_texts)])
    told = []
    for bound in (-1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tokenization, "INDEX_BATCH_MAX_BYTES", bound)
            [text] = dataclasses.replace(analyzer).wording.texts_of_rows(array, firsts)
        tokens = analyzer.tokenizer().pre_tokenize(text).tokens
        told.append([(token.text, token.position) for token in tokens])
    in_pieces, whole = told
    assert in_pieces == whole
