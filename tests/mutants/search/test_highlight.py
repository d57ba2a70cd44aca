"""Mutants that `tests/search/test_highlight.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from tests.search import test_highlight
from tracelake.search.results import _beginnings, _Term


@pytest.mark.parametrize(
    "broken",
    [
        lambda wanted: "" if wanted.distance else wanted.words[0].written,
        lambda wanted: "" if wanted.distance else wanted.words[-1].stem,
        lambda wanted: wanted.words[0].stem[:3],
    ],
    ids=[
        "a text may have another form of a word",
        "a stem may end otherwise",
        "a similar word may begin otherwise",
    ],
)
def test_skipped_texts(broken: Callable[[_Term], str]) -> None:
    """The check fails if a text with a match is skipped."""
    _beginnings.cache_clear()
    with mock.patch.object(_Term, "beginning_pattern", broken), pytest.raises(AssertionError):
        test_highlight.check_spellings()
    _beginnings.cache_clear()
