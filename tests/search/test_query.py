"""The query language, errors that help, and highlights."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.search.build_inputs import index_of, span, table
from tracelake import limits
from tracelake._errors import QueryError
from tracelake.search import results as search_highlight
from tracelake.search.analyzers import ENGLISH
from tracelake.search.query_compiler import EXAMPLE, texts_wanted
from tracelake.search.results import _terms, highlight
from tracelake.search.searcher import Searcher

ROWS = (
    span(0, name="refund order", service="Shop", status="ERROR", kind="SERVER", output="it's done"),
    span(1, name="chat", service="airline-agent", attributes=[("q", "the refund policy, please")]),
    span(2, name="chat", service="airline-agent", input="policy for a refund", status=None, kind="CLIENT"),
    span(
        3, name="GET /cart", status_message="timeout: upstream", attributes=[("url", "http://shop/cart?id=7")]
    ),
    span(4, name="tool", events=[{"name": "exception", "attributes": [("message", "Schlüssel fehlt")]}]),
)


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return five spans in two parts."""
    objects, manifest = index_of([table(ROWS[:2]), table(ROWS[2:])])
    return Searcher(objects, manifest, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("refund", {0, 1, 2}),
        ("REFUND", {0, 1, 2}),
        ('"refund policy"', {1}),
        ('"refund please"~1', {1}),
        ("refund -policy", {0}),
        ("refund AND policy", {1, 2}),
        ("refund AND (order OR please)", {0, 1}),
        ("name:refund", {0}),
        ("service:airline-agent", {1, 2}),
        ("service:AIRLINE-AGENT", {1, 2}),
        ("service:airline", set()),
        ("status:error", {0}),
        ("status:ERROR", {0}),
        ("kind:client", {2}),
        ("text:(policy OR timeout)", {1, 2, 3}),
        ("it's", {0}),
        ('"http://shop/cart"', {3}),
        ("schlüssel", {4}),
        ("exception", {4}),
        ("* -refund", {3, 4}),
        ("-refund", {3, 4}),
        ("NOT refund", {3, 4}),
        ("refund AND NOT policy", {0}),
        ("refund AND (NOT policy)", {0}),
        ("timeout OR (NOT refund)", {3, 4}),
        ("NOT NOT refund", {0, 1, 2}),
        ("refund policy OR order", {0, 1, 2}),
        ("refund AND order OR timeout", {0, 3}),
        ("order OR timeout refund", {0}),
        ("name:(refund OR tool)", {0, 4}),
        ("-name:(refund OR tool) -timeout", {1, 2}),
        ("(refund policy)^2 -please", {2}),
        ("*", {0, 1, 2, 3, 4}),
        ("nowhere", set()),
    ],
)
def test_what_queries_find(searcher: Searcher, query: str, expected: set[int]) -> None:
    """Words, phrases, operators and fields find the expected spans."""
    found = {hit.span_id for hit in searcher.search(query, 10)}
    assert found == {ROWS[number]["span_id"] for number in expected}


def test_a_name_weighs_more_than_a_text(searcher: Searcher) -> None:
    """The span of that name ranks before those that mention it."""
    assert searcher.search("refund", 1)[0].span_id == ROWS[0]["span_id"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("foo:bar baz", "at character 1: there is no field 'foo'; there are service, kind, "),
        ("baz foo:bar", "at character 5: there is no field 'foo'"),
        ("baz foo:bar", 'quote it: "foo:bar"'),
        ("see http://shop/cart now", 'quote it: "http://shop/cart"'),
        ("http.status_code:500", "attributes.http.status_code and resource.http.status_code"),
        ("sesion:7", "did you mean session?"),
        ("foo>3", "there is no field 'foo'"),
        ("id:7", "there is no field 'id'"),
        (
            "service: shop",
            "at character 9: a value is missing after 'service:'; write it there, without a space",
        ),
        ('service:""', "to find spans without it, write NOT has:service"),
        ("service>shop", "service is a text and has no order; write service:shop"),
        ("duration>2", "'2' is not a duration, such as 2s, 1.5h or 300ms"),
        ("duration:abc", "'abc' is not a duration"),
        ("tokens>many", "'many' is not a number, such as 1000"),
        ("tokens>", "a number or time is missing after 'tokens>'"),
        ("start>yesterday", "'yesterday' is not a time; write 2026-01-31, 2026-01-31T17:30"),
        ("start:2026-02-30", "'2026-02-30' is not a time"),
        ("start:2026-01-01T00:00+99:99", "'2026-01-01T00:00+99:99' is not a time"),
        ("start:2016-12-31T23:59:60Z", "'2016-12-31T23:59:60Z' is not a time"),
        (
            "duration > 2s",
            "at character 10: a comparison has no spaces: write duration> directly followed by the value",
        ),
        ("last 5x", "'5x' is not a time; write last 30m, 2h or 7d"),
        ("attributes.a>b", "'b' is not a number, and only numbers have an order"),
        ("attributes.a:b~1", "~ applies to words and names, not to attributes"),
        ("attributes.a:" + "x" * 129, "match as a whole up to 128 characters; search for words of it"),
        ("has:nothing", "has: accepts service, kind, "),
        ("gpt-4~1", "'gpt-4' is 2 words, and ~ applies to one"),
        ("refund~3", "after ~ write how many letters may differ, 1 or 2: refnd~1"),
        ('"a b"~x', "after ~ write how many words may be between"),
        ('"a b"~101', "up to 100"),
        ("re*nd", "* is allowed only at the end of a word"),
        ("a* " * 33, "more than 32 words of it have * or ~"),
        ('say "refund', "at character 5: this double quote has no partner"),
        ('a"b', "at character 2: this double quote has no partner"),
        ("(refund", "at character 1: this parenthesis is unmatched"),
        ("refund)", "at character 7: this parenthesis is unmatched"),
        ("refund AND", "at character 11: a word is missing here: AND and OR need one on both sides"),
        ("a OR OR b", "at character 6: a word is missing here"),
        ("refund OR NOT", "at character 14: a word is missing here"),
        ("( )", "a word is missing here"),
        ("refund \\", "a backslash ends it"),
        ("(" * 200 + "a" + ")" * 200, "it is nested more than 50 levels deep"),
        ("NOT " * 200 + "a", "it is nested more than 50 levels deep"),
        ("", "the search is empty"),
        ("   ", "the search is empty"),
        ("a" * (limits.QUERY_MAX_CHARS + 1), "the limit of 4096"),
    ],
)
def test_a_query_that_does_not_parse_is_explained(searcher: Searcher, query: str, reason: str) -> None:
    """The error explains the fault and shows a correct query."""
    with pytest.raises(QueryError) as caught:
        searcher.search(query, 10)
    assert reason in str(caught.value)
    assert EXAMPLE in str(caught.value)


