"""Generated queries compared with a plain evaluation over the rows: hits are exactly what the query means."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.build_inputs import index_of, span, table
from tracelake.search.query_compiler import texts_wanted
from tracelake.search.query_parser import (
    AllOf,
    AnyOf,
    Not,
    QuerySyntaxError,
    Text,
    ValueRange,
    parse,
)
from tracelake.search.searcher import Searcher

WORDS: Final = ("alpha", "beta", "gamma")
NOW_NS: Final = 1_767_225_600_000_000_000
"""2026-01-01T00:00Z."""
HOUR_NS: Final = 3_600_000_000_000
KEYS: Final = ("http.status_code", 'a:b "c" (d', "AND", "has", "Ünï\\çödé", "retry")
NUMBERS: Final = (
    "0",
    "-0.0",
    "7",
    "7.5",
    "-3",
    "500",
    "1e300",
    "-1e300",
    "9007199254740993",
    "Infinity",
    "NaN",
)
VALUES: Final = (*NUMBERS, "true", "false", "GET /cart", "a..b", "7 apples", "", "x" * 200)
SERVICES: Final = ("shop", "Cart")
TEXTS: Final = ("", *(" ".join(words) for n in (1, 2, 3) for words in itertools.permutations(WORDS, n)))

Row = dict[str, Any]
Judge = Callable[[Row], bool]
"""Predicate that tells whether a row matches."""


def rows() -> list[Row]:
    """Generate rows with any words in name and two texts, of two services and of none."""
    draw = random.Random(9)
    pick = draw.choice

    def attributes() -> list[tuple[str, str]]:
        return [(key, pick(VALUES)) for key in KEYS if draw.random() < 0.5]

    def types(held: list[tuple[str, str]]) -> str:
        return "".join(pick("sid" if value in NUMBERS else "s") for _, value in held)

    made = []
    for n in range(120):
        held, of_resource, running = attributes(), attributes(), draw.random() < 0.2
        duration = 0 if running else pick((1, 999_999_999, 2_000_000_000, 2_000_000_001, 2**62))
        start = NOW_NS - pick((0, 1, HOUR_NS, HOUR_NS + 1, 30 * HOUR_NS, -HOUR_NS))
        made.append(
            span(
                n,
                name=pick(TEXTS),
                input=pick(TEXTS),
                output=pick(TEXTS),
                service=pick((*SERVICES, None)),
                model=pick(("gpt-4o", "GPT-4o", "o3", None)),
                session_id=pick(("s 1", 'q"\\', None)),
                start_ns=start,
                end_ns=0 if running else start + duration,
                duration_ns=duration,
                input_tokens=pick((None, 0, 5, 2**62)),
                output_tokens=pick((None, 1, 2**62)),
                attributes=held,
                resource=of_resource,
                otlp={"attribute_types": types(held), "resource_types": types(of_resource)},
            )
        )
    return made


ROWS: Final = rows()


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return the rows in three parts."""
    objects, manifest = index_of([table(ROWS[:10]), table(ROWS[10:50]), table(ROWS[50:])])
    return Searcher(objects, manifest, tmp_path_factory.mktemp("cache"))


@dataclass(frozen=True)
class Asked:
    """A query's text, the precedence of its outermost operator, and its meaning."""

    text: str
    binds: int
    judge: Judge

    def inside(self, binds: int) -> str:
        """Return its text for use next to an operator of this precedence."""
        return self.text if self.binds >= binds else f"({self.text})"


BESIDE, OR, AND, OPERAND = range(4)


def holds(words: str, field: str | None) -> Judge:
    """Return a predicate for a word or phrase in one value of a row."""

    def judge(row: Row) -> bool:
        values = {"name": [row["name"]], "text": [row["input"], row["output"]]}
        looked_at = values[field] if field else [*values["name"], *values["text"]]
        return any(f" {words} " in f" {value} " for value in looked_at)

    return judge


def of_service(name: str) -> Judge:
    """Return a predicate for the spans of a service."""
    return lambda row: (row["service"] or "").lower() == name.lower()


