"""Tokens of each analyzer: generated texts and queries against a plain evaluation over the texts."""

from __future__ import annotations

import random
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.build_inputs import index_of, span, table
from tracelake.cli.options import TEXTS
from tracelake.search import analyzers, tokenization
from tracelake.search.analyzers import ANALYZERS, CJK, ENGLISH, NAMES, WHITESPACE, Analyzer
from tracelake.search.results import highlight
from tracelake.search.searcher import Searcher

LETTERS: Final = "東京都大の"
LATIN: Final = ("refund", "order", "gpt", "x7")
JOINTS: Final = (" ", "、", "。", " - ", "")
WORDS: Final = ("order_id", "gpt-4o", "https://shop/v1/orders?id=7", "a.b.c", "refundPolicy", "plain", "x=1")
CLOSED: Final = ((" ", " "), ('{"', '":'), (" (", ") "), (", ", ". "), ("\n", "\n"))


def cjk_text(draw: random.Random) -> str:
    """Generate runs of letters without spaces, and Latin words, next to each other."""
    pieces = [
        draw.choice(LATIN) if draw.random() < 0.3 else "".join(draw.choices(LETTERS, k=draw.randrange(1, 6)))
        for _ in range(draw.randrange(1, 6))
    ]
    text = pieces[0]
    for before, piece in pairwise(pieces):
        latin = before in LATIN and piece in LATIN
        text += draw.choice(JOINTS[: -1 if latin else None]) + piece
    return text


def whitespace_text(draw: random.Random) -> str:
    """Generate words with punctuation in them, between white space, quotes and brackets."""
    return "".join(
        opened + draw.choice(WORDS) + closed
        for opened, closed in draw.choices(CLOSED, k=draw.randrange(1, 5))
    )


def searcher_of(analyzer: Analyzer, texts: list[str], place: Path) -> Searcher:
    """Return a searcher of an index of three parts over texts."""
    rows = [span(n, name="", input=text) for n, text in enumerate(texts)]
    return Searcher(*index_of([table(rows[part::3]) for part in range(3)], analyzer), place)


def hits(searcher: Searcher, query: str) -> set[str]:
    """Return the span numbers of a query's hits."""
    return {hit.span_id for hit in searcher.search(query, 1_000)}


def of_texts(texts: list[str], holds: re.Pattern[str]) -> set[str]:
    """Return the spans whose texts match an expression."""
    return {span(n)["span_id"] for n, text in enumerate(texts) if holds.search(text)}


CJK_TEXTS: Final = ["大の の gpt", "大の 京 gpt", *(cjk_text(random.Random(n)) for n in range(150))]
SPACED_TEXTS: Final = [whitespace_text(random.Random(n)) for n in range(120)]


