"""Generated queries against a plain evaluation over the rows: what is found is what the query says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.build_inputs import index_of, span, table
from tracelake.search.grammar import AllOf, AnyOf, Atom, Not, parse
from tracelake.search.query import Searcher
from tracelake.search.syntax import terms

WORDS: Final = ("alpha", "beta", "gamma")
SERVICES: Final = ("shop", "Cart")
TEXTS: Final = ("", *(" ".join(words) for n in (1, 2, 3) for words in itertools.permutations(WORDS, n)))

Row = dict[str, Any]
Judge = Callable[[Row], bool] | None
"""Tells whether a row is found; None where a query has no words in it."""


def rows() -> list[Row]:
    """Return rows with any words in name and two texts, of two services and of none."""
    pick = random.Random(9).choice
    return [
        span(n, name=pick(TEXTS), input=pick(TEXTS), output=pick(TEXTS), service=pick((*SERVICES, None)))
        for n in range(80)
    ]


ROWS: Final = rows()


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """The rows in three parts."""
    objects, manifest = index_of([table(ROWS[:10]), table(ROWS[10:50]), table(ROWS[50:])])
    return Searcher(objects, manifest, tmp_path_factory.mktemp("cache"))


@dataclass(frozen=True)
class Asked:
    """A query as it is written, how tightly its outermost operator binds, and what it means."""

    text: str
    binds: int
    judge: Judge

    def inside(self, binds: int) -> str:
        """Return its text for a place beside an operator that binds so tightly."""
        return self.text if self.binds >= binds else f"({self.text})"


BESIDE, OR, AND, OPERAND = range(4)


def holds(words: str, field: str | None) -> Judge:
    """Return what finds a word or phrase in one value of a row."""

    def judge(row: Row) -> bool:
        values = {"name": [row["name"]], "text": [row["input"], row["output"]]}
        looked_at = values[field] if field else [*values["name"], *values["text"]]
        return any(f" {words} " in f" {value} " for value in looked_at)

    return judge


def of_service(name: str) -> Judge:
    """Return what finds the spans of a service."""
    return lambda row: (row["service"] or "").lower() == name.lower()


def atoms() -> st.SearchStrategy[Asked]:
    """Words, phrases, fields, and what has no word in it."""
    words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True).map(" ".join)
    prefixed = st.tuples(st.sampled_from((None, "name", "text")), words)
    written = prefixed.map(
        lambda asked: Asked(
            (f"{asked[0]}:" if asked[0] else "") + (f'"{asked[1]}"' if " " in asked[1] else asked[1]),
            OPERAND,
            holds(asked[1], asked[0]),
        )
    )
    services = st.sampled_from(SERVICES).map(lambda name: Asked(f"service:{name}", OPERAND, of_service(name)))
    return written | services | st.sampled_from([Asked("!!!", OPERAND, None), Asked('"-"', OPERAND, None)])


def negated(inner: Asked, sign: str) -> Asked:
    """Return what the other does not find."""
    judge = inner.judge
    return Asked(sign + inner.inside(OPERAND), OPERAND, None if judge is None else lambda row: not judge(row))


def joined(parts: list[Asked], binds: int) -> Asked:
    """Return several queries joined by one operator; those without words count for nothing."""
    text = {BESIDE: " ", OR: " OR ", AND: " AND "}[binds].join(part.inside(binds + 1) for part in parts)
    judges = [part.judge for part in parts if part.judge is not None]
    judge: Judge = None
    if judges:
        every = any if binds == OR else all
        judge = lambda row: every(judge(row) for judge in judges)  # noqa: E731
    return Asked(text, binds, judge)


def larger(smaller: st.SearchStrategy[Asked]) -> st.SearchStrategy[Asked]:
    """Return queries made of smaller ones."""
    several = st.lists(smaller, min_size=2, max_size=4)
    return (
        st.builds(negated, smaller, st.sampled_from(("NOT ", "-")))
        | st.builds(joined, several, st.sampled_from((BESIDE, OR, AND)))
        | smaller.map(lambda asked: Asked(f"( {asked.text} )", OPERAND, asked.judge))
        | smaller.map(lambda asked: Asked("+" + asked.inside(OPERAND), OPERAND, asked.judge))
    )


@settings(deadline=None, max_examples=400)
@given(st.recursive(atoms(), larger, max_leaves=8))
def test_a_query_finds_what_it_says(searcher: Searcher, asked: Asked) -> None:
    """Words, phrases, fields, AND, OR, NOT and parentheses, nested, find the rows that a plain evaluation finds."""
    expected = {row["span_id"] for row in ROWS if asked.judge is not None and asked.judge(row)}
    hits = searcher.search(asked.text, 1_000)
    assert {hit.span_id for hit in hits} == expected
    assert len(hits) == len(expected)
    terms(asked.text)


@settings(deadline=None, max_examples=100)
@given(st.recursive(atoms(), larger, max_leaves=4), st.sampled_from(SERVICES))
def test_a_service_is_one_more_condition(searcher: Searcher, asked: Asked, service: str) -> None:
    """A search in one service finds, with the same scores, what a search in all finds of it."""
    of_it = {row["span_id"] for row in ROWS if row["service"] == service}
    everywhere = {(hit.span_id, round(hit.score, 4)) for hit in searcher.search(asked.text, 1_000)}
    inside = {(hit.span_id, round(hit.score, 4)) for hit in searcher.search(asked.text, 1_000, 0, service)}
    assert inside == {(span_id, score) for span_id, score in everywhere if span_id in of_it}


def test_groups_beside_each_other_stay_apart() -> None:
    """Words beside each other mean AND, and bind less than OR, which binds less than AND."""
    a, b, c, d = map(Atom, "abcd")
    assert parse("a OR b c OR d") == AllOf((AnyOf((a, b)), AnyOf((c, d))))
    assert parse("a OR b AND NOT c") == AnyOf((a, AllOf((b, Not(c)))))
    assert parse("name:(a -b)") == AllOf((Atom("name:a"), Not(Atom("name:b"))))
