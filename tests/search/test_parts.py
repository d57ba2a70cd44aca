"""Parts of identifiers with capitals inside."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.build_inputs import index_of, span, table
from tracelake import limits
from tracelake.search.searcher import Searcher
from tracelake.search.tokenization import identifiers, parts_of_name

_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def one_by_one(text: str) -> set[str]:
    """Return the parts of a text's identifiers, word by word."""
    words = re.findall(r"[0-9A-Za-z\x80-\U0010ffff]+", text)
    return {
        " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+", word))
        for word in words
        if _BORDER.search(word) and len(word.encode()) <= limits.IDENTIFIER_MAX_BYTES
    }


@given(st.lists(st.text("abAB1_ é", max_size=12) | st.just("aB" * 40), max_size=6))
def test_texts_in_bulk_give_the_parts_of_each(texts: list[str]) -> None:
    """Identifiers of many texts in bulk equal those of each text alone."""
    found = identifiers(texts)
    assert {number: parts for number, parts in found.items() if parts} == {
        number: tuple(sorted(parts)) for number, text in enumerate(texts) if (parts := one_by_one(text))
    }


@pytest.mark.parametrize("times", [1, 200])
def test_a_name_has_the_parts_of_its_identifiers_however_long_it_is(times: int) -> None:
    """Only short names are cached, and all are split."""
    assert parts_of_name("GetCart of aShop " * times) == ("Get Cart", "a Shop")


ROWS = (
    span(0, input="call refundPolicy HTTPServer"),
    span(1, events=[{"name": "x", "attributes": [("k", '{"refundPolicy": 1}')]}]),
    span(2, attributes=[("q", "refund policy"), ("url", "http://shop/v1/orders?order_id=7")]),
    span(3, name="GetCart", output="GitHub"),
)


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return the rows in one part."""
    objects, manifest = index_of([table(ROWS)])
    return Searcher(objects, manifest, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("refundPolicy", {0, 1}),
        ("refund", {0, 1, 2}),
        ('"refund policy"', {0, 1, 2}),
        ("server", {0}),
        ('"policy HTTP"', set()),
        ("order_id", {2}),
        ("order", {2}),
        ('"/v1/orders"', {2}),
        ("github", {3}),
        ("name:cart", {3}),
    ],
)
def test_identifiers_are_found_whole_and_by_part(searcher: Searcher, query: str, expected: set[int]) -> None:
    """Parts of camelCase, snake_case, URLs and JSON keys are found."""
    assert {hit.span_id for hit in searcher.search(query, 10)} == {
        ROWS[number]["span_id"] for number in expected
    }