def quoted(text: str) -> str:
    """Return a text in double quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def prefixed(beginning: str) -> Judge:
    """Return a predicate for word prefixes in names and texts."""
    return lambda row: any(
        word.startswith(beginning)
        for value in (row["name"], row["input"], row["output"])
        for word in value.split()
    )


def compares(operator: str, value: Any) -> Callable[[Any], bool]:
    """Return a comparison as a predicate of a value; None never matches."""
    say = {">": float.__gt__, ">=": float.__ge__, "<": float.__lt__, "<=": float.__le__, ":": float.__eq__}
    whole = {">": int.__gt__, ">=": int.__ge__, "<": int.__lt__, "<=": int.__le__, ":": int.__eq__}
    chosen: Any = (whole if isinstance(value, int) else say)[operator]
    return lambda found: found is not None and bool(chosen(found, value))


def tokens(row: Row) -> int | None:
    """Generate token counts of input and output, as large as 64 bits hold."""
    given, made = row["input_tokens"], row["output_tokens"]
    return None if given is made is None else min((given or 0) + (made or 0), 2**63 - 1)


MEASURES: Final[dict[str, tuple[Callable[[Row], int | None], dict[str, int]]]] = {
    "tokens": (tokens, {"0": 0, "5": 5, "6": 6, "1e3": 1000, "9223372036854775807": 2**63 - 1}),
    "input_tokens": (
        lambda row: row["input_tokens"],
        {"0": 0, "5": 5, "1e999": 10**999, "-1e999": -(10**999)},
    ),
    "duration": (
        lambda row: row["duration_ns"] if row["end_ns"] else None,
        {
            "1ns": 1,
            "2s": 2 * 10**9,
            "2000ms": 2 * 10**9,
            "0.5h": HOUR_NS // 2,
            "100000000w": 10**8 * 168 * HOUR_NS,
        },
    ),
}
COMPARED: Final = (">", ">=", "<", "<=", ":")


def measured() -> st.SearchStrategy[Asked]:
    """Generate comparisons of integers."""

    def asked(field: str, operator: str, text: str) -> Asked:
        read, values = MEASURES[field]
        holds = compares(operator, values[text])
        return Asked(f"{field}{operator}{text}", OPERAND, lambda row: holds(read(row)))

    pairs = [(field, text) for field, (_, values) in MEASURES.items() for text in values]
    return st.builds(
        lambda pair, operator: asked(pair[0], operator, pair[1]),
        st.sampled_from(pairs),
        st.sampled_from(COMPARED),
    )


def times() -> st.SearchStrategy[Asked]:
    """Generate start times: `last`, days, moments and ranges of days."""
    day = 24 * HOUR_NS
    found: dict[str, tuple[int, int]] = {
        "last 1h": (NOW_NS - HOUR_NS, NOW_NS),
        "last 2d": (NOW_NS - 2 * day, NOW_NS),
        "start:2025-12-31": (NOW_NS - day, NOW_NS - 1),
        "2025-12-31..2026-01-01": (NOW_NS - day, NOW_NS + day - 1),
        "2026-01-01..": (NOW_NS, 2**63),
        "start:..2025-12": (0, NOW_NS - 1),
        "start>2025-12-31": (NOW_NS, 2**63),
        "2026-01-01..9999-12-31": (NOW_NS, 2**63),
        "start>=9999-12-31T23:59:59": (1, 0),
        "start<9999-12": (0, 2**63),
        "start>0001-01-01T00:00+01:00": (0, 2**63),
        "start>=2025-12-31T23:00Z": (NOW_NS - HOUR_NS, 2**63),
        "start<=2026-01-01T01:00+01:00": (0, NOW_NS + 60 * 10**9 - 1),
        "start<2025-12-31T23:00:00.000000000": (0, NOW_NS - HOUR_NS - 1),
        "start:>2026-01-01T00:00:00.0": (NOW_NS + 10**8, 2**63),
    }
    return st.sampled_from(sorted(found)).map(
        lambda text: Asked(text, OPERAND, lambda row: found[text][0] <= row["start_ns"] <= found[text][1])
    )


def value_of(row: Row, owner: str, key: str) -> tuple[str, str] | None:
    """Return the text and type letter of an attribute."""
    held = row[owner]
    letters = row["otlp"]["attribute_types" if owner == "attributes" else "resource_types"]
    return next(
        ((text, letter) for (name, text), letter in zip(held, letters, strict=True) if name == key), None
    )


def attribute_atoms() -> st.SearchStrategy[Asked]:
    """Generate clauses on attributes by path: equality, prefixes, numeric comparisons and existence."""
    comparable = [text for text in NUMBERS if text != "NaN"]

    def asked(owner: str, key: str, operator: str, wanted: str) -> Asked:
        operator = operator if wanted or operator == "has" else "quoted"
        path = f"{owner}.{key}" if key.replace(".", "").replace("_", "").isascii() and " " not in key else ""
        path = path or f"{owner}.{quoted(key)}"

        def judge(row: Row) -> bool:
            found = value_of(row, owner, key)
            if operator == "has":
                return found is not None
            if found is None or len(found[0]) > 128:
                return False
            text, letter = found
            number = float(text) if letter in "id" else None
            if operator == "quoted":
                return text.lower() == wanted.lower()
            if operator == "*":
                return text.lower().startswith(wanted.lower())
            equal = operator == ":" and text.lower() == wanted.lower()
            return equal or (wanted in comparable and compares(operator, float(wanted))(number))

        written = {
            "has": f"has:{path}",
            "quoted": f"{path}:{quoted(wanted)}",
            "*": f"{path}:{quoted(wanted)}*",
        }
        if operator == "has" and path != f"{owner}.{key}":
            written["has"] = f"has:{quoted(f'{owner}.{key}')}"
        plain = re.sub(r"[^\w.+-]", r"\\\g<0>", wanted)
        return Asked(written.get(operator, f"{path}{operator}{plain}"), OPERAND, judge)

    whole = st.sampled_from([value for value in VALUES if len(value) <= 128])
    owners, keys = st.sampled_from(("attributes", "resource")), st.sampled_from(KEYS)
    return st.builds(asked, owners, keys, st.sampled_from((":", "quoted", "*", "has")), whole) | st.builds(
        asked, owners, keys, st.sampled_from(COMPARED), st.sampled_from(comparable)
    )


def atoms() -> st.SearchStrategy[Asked]:
    """Generate words, phrases, fields and filters."""
    words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True).map(" ".join)
    fielded = st.tuples(st.sampled_from((None, "name", "text")), words)
    written = fielded.map(
        lambda asked: Asked(
            (f"{asked[0]}:" if asked[0] else "") + (f'"{asked[1]}"' if " " in asked[1] else asked[1]),
            OPERAND,
            holds(asked[1], asked[0]),
        )
    )
    services = st.sampled_from(SERVICES).map(lambda name: Asked(f"service:{name}", OPERAND, of_service(name)))
    others = [
        Asked("al*", OPERAND, prefixed("al")),
        Asked(
            '"alpha be"*',
            OPERAND,
            lambda row: any("alpha be" in (row[c] or "") for c in ("name", "input", "output")),
        ),
        Asked("gamna~1", OPERAND, holds("gamma", None)),
        Asked("name:btea~1", OPERAND, holds("beta", "name")),
        Asked("model:GPT-4O", OPERAND, lambda row: (row["model"] or "").lower() == "gpt-4o"),
        Asked("model:gpt*", OPERAND, lambda row: (row["model"] or "").lower().startswith("gpt")),
        Asked("model:gpt-4~1", OPERAND, lambda row: (row["model"] or "").lower() == "gpt-4o"),
        Asked("has:model", OPERAND, lambda row: row["model"] is not None),
        Asked("session:*", OPERAND, lambda row: row["session_id"] is not None),
        Asked('session:"q\\"\\\\"', OPERAND, lambda row: row["session_id"] == 'q"\\'),
        Asked("has:duration", OPERAND, lambda row: row["end_ns"] != 0),
        Asked("has:tokens", OPERAND, lambda row: tokens(row) is not None),
        Asked("tokens:1..5", OPERAND, lambda row: 1 <= (tokens(row) or 0) <= 5),
        Asked("has:input", OPERAND, lambda row: bool(row["input"])),
        Asked("has:parent", OPERAND, lambda _: False),
        Asked("*", OPERAND, lambda _: True),
    ]
    return written | services | st.sampled_from(others) | measured() | times() | attribute_atoms()


def negated(inner: Asked, sign: str) -> Asked:
    """Return the negation of a query."""
    judge = inner.judge
    return Asked(sign + inner.inside(OPERAND), OPERAND, lambda row: not judge(row))


def joined(parts: list[Asked], binds: int) -> Asked:
    """Return several queries joined by one operator."""
    text = {BESIDE: " ", OR: " OR ", AND: " AND "}[binds].join(part.inside(binds + 1) for part in parts)
    every = any if binds == OR else all
    return Asked(text, binds, lambda row: every(part.judge(row) for part in parts))


def larger(smaller: st.SearchStrategy[Asked]) -> st.SearchStrategy[Asked]:
    """Generate queries from smaller ones."""
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
    """Words, phrases, fields, AND, OR, NOT and parentheses, nested, find the rows of a plain evaluation."""
    expected = {row["span_id"] for row in ROWS if asked.judge is not None and asked.judge(row)}
    hits = searcher.search(asked.text, 1_000, now_ns=NOW_NS)
    assert {hit.span_id for hit in hits} == expected
    assert len(hits) == len(expected)
    texts_wanted(asked.text)


@settings(deadline=None, max_examples=100)
@given(st.recursive(atoms(), larger, max_leaves=4), st.sampled_from(SERVICES))
def test_a_service_is_one_more_condition(searcher: Searcher, asked: Asked, service: str) -> None:
    """A search in one service finds its share of a search in all, with the same scores."""
    of_it = {row["span_id"] for row in ROWS if row["service"] == service}
    everywhere = {
        (hit.span_id, round(hit.score, 4)) for hit in searcher.search(asked.text, 1_000, now_ns=NOW_NS)
    }
    inside = {
        (hit.span_id, round(hit.score, 4))
        for hit in searcher.search(asked.text, 1_000, 0, service, now_ns=NOW_NS)
    }
    assert inside == {(span_id, score) for span_id, score in everywhere if span_id in of_it}


def test_a_quoted_number_is_a_text(searcher: Searcher) -> None:
    """A number in quotes matches its spelling, and without them its value."""

    def found(query: str) -> set[str]:
        return {hit.span_id for hit in searcher.search(query, 1_000)}

    values = {row["span_id"]: value_of(row, "attributes", "retry") for row in ROWS}
    held = [(span_id, *value) for span_id, value in values.items() if value is not None]
    for wanted in ("0", "-0.0"):
        as_text = {span_id for span_id, text, _ in held if text == wanted}
        equal = {span_id for span_id, text, letter in held if letter in "id" and text in ("0", "-0.0")}
        assert found(f'attributes.retry:"{wanted}"') == as_text
        assert found(f"attributes.retry:{wanted}") == as_text | equal > as_text


def test_groups_beside_each_other_stay_apart() -> None:
    """Adjacent words mean AND, and bind less than OR, which binds less than AND."""
    assert parse("a OR b c OR d") == AllOf(
        (AnyOf((Text(None, "a", 0), Text(None, "b", 5))), AnyOf((Text(None, "c", 7), Text(None, "d", 12))))
    )
    assert parse("a OR b AND NOT c") == AnyOf(
        (Text(None, "a", 0), AllOf((Text(None, "b", 5), Not(Text(None, "c", 15)))))
    )
    assert parse("name:(a -b)") == AllOf((Text("name", "a", 6), Not(Text("name", "b", 9))))


@pytest.mark.parametrize(
    ("query", "text", "prefix"),
    [
        (r"a\~1", "a~1", False),
        (r"a\\~1", "a\\", False),
        (r"a\^2", "a^2", False),
        (r"C:\\*", None, False),
        (r"C\:\\*", "C:\\", True),
        (r"C\:\\\*", "C:\\*", False),
        (r"a\*", "a*", False),
        (r"\last", "last", False),
        (r"\NOT", "NOT", False),
    ],
)
def test_a_backslash_takes_the_next_character_as_it_is(query: str, text: str | None, prefix: bool) -> None:
    """A backslash escapes the next character, also a special one at a word's end and another backslash."""
    clause = parse(query)
    assert isinstance(clause, Text)
    if text is None:
        assert (clause.field, clause.text, clause.prefix) == ("C", "\\", True)
        return
    assert (clause.text, clause.prefix) == (text, prefix)
    assert clause.distance == (query == r"a\\~1")


