"""Mutants of search: for each broken rule, a named check fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest

import tracelake
from tests.datasets.conversations import ingest
from tests.lake import test_list_pages, test_usage
from tests.search import test_dropped_words
from tests.search.build_inputs import index_of, table
from tracelake.lake import trace_list
from tracelake.search import searcher
from tracelake.search.analyzers import Analyzer
from tracelake.search.searcher import Searcher
from tracelake.tables import page_tokens


@pytest.mark.parametrize("dropped", [test_dropped_words.LONG, test_dropped_words.EMOJI])
def test_ignoring_what_the_index_cannot_hold_is_caught(tmp_path: Path, dropped: str) -> None:
    """If a word that the index cannot hold is ignored, the query matches more."""
    objects, manifest = index_of([table(test_dropped_words.ROWS)])
    with (
        mock.patch.object(Analyzer, "dropped_from", return_value=None),
        pytest.raises((AssertionError, pytest.fail.Exception, IndexError)),
    ):
        test_dropped_words.check_every_position(Searcher(objects, manifest, tmp_path), dropped)


def test_adding_tokens_in_64_bits_is_caught(tmp_path: Path) -> None:
    """If the list adds two columns of 64 bits, one span breaks it for all."""
    narrow = {**trace_list.KEYS, "tokens": ("(coalesce(input_tokens, 0) + coalesce(output_tokens, 0)) DESC",)}
    with tracelake.init(tmp_path / "lake") as lake:
        ingest(lake, tmp_path, *test_usage.OVERFLOWING)
        test_usage.check_order_by_tokens(lake)
        with mock.patch.object(trace_list, "KEYS", narrow), pytest.raises(tracelake.QueryError):
            test_usage.check_order_by_tokens(lake)


def test_an_order_without_the_id_is_caught(tmp_path: Path) -> None:
    """If equal keys have no tie-breaker, pages leave traces out."""

    def without_id(keys: Sequence[tuple[str, str, bool]]) -> str:
        return " AND ".join(f"{column} {'<' if falls else '>'} {value}" for column, value, falls in keys[:-1])

    with tracelake.init(tmp_path / "lake") as lake:
        store = lake.hot.set_up()
        with mock.patch.object(page_tokens, "_behind", without_id), pytest.raises(AssertionError):
            test_list_pages.check_all_once(lake, store, "oldest")


def test_a_future_without_bound_is_caught(tmp_path: Path) -> None:
    """If any start time counts as recent, a span of the far future comes first among the newest."""
    with tracelake.init(tmp_path / "lake") as lake:
        test_list_pages.write_starts(lake.hot.set_up())
        test_list_pages.check_far_future_is_last(lake)
        for module in (searcher, page_tokens):
            with (
                mock.patch.object(module, "latest_start", return_value=2**63 - 1),
                pytest.raises(AssertionError),
            ):
                test_list_pages.check_far_future_is_last(lake)
