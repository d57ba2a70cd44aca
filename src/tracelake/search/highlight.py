"""Excerpts of hits, cut from texts that the caller read back from the table.

Words of a text that a query finds though they are written otherwise: alike, or as a part of an identifier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from tracelake import limits
from tracelake.limits import HIGHLIGHT_SPELLINGS_MAX_CHARS
from tracelake.search.analyzers import ENGLISH, Analyzer, Word
from tracelake.search.query_compiler import texts_wanted
from tracelake.search.query_parser import Text
from tracelake.search.tokenization import BORDER, is_pair, is_unspaced, parts_of_name

_BORDER: Final = re.compile(BORDER)
_OTHER_ENDING: Final = re.compile("(?:ie|le|[eily])$")
"""How an English stem may end where its words do not: `dying` is `die`, `hoping` is `hope`, `visibility` is `visibl`.

By the rules of the stemmer (snowballstem.org/algorithms/english): all that it puts in the place of another ending."""


def beginning(stem: str) -> str:
    """Return how each word begins that has this English stem."""
    return _OTHER_ENDING.sub("", stem)


def words_in(text: str, identifiers_only: bool, letter: str = r"[^\W_]") -> list[str]:
    """Return the different words at the beginning of a text, in order, or those with capitals inside."""
    beginning = text[:HIGHLIGHT_SPELLINGS_MAX_CHARS]
    if identifiers_only and _BORDER.search(beginning) is None:
        return []
    words = dict.fromkeys(re.findall(f"{letter}+", beginning))
    return [word for word in words if not identifiers_only or _BORDER.search(word)]


def has_part(identifier: str, size: int, holds: Callable[[str], bool]) -> bool:
    """Whether so many parts beside each other of `refundPolicy` are what is looked for."""
    return any(holds(parts) for parts in _runs(identifier, size))


def _runs(word: str, size: int) -> Iterator[str]:
    for identifier in parts_of_name(word):
        parts = identifier.split()
        for first in range(len(parts) - size + 1):
            yield " ".join(parts[first : first + size])


def is_alike(one: str, other: str, distance: int) -> bool:
    """Whether words differ by so many letters at most; two that changed places are one."""
    if abs(len(one) - len(other)) > distance:
        return False
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one):
        earlier, before, row = before, row, [at + 1]
        for place, there in enumerate(other):
            cost = min(before[place] + (letter != there), before[place + 1] + 1, row[place] + 1)
            if at and place and (letter, one[at - 1]) == (other[place - 1], there):
                cost = min(cost, earlier[place - 1] + 1)
            row.append(cost)
        # A later cell is at least as far as the nearest of the last row, or one more than that of the row before.
        if min(row) > distance and min(before) >= distance:
            return False
    return row[-1] <= distance


OPEN: Final = "[["
CLOSE: Final = "]]"
_ELLIPSIS: Final = "…"


class _Match(NamedTuple):
    start: int
    end: int
    term: _Wanted


class _Window(NamedTuple):
    score: tuple[int, int]
    text: str
    matches: list[_Match]


def highlight(texts: Sequence[str], query: str, analyzer: Analyzer = ENGLISH) -> str:
    """Return the excerpt of the texts that shows most of the query, its matches between [[ and ]].

    At most `limits.HIGHLIGHT_MAX_CHARS` characters with the marks, white space folded; the beginning of the
    first text where nothing matches, such as for a query on `service` only. The analyzer is that of the index. Raises
    QueryError.
    """
    wanted = _terms(query, analyzer)
    texts = [analyzer.normalized(text) for text in texts]
    windows = [window for text in texts for window in _windows(text, wanted, analyzer)]
    if windows:
        best = max(windows, key=lambda window: window.score)  # the first of the best
        return _render(best.text, best.matches)
    return _render(next((text for text in texts if text.strip()), ""), [])


class _Wanted(NamedTuple):
    """A word or phrase that a query looks for."""

    analyzer: Analyzer
    words: tuple[Word, ...]
    prefix: bool
    distance: int = 0
    """Letters by which it may differ."""

    def pattern(self) -> str:
        """Return what finds all that may be it, between borders of words as the index sees them."""
        letter, last = self.analyzer.letter, self.words[-1]
        pattern, before = "", None
        for word in self.words:
            spaced = not is_unspaced(word.written)
            if before is not None:
                pattern += r"[\W_]+" if spaced and not is_unspaced(before.written) else r"[\W_]*"
            if not spaced:
                goes_on = (
                    before is not None and is_pair(before.written) and before.position + 1 == word.position
                )
                pattern += re.escape(word.written[1:] if goes_on else word.written)
            elif self.prefix and word is last:
                pattern += rf"(?<!{letter})(?:{_written(word.written)}|{self._root(word)}){letter}*"
            else:
                pattern += rf"(?<!{letter}){self._root(word)}{letter}*?(?!{letter})"
            before = word
        return pattern

    def _root(self, word: Word) -> str:
        """Return what all words of a stem begin with, as an expression."""
        if not self.analyzer.stemmed:
            return _written(word.stem)
        root = _written(beginning(word.stem))
        # Or each word with this letter would be one that may be `die`.
        return f"{root}(?:ie|y)" if word.stem.endswith("ie") else root

    def holds(self, text: str) -> bool:
        """Whether a text that the pattern found is it, or has it as a part."""
        wanted = self.analyzer.words_wanted
        return self._is(wanted(text)) or any(
            self._is(wanted(parts)) for parts in self.analyzer.parts_of_name(text)
        )

    def _is(self, words: Sequence[Word]) -> bool:
        if len(words) != len(self.words):
            return False
        pairs = list(zip(words, self.words, strict=True))
        if self.prefix and words[-1].written.startswith(self.words[-1].written):
            pairs.pop()
        return all(one.stem == other.stem for one, other in pairs)

    def is_alike(self, stems: Iterable[str]) -> bool:
        """Whether a word differs by no more letters than may be, as the index has both."""
        return any(is_alike(stem, self.words[0].stem, self.distance) for stem in stems)


@lru_cache(limits.QUERIES_KEPT)
def _terms(query: str, analyzer: Analyzer) -> tuple[_Wanted, ...]:
    """Return the first of the different words and phrases that a query looks for: a text is searched for each."""
    wanted = (each for text in texts_wanted(query) for each in _wanted_of(text, analyzer))
    return tuple(islice(dict.fromkeys(wanted), limits.HIGHLIGHT_TERMS_MAX))


def _wanted_of(text: Text, analyzer: Analyzer) -> Iterator[_Wanted]:
    """Yield what a clause looks for; words that others may stand between, each by itself, too."""
    words = analyzer.words_wanted(text.text)
    if words:
        yield _Wanted(analyzer, tuple(words), text.prefix, 0 if text.quoted else text.distance)
    if text.quoted and text.distance and len(words) > 1:
        for word in words:
            yield _Wanted(analyzer, (word,), text.prefix and word is words[-1])


def _written(text: str) -> str:
    """Return what finds a text in lower case: of all letters İ alone becomes two."""
    return re.escape(text).replace("i\u0307", "(?:i\u0307|\u0130)")


def _spelled(text: str, wanted: Sequence[_Wanted], analyzer: Analyzer) -> list[_Wanted]:
    """Return the first words of a text that are wanted in another spelling: it is searched for each, too."""
    alike = [one for one in wanted if one.distance]
    shortest = min((len(one.words[0].stem) - one.distance for one in alike), default=0)

    def is_alike_one(word: str) -> bool:
        stems = [each.stem for each in analyzer.words_of(word)]
        return any(one.is_alike(stems) for one in alike)

    def is_spelled_so(word: str) -> bool:
        if alike and len(word) >= shortest and (is_alike_one(word) or has_part(word, 1, is_alike_one)):
            return True
        return any(has_part(word, len(one.words), one.holds) for one in wanted)

    words = filter(is_spelled_so, words_in(text, identifiers_only=not alike, letter=analyzer.letter))
    return [
        _Wanted(analyzer, tuple(analyzer.words_wanted(word)), prefix=False)
        for word in islice(words, limits.HIGHLIGHT_TERMS_MAX)
    ]


def _pattern(wanted: Sequence[_Wanted]) -> re.Pattern[str]:
    """Return what finds the phrases, longer ones first."""
    longest_first = sorted(wanted, key=lambda one: -sum(len(word.written) for word in one.words))
    return re.compile("|".join(one.pattern() for one in longest_first), re.IGNORECASE)


def _windows(text: str, wanted: Sequence[_Wanted], analyzer: Analyzer) -> list[_Window]:
    """Return the excerpts that begin with each match: more different terms are better, then more matches."""
    if not wanted:
        return []
    wanted = [*wanted, *_spelled(text, wanted, analyzer)]
    pattern = _pattern(wanted)
    matches: list[_Match] = []

    @lru_cache(limits.INDEX_IDENTIFIERS_KEPT)  # words repeat
    def term_of(occurrence: str) -> _Wanted | None:
        return next((one for one in wanted if one.holds(occurrence)), None)

    for occurrence in pattern.finditer(text):
        term = term_of(occurrence.group())
        if term is not None:
            matches.append(_Match(occurrence.start(), occurrence.end(), term))
        if len(matches) == limits.HIGHLIGHT_MATCHES_MAX:
            break
    width = limits.HIGHLIGHT_MAX_CHARS - 2 * limits.HIGHLIGHT_CONTEXT_CHARS
    windows = []
    for first, match in enumerate(matches):
        inside = [other for other in matches[first:] if other.end <= match.start + width] or [match]
        windows.append(_Window((len({other.term for other in inside}), len(inside)), text, inside))
    return windows


def _render(text: str, matches: Sequence[_Match]) -> str:
    """Return the excerpt around the matches, which is within the limit whatever they are."""
    start = _word_border(text, max(0, matches[0].start - limits.HIGHLIGHT_CONTEXT_CHARS)) if matches else 0
    pieces = [_ELLIPSIS] if start else []
    room = limits.HIGHLIGHT_MAX_CHARS - 2 * len(_ELLIPSIS)
    place = start
    for match in matches:
        before = _fold(text[place : match.start])
        marked = OPEN + _fold(text[match.start : match.end]) + CLOSE
        if len(before) + len(marked) > room:
            break
        pieces += (before, marked)
        room -= len(before) + len(marked)
        place = match.end
    rest = _fold(text[place : place + 4 * limits.HIGHLIGHT_MAX_CHARS])
    pieces.append(rest[:room])
    if len(rest) > room or place + 4 * limits.HIGHLIGHT_MAX_CHARS < len(text):
        pieces.append(_ELLIPSIS)
    return "".join(pieces).strip()


def _word_border(text: str, place: int) -> int:
    """Return the beginning of the next word, unless it is far."""
    border = re.compile(r"\s\S").search(text, place, place + limits.HIGHLIGHT_CONTEXT_CHARS // 2)
    return border.start() + 1 if border is not None and place > 0 else place


def _fold(text: str) -> str:
    return re.sub(r"\s+", " ", text)