def test_the_ways_out_that_errors_name_work(searcher: Searcher) -> None:
    """Every query that an error message suggests is valid."""
    for query in (
        EXAMPLE,
        '"foo:bar" baz',
        'see "http://shop/cart" now',
        "* -refund",
        '"[refund]"',
        r"a\"b",
        "NOT has:service",
    ):
        searcher.search(query, 10)


PIECES = [
    '"',
    "'",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "a",
    "refund",
    "name:",
    "id:",
    "attributes.a:",
    "tokens>",
    "start:",
    "2026-01-01",
    "last 2h",
    "..",
    "1e999",
    "has:",
    "+",
    "-",
    "*",
    "^2",
    "~2",
    " AND ",
]
PIECES += [" OR ", " NOT ", " TO ", ":", "\\", "/", ">", "<=", " ", "IN [", "!", "é", "\0", "\ud800"]


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join) | st.text(max_size=20))
@example("(" * 2000 + "a" + ")" * 2000)
@example("NOT " * 1000 + "a")
@example("+(-(" * 500 + "a" + "))" * 500)
def test_any_text_is_answered_or_refused_with_a_query_error(searcher: Searcher, query: str) -> None:
    """No input text raises another error, neither for searching nor for highlighting."""
    try:
        searcher.search(query, 10)
    except QueryError:
        return
    excerpt = highlight(["a refund é", "name"], query)
    assert len(excerpt) <= limits.HIGHLIGHT_MAX_CHARS


def test_an_empty_index_still_checks_queries(tmp_path: Path) -> None:
    """Without parts nothing is found, and an invalid query is still refused."""
    objects, manifest = index_of([table([])])
    searcher = Searcher(objects, manifest, tmp_path)
    assert searcher.search("refund", 10) == []
    with pytest.raises(QueryError, match="no field"):
        searcher.search("foo:bar", 10)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('Refund "Airline Policy" -excluded', ["Refund", "Airline Policy"]),
        ("name:chat service:shop text:x^2", ["chat", "x"]),
        ("(a OR NOT b) AND it's last 2h", ["a", "it's"]),
        ("NOT (NOT a OR b) tokens>5", ["a"]),
        ("*", []),
    ],
)
def test_texts_wanted_are_what_hits_may_show(query: str, expected: list[str]) -> None:
    """The texts are words and phrases of names and texts, without exclusions and filters."""
    assert [text.text for text in texts_wanted(query)] == expected


