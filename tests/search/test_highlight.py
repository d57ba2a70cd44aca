"""Excerpts of hits: matches of a query are marked in the text, in any spelling."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.test_sieve import ENDINGS, ROOTS
from tracelake.search import results as module
from tracelake.search.analyzers import ANALYZERS, CJK, ENGLISH, WHITESPACE, Analyzer
from tracelake.search.results import highlight


def check_words() -> None:
    """Check that a word is marked, and every other word of its stem."""
    for word in ("visibility", "availability", "hoping", "making", "dying", "skies", "gently", "İstanbul"):
        for analyzer in ANALYZERS.values():
            marked = f"a [[{word}]], so"
            assert highlight([f"a {word}, so"], word, analyzer) == marked, (word, analyzer.name)
            assert highlight([f"a {word}, so"], f'"{word}"', analyzer) == marked, (word, analyzer.name)
    for word, query in (
        ("dying", "die"),
        ("died", "dying"),
        ("making", "makes"),
        ("availability", "available"),
    ):
        assert highlight([f"day {word} on"], query) == f"day [[{word}]] on"
    assert highlight(["day on"], "die") == "day on"
    assert highlight(["the visibility one"], '"visible one"') == "the [[visibility one]]"


def test_words_are_marked_whatever_their_stem_is() -> None:
    """The stem of `visibility` is `visibl`, which is not a prefix of it."""
    check_words()


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(ROOTS), st.sampled_from(ENDINGS), st.sampled_from((ENGLISH, CJK)))
def test_each_word_is_marked_that_is_searched_for(root: str, ending: str, analyzer: Analyzer) -> None:
    """Each search word is marked, alone and before another one."""
    word = f"{root}{ending}".partition("'")[0]
    for query in (word, f'"{word} so"', f"{word}*"):
        assert "[[" in highlight([f"a {word} so"], query, analyzer)


def check_beginnings() -> None:
    """Check that a prefix marks words that begin with it as written or with its stem."""
    assert highlight(["a refund, a ref, refunding"], "refunds*") == "a [[refund]], a ref, [[refunding]]"
    assert highlight(["a polite policy"], '"a policies"*') == "a polite policy"
    assert highlight(["no policy"], '"no policies"*') == "[[no policy]]"


def test_beginnings_are_marked_as_they_are_found() -> None:
    """The index has stems, so `refunds*` finds `refund`."""
    check_beginnings()


def check_apart() -> None:
    """Check that separated words of a phrase are marked one by one, and adjacent ones together."""
    phrase = '"refund policy"~2'
    assert highlight(["a refund of the policy"], phrase) == "a [[refund]] of the [[policy]]"
    assert highlight(["the refund policy, a refund"], phrase) == "the [[refund policy]], a [[refund]]"
    assert highlight(["a refund of policies"], '"refund polic"~2*') == "a [[refund]] of [[policies]]"
    assert highlight(["refunds, no refu"], '"refu a"~2*') == "refunds, no [[refu]]", "the last one begins so"
    assert highlight(["東京の都"], '"東京都"~3', CJK) == "[[東京]]の都"


def test_words_of_a_phrase_that_stand_apart_are_marked() -> None:
    """Separated words of a phrase are marked, because they matched."""
    check_apart()


def check_alike() -> None:
    """Check that a part of an identifier with one different letter is found and marked."""
    for analyzer in (ENGLISH, CJK, WHITESPACE):
        assert highlight(["a refundPolicy"], "polici~1", analyzer) == "a [[refundPolicy]]"
        assert highlight(["a refundPolicy"], "polizz~1", analyzer) == "a refundPolicy"


def test_parts_of_identifiers_that_are_alike_are_marked() -> None:
    """Similar parts of identifiers are marked as similar words are."""
    check_alike()


def check_spellings() -> None:
    """Check that a text is searched for matches although it has no query word as written."""
    for query in ("policies", '"refunds policies"', "polic*", "x OR REFUNDING", "pilicy~1"):
        assert highlight(["none", "a refundPolicy"], query) == "a [[refundPolicy]]", query
    assert highlight(["none", "a policy"], "pilicy~1") == "a [[policy]]"
    assert (
        highlight(["none", "a policy", "a policy, the policy"], "policies") == "a [[policy]], the [[policy]]"
    )


def test_texts_with_other_spellings_are_searched() -> None:
    """Only texts without the beginning of any query word are skipped."""
    check_spellings()


def check_many() -> None:
    """Check that only the first spellings are marked, because each costs a scan of the text."""
    words = [f"a{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(module.HIGHLIGHT_TERMS_MAX + 1)]
    alike = module._terms("a~2", ENGLISH)
    assert len(module._spelled(" ".join(words), alike, ENGLISH)) == module.HIGHLIGHT_TERMS_MAX


def test_of_many_spellings_the_first_are_looked_for() -> None:
    """A short word with ~2 resembles most words of a text."""
    check_many()
