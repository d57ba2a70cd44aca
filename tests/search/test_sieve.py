"""A sieve passes every text that its query finds, and few others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tantivy
from hypothesis import given
from hypothesis import strategies as st

from tracelake._errors import QueryError
from tracelake.search import analyzers, prefilter
from tracelake.search.analyzers import ANALYZERS, CJK, ENGLISH, WHITESPACE, Analyzer, Word
from tracelake.search.prefilter import SIEVE_TEXTS_MAX, prefilter_of
from tracelake.search.query_compiler import parse

ROOTS = (
    "act",
    "agen",
    "appl",
    "bab",
    "contr",
    "controll",
    "cri",
    "d",
    "fl",
    "gen",
    "happ",
    "hop",
    "l",
    "nat",
    "oper",
    "possib",
    "rel",
    "sk",
    "stab",
    "t",
    "visib",
    "vi",
)
ENDINGS = (
    "",
    *"ey",
    *("s", "ed", "es", "ie", "ies", "ied", "ing", "ings", "y's", "ying", "ily", "iness", "ation", "ational"),
    *(
        "ator",
        "ization",
        "izer",
        "ize",
        "al",
        "ally",
        "alism",
        "ality",
        "ence",
        "ency",
        "enci",
        "ance",
        "ancy",
    ),
    *(
        "able",
        "ably",
        "ability",
        "ible",
        "ibly",
        "ibility",
        "ility",
        "ity",
        "ive",
        "ively",
        "iveness",
        "ivity",
    ),
    *("ogy", "ogi", "ogist", "ful", "fully", "fulness", "less", "lessly", "ous", "ously", "ousness", "ical"),
    *("icate", "ative", "iciti", "ness", "ement", "ment", "ent", "ently", "sion", "tion", "bly", "li", "ly"),
    *("eed", "eedly", "edly", "ingly", "le", "les", "el", "ell", "i", "ia", "ial", "or", "er", "ers"),
)
EXCEPTIONS = (
    *("skis", "skies", "dying", "lying", "tying", "idly", "gently", "ugly", "early", "only", "singly", "sky"),
    *(
        "news",
        "howe",
        "atlas",
        "cosmos",
        "bias",
        "andes",
        "inning",
        "outing",
        "canning",
        "herring",
        "earring",
    ),
    *("proceed", "exceed", "succeed", "generate", "communism", "arsenal", "say", "youth", "boy", "boyish"),
)
PARTS_OF_TEXTS = (
    *("Refunds", "refund", "policies", "dying", "die", "early", "visibility", "getUserName", "HTTPServer"),
    *(
        "a-17",
        "x@example.com",
        "naïve",
        "NAÏVES",
        "東京都",
        "東京",
        "京",
        "İstanbul",
        "\u212aelvin",
        "K",
        "σάς",
    ),
    *(" ", "  ", ", ", "_", "\n", "/", "…", "\x01", "200", "ά"),
)


def english_words() -> Iterator[str]:
    """Yield words of many kinds, including those of the docs."""
    yield from EXCEPTIONS
    for root, one, other in itertools.product(ROOTS, ENDINGS, ENDINGS):
        yield f"{root}{one}{other}".replace("'", "")
    for page in (Path(__file__).parents[2] / "docs").rglob("*.md"):
        yield from page.read_text().lower().split()


def sought(stem: str) -> str:
    """Return the sieve's texts for words with a stem."""
    return prefilter._of_word(Word("", stem, 0), ENGLISH)


@cache
def sought_of(beginning: str) -> str:
    """Return the sieve's texts for words with a prefix."""
    return "".join(prefilter._of_word(word, ENGLISH) for word in ENGLISH.words_of(beginning))


def test_a_stem_is_how_its_words_begin_but_for_its_ending() -> None:
    """Every word of a stem begins with the sieve's prefix of that stem and of each of its prefixes."""
    seen = 0
    for word in set(english_words()):
        for read in ENGLISH.words_of(word) if word.isascii() else ():
            seen += 1
            assert read.written.startswith(sought(read.stem)), read
            for end in range(1, len(read.stem) + 1):
                assert read.written.startswith(sought_of(read.stem[:end])), (read, end)
    assert seen > 50_000


def found_by_index(analyzer: Analyzer, text: str, query: str) -> bool:
    """Return whether an index finds a text."""
    index = tantivy.Index(analyzers.schema())
    analyzers.register_tokenizers(index, analyzer.tokenizer())
    writer = index.writer(15_000_000, 1)
    words = analyzer.wording.texts_of_rows(pa.array([text]), np.array([0, 1]))[0]
    document = tantivy.Document()
    document.add_text("text", words)
    document.add_text("service", "Checkout-ß K")
    document.add_text("workspace", "team a")
    writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()  # otherwise their stacks stay mapped, which other tests count
    index.reload()
    asked = parse(index, query, 0, analyzer=analyzer)
    return asked is not None and bool(index.searcher().search(asked, 1).hits)


def written(text: str) -> bytes:
    """Return the sieve's text of that document."""
    return "\n".join((text, "Checkout-ß K", "team a")).lower().encode()


texts = st.lists(st.sampled_from(PARTS_OF_TEXTS), min_size=1, max_size=6).map("".join)