@pytest.mark.parametrize(
    ("texts", "query", "expected"),
    [
        (["The Refund policy."], "refund", "The [[Refund]] policy."),
        (["a refund  policy\nhere"], '"refund policy"', "a [[refund policy]] here"),
        (["refunding is it", "refund"], "refunds", "[[refunding]] is it"),
        (["refundable no", "policies too"], "policy", "[[policies]] too"),
        (["a reference", "refer to it"], "refe*", "a [[reference]]"),
        (["only one", "one and two"], "one two", "[[one]] and [[two]]"),
        (["it's x_y"], "it's y", "[[it's]] x_[[y]]"),
        (["SCHLÜSSEL fehlt"], "schlüssel", "[[SCHLÜSSEL]] fehlt"),
        (["", "  ", "no match here"], "service:shop", "no match here"),
        ([], "refund", ""),
        (["(a+b) [x] *"], '"a+b"', "([[a+b]]) [x] *"),
        (["no refudn, no fund, refunded"], "refund~1", "no [[refudn]], no fund, [[refunded]]"),
        (["a refnud and rfn"], "refund~2", "a [[refnud]] and rfn"),
        (["a refnud"], "refund", "a refnud"),
        (["a refund b policy"], '"refund policy"~1', "a [[refund]] b [[policy]]"),
        (["call getRefundPolicy(HTTPServer)"], "policy", "call [[getRefundPolicy]](HTTPServer)"),
        (["call getRefundPolicy(x)"], '"refund policy"', "call [[getRefundPolicy]](x)"),
        (["call getRefundPolicy(x)"], '"get policy"', "call getRefundPolicy(x)"),
        (["an HTTPServer"], "serv*", "an [[HTTPServer]]"),
    ],
)
def test_highlights_mark_the_matches(texts: list[str], query: str, expected: str) -> None:
    """Marks are whole words of the text that matches most of the query, in the original spelling."""
    assert highlight(texts, query) == expected


@pytest.mark.parametrize(
    "word",
    [
        "-",
        "+-",
        "x:",
        "(",
        "NOT ",
        "\\",
        '"',
        "[a TO ",
        "a OR ",
        "'",
        "a^",
        "a~",
        "..",
        "a*",
        'attributes."',
        "1e",
    ],
)
def test_the_longest_queries_are_answered_or_refused_at_once(searcher: Searcher, word: str) -> None:
    """A text of maximum length with one repeated pattern takes linear time."""
    with contextlib.suppress(QueryError):
        searcher.search((word * limits.QUERY_MAX_CHARS)[: limits.QUERY_MAX_CHARS], 1)


def test_a_highlight_of_a_long_text_is_short_and_has_the_best_place() -> None:
    """The excerpt is cut around the place with both words, with dots at the cuts."""
    text = "alpha " + "filler " * 5_000 + "here alpha meets beta at last " + "filler " * 5_000
    excerpt = highlight([text], "alpha beta")
    assert "[[alpha]] meets [[beta]]" in excerpt
    assert excerpt.startswith("…")
    assert excerpt.endswith("…")
    assert len(excerpt) <= limits.HIGHLIGHT_MAX_CHARS


@given(st.lists(st.sampled_from(["alpha", "beta", "x" * 150, "\n", "…", "y"]), max_size=60), st.booleans())
def test_a_highlight_never_exceeds_its_limit(words: list[str], joined: bool) -> None:
    """For any number and length of matches, the excerpt with its marks fits, and marks are paired."""
    excerpt = highlight([("" if joined else " ").join(words)], "alpha beta " + "x" * 150)
    assert len(excerpt) <= limits.HIGHLIGHT_MAX_CHARS
    assert excerpt.count("[[") == excerpt.count("]]")


def test_words_that_come_again_and_again_are_looked_for_once() -> None:
    """A query of hundreds of words searches for each distinct word once, the first words first, even in long texts."""
    once = highlight(["the refund of a flight"], "refund")
    assert highlight(["the refund of a flight"], "refund " * 500) == once
    assert len(_terms("(refund OR refunds~1 OR ref*) " * 16, ENGLISH)) == 3
    many = [f"word{number:03d}" for number in range(search_highlight.HIGHLIGHT_TERMS_MAX + 1)]
    assert len(_terms(" ".join(many), ENGLISH)) == search_highlight.HIGHLIGHT_TERMS_MAX
    assert highlight([many[-1]], " ".join(many)) == many[-1], "it is found, and not marked"
    assert highlight([many[-2]], " ".join(many)) == f"[[{many[-2]}]]"


def check_traces_found(searcher: Searcher) -> None:
    of = {row["span_id"]: str(row["trace_id"]) for row in ROWS}
    traces = [of[row["span_id"]] for row in ROWS]
    others = [f"{number:032x}" for number in range(1, 50)]
    for asked in (traces[:1], traces, [*traces, *others], others):
        assert searcher.matching_traces(asked, "refund", None, 0) == set(traces[:3]) & set(asked)
        assert searcher.matching_traces(asked, "refund", "Shop", 0) == set(traces[:1]) & set(asked)
        assert searcher.matching_traces(asked, "nowhere", None, 0) == set()
        assert searcher.traces_among(asked) == set(traces) & set(asked)


def test_traces_of_which_a_query_finds_spans(searcher: Searcher) -> None:
    """The lookup goes by hits or by traces, whichever are fewer."""
    check_traces_found(searcher)


def test_a_query_that_tantivy_refuses_is_told_in_words(tmp_path: Path) -> None:
    """A phrase whose last prefix matches too many words raises our error for every caller."""
    words = " ".join(f"many{number:x}" for number in range(20_000))
    searcher = Searcher(*index_of([table([span(0, input=f"so {words}")])]), tmp_path)
    for ask in (
        lambda query: searcher.search(query, 1),
        searcher.count,
        lambda query: searcher.matching_traces(["0" * 32], query, None, 0),
    ):
        with pytest.raises(QueryError, match="write longer words before"):
            ask('"so many"*')