def test_operators_need_no_space_before_a_phrase() -> None:
    """Operators need no space before a phrase, as before a parenthesis. Otherwise, they would be search words."""
    either = (Text(None, "a", 0), Text(None, "b", 4, quoted=True))
    assert parse('a OR"b"') == AnyOf(either)
    neither = Not(Text(None, "b", 5, quoted=True))
    assert parse('a NOT"b"AND c') == AllOf((Text(None, "a", 0), AllOf((neither, Text(None, "c", 12)))))
    assert parse('ORDER"b"') == AllOf((Text(None, "ORDER", 0), Text(None, "b", 5, quoted=True)))


def check_dots() -> None:
    assert parse("service:s..t*") == Text("service", "s..t", 0, prefix=True)
    assert parse("name:(a..b OR c)") == AnyOf((Text("name", "a..b", 6), Text("name", "c", 14)))
    assert [text.text for text in texts_wanted("name:a..b")] == ["a..b"]
    assert parse("tokens:1..*") == ValueRange("tokens", "1", None, 0, written="1..*")
    rows = [span(n, service=value, attributes=[("p", value)]) for n, value in enumerate(DOTTED)]
    texts = {row["span_id"]: row["service"] for row in rows}
    objects, manifest = index_of([table(rows)])
    with TemporaryDirectory() as cache:
        searcher = Searcher(objects, manifest, Path(cache))
        for query, expected in FOUND.items():
            for path in ("attributes.p", "service"):
                hits = searcher.search(f"{path}:{query}", 10)
                assert {texts[hit.span_id] for hit in hits} == expected, (path, query)