@st.composite
def queries(draw: st.DrawFn, text: str) -> str:
    """Generate a query of words of a text, and of others."""
    clauses = []
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text) - 1))
        word = text[begin : begin + draw(st.integers(1, 9))]
        plain = "".join(letter for letter in word if letter.isalnum() or letter in "-@._")
        kinds = [f'"{word}"'.replace("\\", ""), "service:checkout-ß*", 'service:"checkout-ß k"', "refund"]
        if plain.strip("-._@"):
            plain = plain.lstrip("-")
            kinds += [plain, f"{plain}*", f"{plain}~1", f"name:{plain}", f"-{plain}", f"text:{plain}"]
        clauses.append(draw(st.sampled_from(kinds)))
    return draw(st.sampled_from((" ", " AND ", " OR "))).join(clauses)


@pytest.mark.parametrize("analyzer", ANALYZERS.values(), ids=ANALYZERS)
def test_what_the_index_finds_passes(analyzer: Analyzer) -> None:
    """For any text and query, the sieve passes each text that the index finds."""
    seen = {True: 0, False: 0}

    @given(st.data())
    def check(data: st.DataObject) -> None:
        text = data.draw(texts)
        query = data.draw(queries(text))
        try:
            is_found = found_by_index(analyzer, text, query)
        except QueryError:
            return  # a search for it raises an error
        passes = prefilter_of(query, None, None, analyzer)
        if passes is not None:
            assert not is_found or passes(written(text)), (text, query)
            seen[is_found] += 1

    check()
    assert seen[True] > 10, seen


PASSES = (
    (ENGLISH, "refunds", "no refund here", "none here"),
    (ENGLISH, "dying", "to die", "to live"),
    (ENGLISH, "visibility", "visible", "vital"),
    (ENGLISH, '"early policies"', "policy early", "early only"),
    (ENGLISH, "refund OR checkout", "a checkout", "neither"),
    (ENGLISH, "(refund policy)^2 -x", "policy refund x", "policy"),
    (ENGLISH, "refun*", "refunding", "re-fund"),
    (ENGLISH, "service:Checkout", "checkout", "check out"),
    (ENGLISH, "attributes.user.tier:Gold", "gold", "silver"),
    (ENGLISH, 'attributes.retries:"31"', "31", "13"),
    (ENGLISH, "naïve", "naïve", "nothing of the kind"),
    (WHITESPACE, "x@example.com", "mail x@example.com!", "x at example.com"),
    (WHITESPACE, "table", "tables", "tabs"),
    (CJK, "東京", "在東京都", "在京都"),
    (CJK, "東", "東", "京"),
)


@pytest.mark.parametrize(("analyzer", "query", "passing", "other"), PASSES, ids=[each[1] for each in PASSES])
def test_little_else_passes(analyzer: Analyzer, query: str, passing: str, other: str) -> None:
    """A sieve drops texts that cannot match."""
    passes = prefilter_of(query, None, None, analyzer)
    assert passes is not None
    assert passes(passing.lower().encode())
    assert not passes(other.lower().encode())


@pytest.mark.parametrize(
    "query",
    [
        *("*", "-refund", "refund~1", "duration>2s", "last 2h", "attributes.retries:31", "has:parent"),
        *("refund OR *", "refund OR tokens>5", "start:2026-01-01", "", '"refund', "name:*", "ie", "( )"),
        "ΣΆΣ",  # in lower case one of two words, depending on the lower-casing code
        "ƛɤ",  # in lower case of letters that Python may not know
    ],
)
def test_where_any_span_may_be_found_there_is_no_sieve(query: str) -> None:
    """An invalid query has no sieve, because its caller gets an error."""
    assert prefilter_of(query, None, None, ENGLISH) is None


def test_service_and_workspace_are_asked_for_too() -> None:
    """Service and workspace match as complete values, in any case and with any characters."""
    passes = prefilter_of("*", 'Check"out', "Team A", ENGLISH)
    assert passes is not None
    assert passes(b'team a\ncheck"out')
    assert not passes(b"team a\ncheckout")
    assert not passes(b'team b\ncheck"out')


def check_many() -> None:
    several = [f"word{number}x" for number in range(SIEVE_TEXTS_MAX + 1)]
    assert prefilter_of(" OR ".join(several), None, None, ENGLISH) is None
    assert prefilter_of(" OR ".join(several[1:]), None, None, ENGLISH) is not None
    for query in (" ".join(several), f'"{" ".join(several)}"'):
        passes = prefilter_of(query, None, None, ENGLISH)
        assert passes is not None
        assert passes(" ".join(several[:-1]).encode()), "it looks for as many as it may"
        assert not passes(" ".join(several[1:]).encode())


def test_a_sieve_looks_for_so_many_texts() -> None:
    """The cost of a sieve is bounded for any query."""
    check_many()


def check_control() -> None:
    """Attribute terms replace white space with another character, and that one with a third: the sieve uses
    neither."""
    passes = prefilter_of('attributes.a:"gold\x1aand"', None, None, ENGLISH)
    assert passes is not None
    assert passes(b"gold\x01and")


def test_a_character_that_stands_for_another_is_not_sought() -> None:
    """Terms have one character for several, so the sieve does not use it."""
    check_control()


def check_passes() -> None:
    for each in PASSES:
        test_little_else_passes(*each)


def check_none(query: str) -> Callable[[], object]:
    return partial(test_where_any_span_may_be_found_there_is_no_sieve, query)