@pytest.fixture(scope="module")
def cjk(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return the mixed texts with the analyzer for scripts without spaces."""
    return searcher_of(CJK, CJK_TEXTS, tmp_path_factory.mktemp("cjk"))


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """Return identifiers and URLs with the analyzer that splits at white space."""
    return searcher_of(WHITESPACE, SPACED_TEXTS, tmp_path_factory.mktemp("spaced"))


def check_runs(searcher: Searcher, run: str) -> None:
    """Check that a run of letters is found in exactly the texts that contain it."""
    expected = of_texts(CJK_TEXTS, re.compile(re.escape(run)))
    assert hits(searcher, run) == hits(searcher, f'"{run}"') == hits(searcher, f"{run}*") == expected


@settings(deadline=None, max_examples=60)
@given(st.text(LETTERS, min_size=1, max_size=4))
def test_a_run_of_letters_is_found_wherever_it_stands(cjk: Searcher, run: str) -> None:
    """Runs within longer runs, at their ends, and single letters are found as in a plain scan of the texts."""
    check_runs(cjk, run)


def check_mixed(searcher: Searcher, parts: list[str]) -> None:
    """Check that a phrase of runs and Latin words matches where these are adjacent."""
    ends = [rf"(?<![a-z0-9]){part}(?![a-z0-9])" if part.isascii() else part for part in parts]
    expected = of_texts(CJK_TEXTS, re.compile(r"[^\w]*".join(ends)))
    spaces = [a + ("" if a.isascii() != b.isascii() else " ") for a, b in pairwise(parts)]
    assert hits(searcher, f'"{"".join(spaces)}{parts[-1]}"') == expected


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(LATIN), min_size=1, max_size=2),
    st.text(LETTERS, min_size=1, max_size=3),
    st.booleans(),
)
def test_phrases_of_both_kinds_of_script(cjk: Searcher, latin: list[str], run: str, first: bool) -> None:
    """Adjacent English and Japanese, with or without a space, form one phrase."""
    check_mixed(cjk, [run, *latin] if first else [*latin, run])


def test_english_in_the_other_script_has_stems_and_parts(tmp_path: Path) -> None:
    """Stems, identifiers, prefixes and letter variants are found in text mixed with Japanese."""
    texts = ["注文のrefundsを確認", "refundPolicyの説明", "กรุงเทพมหานคร เป็นเมืองหลวง", "서울특별시에서 만나요"]
    searcher = searcher_of(CJK, texts, tmp_path)
    ids = [span(n)["span_id"] for n in range(len(texts))]
    for query, expected in {
        "refunding": {0, 1},
        "refu*": {0, 1},
        "refumd~1": {0, 1},
        '"refund policy"': {1},
        "確認": {0},
        "確認~1": {0},
        "注文 AND NOT 説明": {0},
        "กรุงเทพ": {2},
        "เมืองหลวง": {2},
        "만나": {3},
        "name:東京": set(),
    }.items():
        assert hits(searcher, query) == {ids[n] for n in expected}, query


def held(text: str) -> set[str]:
    """Return the words of a text as `whitespace` has them, computed independently of the analyzer."""
    return {word for word in WORDS if re.search(rf"(?<![\w/.=-]){re.escape(word)}(?![\w/?=]|[.-]\w)", text)}


def check_whole(searcher: Searcher, word: str) -> None:
    """Check that a word is found complete, in any case, and by its prefix."""
    expected = {span(n)["span_id"] for n, text in enumerate(SPACED_TEXTS) if word in held(text)}
    quoted = f'"{word}"'
    assert expected
    assert hits(searcher, quoted) == hits(searcher, quoted.upper()) == expected
    assert hits(searcher, f'"{word[:-1]}"*') >= expected


@pytest.mark.parametrize("word", WORDS)
def test_words_between_spaces_are_found_whole(spaced: Searcher, word: str) -> None:
    """Identifiers, ids, URLs and JSON keys are words."""
    check_whole(spaced, word)


PARTS: Final = {
    "orders": WORDS[2],
    '"order id"': "order_id",
    "policy": "refundPolicy",
    '"shop v1"': WORDS[2],
    '"4o"': "gpt-4o",
    "b": "a.b.c",
}


def check_parts(searcher: Searcher, query: str) -> None:
    """Check that a part finds exactly the texts with the word."""
    expected = {span(n)["span_id"] for n, text in enumerate(SPACED_TEXTS) if PARTS[query] in held(text)}
    assert hits(searcher, query) == expected != set()


@pytest.mark.parametrize("query", PARTS)
def test_words_between_spaces_are_found_by_part(spaced: Searcher, query: str) -> None:
    """Parts between punctuation and between capitals find their words, too."""
    check_parts(spaced, query)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(WORDS), st.sampled_from(WORDS))
def test_phrases_between_spaces(spaced: Searcher, first: str, second: str) -> None:
    """Consecutive words are a phrase, even with brackets or commas between them."""
    between = re.compile(
        rf"(?<![\w/.=-]){re.escape(first)}[^\w]+(?<![/=]){re.escape(second)}(?![\w/?=]|[.-]\w)"
    )
    assert hits(spaced, f'"{first} {second}"') == of_texts(SPACED_TEXTS, between)


def test_whitespace_has_no_stems_and_long_words_are_cut(tmp_path: Path) -> None:
    """`refunds` is not `refund`; a word too long for the index is found by its parts, as its query is."""
    long = "https://shop/" + "/".join(f"part{n}" for n in range(40))
    searcher = searcher_of(WHITESPACE, ["refunds", "refund", f"see {long}."], tmp_path)
    assert len(hits(searcher, "refund")) == len(hits(searcher, "refunds")) == 1
    assert len(hits(searcher, f'"{long}"')) == len(hits(searcher, '"part7 part8"')) == 1


@pytest.mark.parametrize(
    ("analyzer", "text", "query", "expected"),
    [
        (CJK, "私は東京都に住む", "東京都", "私は[[東京都]]に住む"),
        (CJK, "私は東京都に住む", "京", "私は東[[京]]都に住む"),
        (CJK, "注文のrefundsを確認", "refund", "注文の[[refunds]]を確認"),
        (CJK, "注文のrefundsを確認", '"の refund を"', "注文[[のrefundsを]]確認"),
        (CJK, "refundPolicyの説明", '"refund policy"', "[[refundPolicy]]の説明"),
        (CJK, "กรุงเทพมหานคร", "เทพ", "กรุง[[เทพ]]มหานคร"),
        (CJK, "東京 京都", '"東京 京都"', "[[東京 京都]]"),
        (WHITESPACE, "the order_id=42, of", '"order_id=42"', "the [[order_id=42]], of"),
        (WHITESPACE, "the order_id of", '"order id"', "the [[order_id]] of"),
        (WHITESPACE, "the refunds of", "refund*", "the [[refunds]] of"),
        (WHITESPACE, "the refunds of", "refund", "the refunds of"),
        (ENGLISH, "the refunds of", "refund", "the [[refunds]] of"),
    ],
)
def test_highlights_of_each_analyzer(analyzer: Analyzer, text: str, query: str, expected: str) -> None:
    """Matches are marked in their original spelling."""
    assert highlight([text], query, analyzer) == expected


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(sorted(ANALYZERS)),
    st.text("東京のaBc _-./(\"'กุ่7" + "Éß", max_size=20),
    st.integers(0, 20),
    st.integers(1, 8),
)
def test_highlights_never_fail_and_keep_the_text(name: str, text: str, start: int, size: int) -> None:
    """For any query, the excerpt is the text in its normalized Unicode form, with marks added."""
    words = re.sub(r'[\\"]', " ", text[start : start + size])
    excerpt = highlight([text], f'"{words}"', ANALYZERS[name])
    assert (
        excerpt.replace("[[", "").replace("]]", "")
        == re.sub(r"\s+", " ", ANALYZERS[name].normalized(text)).strip()
    )


def test_what_is_like_a_text_in_each_analyzer(tmp_path: Path) -> None:
    """`like:` finds the texts with its words, in Japanese too."""
    texts = ["東京都の天気予報", "東京都の天気予報です", "会議の議事録", "会議の資料です"]
    for analyzer in (CJK, WHITESPACE):
        given_texts = texts if analyzer is CJK else [" ".join(text) for text in texts]
        rows = [span(n, name="", input=text) for n, text in enumerate(given_texts)]
        of_row = {(row["trace_id"], row["span_id"]): [row["input"]] for row in rows}
        objects, manifest = index_of([table(rows)], analyzer)
        texts_of = partial(lambda given, *span: given.get(span[:2]), of_row)
        searcher = Searcher(objects, manifest, tmp_path / analyzer.name, texts_of=texts_of)
        query = f"like:{rows[0]['trace_id']}-{rows[0]['span_id']}"
        assert searcher.search(query, 1)[0].span_id == rows[1]["span_id"]


def test_each_analyzer_has_a_fingerprint_and_a_name_of_its_own() -> None:
    """An index built by one analyzer is never opened as another's; the command line offers all analyzers."""
    assert len({each.fingerprint for each in ANALYZERS.values()}) == len(NAMES) == 3
    assert all(analyzers.of_fingerprint(each.fingerprint) is each for each in ANALYZERS.values())
    assert TEXTS.split("|") == list(NAMES)
    assert list(tokenization.pairs("東京 x")) == ["東京", "京", "x"]