DOTTED: Final = ("../lib", "s..t", "s..team", "1..4x", r"C:\..\x")


FOUND: Final = {
    "../l*": {"../lib"},
    "../lib": {"../lib"},
    "s..t*": {"s..t", "s..team"},
    "1..4*": {"1..4x"},
    r"C:\\..\\x": {r"C:\..\x"},
}


def test_a_text_with_two_dots_is_a_text() -> None:
    """Two dots are text if the field or the ends have no order, also at the start of a path."""
    check_dots()


def check_paths() -> None:
    for query in ('has:attributes."a \\"b"', 'has:(attributes."a \\"b")'):
        clause = parse(query)
        assert isinstance(clause, Text)
        assert (clause.field, clause.text, clause.prefix) == ("has", 'attributes.a "b', False), query
    assert parse('has:resource."a b"*') == Text("has", "resource.a b", 0, quoted=True, prefix=True)
    assert parse('has:attributes."a" b') == AllOf(
        (Text("has", "attributes.a", 0, quoted=True), Text(None, "b", 19))
    )


def test_has_takes_a_path_as_a_field_is_written() -> None:
    """Quotes around the key alone would otherwise be a separate phrase."""
    check_paths()


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("duration > 2s", 9),
        ("x AND (tokens >5)", 14),
        ("start\t>= 2026-01-01", 6),
        ("attributes.http.status_code >= 500", 28),
        ('attributes."a b" <-1', 17),
    ],
)
def test_a_comparison_that_is_taken_apart_by_spaces_is_told(query: str, place: int) -> None:
    """A comparison split by spaces is refused, because it would be words and ignored signs."""
    with pytest.raises(QuerySyntaxError, match="a comparison has no spaces: write ") as caught:
        parse(query)
    assert caught.value.place == place


@pytest.mark.parametrize(
    "query",
    ["duration > two", "the tokens -> 5", "model > 5", "name:(tokens > 5)", '"tokens > 5"', "tokens 5"],
)
def test_words_beside_signs_are_words(query: str) -> None:
    """A sign before a number is text if no ordered field precedes it."""
    parse(query)
