"""Search results on real data, and their independence of the number of parts (F15)."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.search.build_inputs import INDEX, agents, finalize_build, index_of, plain_rows, span, table
from tracelake.search.build import build_part
from tracelake.search.documents import (
    SEARCH_RANKED_FIRST_HITS,
    SEARCH_RANKED_STEP_HITS,
    RawHit,
    document_text,
)
from tracelake.search.model import Manifest
from tracelake.search.searcher import Searcher, Sort
from tracelake.storage.local import MemoryObjectStore


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return one index of one part over the agents data."""
    objects, manifest = index_of([agents()])
    return Searcher(objects, manifest, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return the same documents in the same order, in 11 uneven parts of three builds."""
    objects = MemoryObjectStore()
    cuts = [0, 1, 40, 500, 501, 1200, 2000, 2001, 2900, 3500, 4900, agents().num_rows]
    slices = [agents().slice(lo, hi - lo) for lo, hi in pairwise(cuts)]
    manifest: Manifest | None = None
    for number, group in enumerate((slices[:5], slices[5:6], slices[6:])):
        build = f"spans-{number}"
        for bucket, rows in enumerate(group):
            build_part(objects, INDEX, build, bucket, bucket + 1, "a", rows)
        manifest = finalize_build(objects, len(group), build=build, upper=number + 1, parent=manifest)
    assert manifest is not None
    assert manifest.part_count == 11
    return Searcher(objects, manifest, tmp_path_factory.mktemp("many"))


def queries() -> list[str]:
    """Return terms from frequent to rare, phrases of the text itself, and booleans of both."""
    texts = [" ".join(document_text(row)).lower() for row in plain_rows(agents())]
    sequences = [re.findall(r"[a-z]{2,20}", text) for text in texts[:: len(texts) // 400]]
    common = Counter(word for words in sequences for word in words).most_common()
    words_by_count = [word for word, _ in common]
    terms = words_by_count[:20] + words_by_count[20 :: len(words_by_count) // 40][:40]
    # Neighbours in the text itself: letters on both sides of one space.
    neighbours = [re.findall(r"(?<![^\W_])([a-z]{2,20} [a-z]{2,20})(?![^\W_])", text) for text in texts[::40]]
    phrases = [f'"{found[len(found) // 2]}"' for found in neighbours if found][:40]
    pairs = list(zip(terms, reversed(terms), strict=True))
    booleans = [f"{a} AND {b}" for a, b in pairs[:15]] + [f"+{a} -{b}" for a, b in pairs[15:30]]
    booleans += [f"{phrase} OR {term}" for phrase, term in zip(phrases, terms, strict=False)]
    return [*terms, *phrases, *booleans, "status:error", 'name:chat AND service:"multi-agent-team"', "*"]


def above(hits: list[RawHit], score: float) -> list[RawHit]:
    """Return the hits with better scores."""
    return [hit for hit in hits if hit.score > score]


def test_f15_many_parts_score_and_rank_as_one_index(one: Searcher, many: Searcher) -> None:
    """F15: for more than 100 queries of three kinds, the top 100 and their scores are the same."""
    asked = queries()
    assert len(asked) >= 100
    found = 0
    for query in asked:
        expected, hits = one.search(query, 100), many.search(query, 100)
        assert [hit.score for hit in hits] == [hit.score for hit in expected], query
        # If more equal scores exist than fit, the last ones are arbitrary.
        last = expected[-1].score if len(expected) == 100 else 0.0
        assert above(hits, last) == above(expected, last), query
        found += bool(expected)
    assert found >= 0.9 * len(asked), "most queries must find something, or this shows nothing"


def test_a_search_finds_exactly_the_spans_that_hold_the_word(one: Searcher) -> None:
    """A word finds exactly the spans whose name or text has one of its forms, each with its ids and transaction."""
    word, forms = "refund", {"refund", "refunds", "refunded", "refunding", "refundable"}
    expected = {
        (row["trace_id"], row["span_id"], row["transaction"])
        for row in plain_rows(agents())
        if forms & set(re.findall(r"[^\W_]+", " ".join([row["name"], *document_text(row)]).lower()))
    }
    hits = one.search(word, 5_000)
    assert len(expected) > 50
    assert {(hit.trace_id, hit.span_id, hit.transaction) for hit in hits} == expected
    assert len(hits) == len(expected)


def test_a_phrase_does_not_reach_from_one_value_into_the_next(tmp_path: Path) -> None:
    """Two consecutive attribute values form no phrase."""
    spans = table([span(1, attributes=[("a", "alpha beta"), ("b", "gamma delta")])])
    objects, manifest = index_of([spans])
    searcher = Searcher(objects, manifest, tmp_path)
    assert len(searcher.search('"alpha beta"', 10)) == 1
    assert searcher.search('"beta gamma"', 10) == []


def test_pages_are_slices_of_the_whole_answer(many: Searcher) -> None:
    """Offset and limit slice the same ranking, which is empty past its end."""
    whole = many.search("airline OR refund", 50)
    pages: list[RawHit] = []
    for offset in range(0, 50, 10):
        pages += many.search("airline OR refund", 10, offset)
    assert pages == whole
    assert many.search("airline", 0) == []
    assert many.search("airline", 10, offset=1_000_000) == []
    assert len(many.search("*", 10**12)) == agents().num_rows


@pytest.fixture(scope="module")
def large_first(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return some documents in parts of which the first are the largest, as after merges."""
    cuts = [0, 300, 420, 421, 470, 510, 560, 600]
    slices = [agents().slice(lo, hi - lo) for lo, hi in pairwise(cuts)]
    return Searcher(*index_of(slices), tmp_path_factory.mktemp("cache"))


def check_pages(searcher: Searcher, query: str, sort: Sort) -> None:
    """Check that lists of any length begin alike, and pages of any size are slices of the longest."""
    longest = searcher.search(query, 3_000, sort=sort)
    for size in (1, 20, SEARCH_RANKED_FIRST_HITS, SEARCH_RANKED_FIRST_HITS + 1, SEARCH_RANKED_STEP_HITS + 1):
        assert searcher.search(query, size, sort=sort) == longest[:size]
    for size in (7, 30):
        pages = [
            hit for at in range(0, 8 * size, size) for hit in searcher.search(query, size, at, sort=sort)
        ]
        assert pages == longest[: 8 * size]


@pytest.mark.parametrize("sort", ["score", "newest", "oldest"])
@pytest.mark.parametrize(
    "query", ["*", "service:airline-agent", "flight", "flight OR refund", "ref*", '"the user"']
)
def test_lists_of_any_length_begin_alike(
    many: Searcher, large_first: Searcher, query: str, sort: Sort
) -> None:
    """Lists of several lengths order equal scores and times alike, because pages are cut from them."""
    check_pages(many, query, sort)
    check_pages(large_first, query, sort)
