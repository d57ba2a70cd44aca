"""Rules of searches, broken: a named check must fail."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.search import test_dropped_words
from tests.search.build_inputs import index_of, table
from tracelake.search.analyzers import Analyzer
from tracelake.search.query import Searcher


@pytest.mark.parametrize("dropped", [test_dropped_words.LONG, test_dropped_words.EMOJI])
def test_ignoring_what_the_index_cannot_hold_is_caught(tmp_path: Path, dropped: str) -> None:
    """If a word that the index cannot hold is ignored, the query matches more."""
    objects, manifest = index_of([table(test_dropped_words.ROWS)])
    with (
        mock.patch.object(Analyzer, "dropped_from", lambda _self, _text: None),
        pytest.raises((AssertionError, pytest.fail.Exception, IndexError)),
    ):
        test_dropped_words.check_every_position(Searcher(objects, manifest, tmp_path), dropped)
