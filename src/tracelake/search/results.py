"""Search results: a page of hits, facts about the complete result, and excerpts of hits.

Excerpts are cut from texts that the caller read back from the table. They also mark words that a query matches in
another spelling: similar words, or parts of identifiers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracelake import limits
from tracelake.limits import LIST_TEXT_MAX_CHARS
from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.results import html_table
from tracelake.search.analyzers import ENGLISH, Analyzer, Word
from tracelake.search.query_compiler import QUERIES_KEPT, texts_wanted
from tracelake.search.query_parser import Text, clause_of
from tracelake.search.tokenization import BORDER, INDEX_IDENTIFIERS_KEPT, is_pair, is_unspaced, parts_of_name

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Hit:
    """Span that a search found. `highlight` is an excerpt with the matches between [[ and ]]."""

    trace_id: str
    span_id: str
    score: float  # 0 if hits are sorted by time
    service: str | None
    name: str
    start_ns: int
    highlight: str
    duration_ns: int = 0  # 0 if the span is still running
    status: str | None = None
    model: str | None = None
    session_id: str | None = None
    user_id: str | None = None
    workspace: str = WORKSPACE_DEFAULT
    kind: str | None = None
    type: str | None = None  # such as llm, agent or tool

    @property
    def id(self) -> str:
        """Trace and span id as one text, in the form of `like:` queries."""
        return f"{self.trace_id}-{self.span_id}"

    @property
    def neighbours(self) -> dict[str, str]:
        """Queries for related spans: of its session, of its user, and similar spans. Long values have none."""
        related = {"session": self.session_id, "user": self.user_id, "like": self.id}
        return {
            field: clause_of(field, value)
            for field, value in related.items()
            if value
            and len(value) < LIST_TEXT_MAX_CHARS  # a longer one is cut in lists, and its query finds nothing
        }


@dataclass(frozen=True, slots=True)
class FacetValue:
    """Number of spans of a result that have a value."""

    value: str
    spans: int


@dataclass(frozen=True, slots=True)
class Facet:
    """Distribution of a complete result over the values of a field. Days are in order, other values by number of
    spans."""

    values: tuple[FacetValue, ...]
    others: int
    """The number of spans with other values."""
    exact: bool = True
    """Whether the numbers are exact. They are not if a part of the index has more distinct values than are counted."""


@dataclass(frozen=True, slots=True)
class PartsAsked:
    """Number of index parts that a search reads, and of parts that it skips because they cannot match."""

    asked: int
    pruned: int


class SearchResults(list[Hit]):
    """Hits of one page, in order, with facts about the complete result."""

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        total: int | None = 0,
        facets: Mapping[str, Facet] | None = None,
        commit: str | None = None,
        next_page: str | None = None,
        text: str | None = None,
        parts: PartsAsked = PartsAsked(0, 0),
        vectors: str | None = None,
        not_searched: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(hits)
        self.total = total
        """The number of all matching spans; None if a condition decides."""
        self.facets = dict(facets or {})
        """The requested facets, by name."""
        self.commit = commit
        """The commit that was searched; None for an empty lake."""
        self.next_page = next_page
        """The `page` argument of the same search for the following hits; None if there are no more."""
        self.text = text
        """The analyzer of the index that was searched; None for an empty lake."""
        self.parts = parts
        """The number of index parts that were read and skipped for the hits."""
        self.vectors = vectors
        """The vector settings of the index that was searched; None if it has no vectors."""
        self.not_searched = not_searched
        """Acknowledged data that this search did not cover, and the reason; None if it covered all."""
        self.hint = hint
        """Why the index may lack matches of the query, and the remedy. Set only if the search finds nothing."""

    def _repr_html_(self) -> str:
        """Return the hits as a table, for a notebook."""
        headers = ("trace", "span", "service", "name", "score", "excerpt")
        rows = (
            (hit.trace_id, hit.span_id, hit.service or "", hit.name, f"{hit.score:.2f}", hit.highlight)
            for hit in self
        )
        total = "" if self.total is None else f" of {self.total:,}"
        return f"<p>{len(self):,}{total} spans</p>{html_table(headers, rows)}"

    def to_pandas(self) -> pd.DataFrame:
        """Return the hits as a pandas frame. Pandas must be installed."""
        import pandas as pd  # noqa: PLC0415  optional

        names = [each.name for each in fields(Hit)]
        return pd.DataFrame([astuple(hit) for hit in self], columns=names)

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain JSON types."""
        return {
            "hits": [{**asdict(hit), "neighbours": hit.neighbours} for hit in self],
            "total": self.total,
            "facets": {name: asdict(facet) for name, facet in self.facets.items()},
            "commit": self.commit,
            "next_page": self.next_page,
            "text": self.text,
            "parts": asdict(self.parts),
            "vectors": self.vectors,
            "not_searched": self.not_searched,
            "hint": self.hint,
        }


HIGHLIGHT_TERMS_MAX: Final = 32
"""Distinct query words and phrases that excerpts highlight, and their spellings in a text."""
_HIGHLIGHT_SPELLINGS_MAX_CHARS: Final = 20_000
"""Characters of a text that are scanned for other spellings of a word."""
_HIGHLIGHTED_KEPT: Final = 16
"""Sets of query words whose tests are cached, for the hits of concurrent searches."""
_HIGHLIGHTED_WORDS_KEPT: Final = 4_096
"""Words of texts that each test caches."""
_HIGHLIGHT_CONTEXT_CHARS: Final = 40
"""Text of an excerpt before its first match."""
_HIGHLIGHT_MATCHES_MAX: Final = 200
"""Matches in one text that are considered for its excerpt."""

_BORDER: Final = re.compile(BORDER)
_OTHER_ENDING: Final = re.compile("(?:ie|le|[eily])$")
"""Endings of English stems that may differ from the word: `dying` has the stem `die`, `hoping` `hope`, `visibility`
`visibl`.

These are all replacement endings in the rules of the stemmer (snowballstem.org/algorithms/english).
"""


def beginning(stem: str) -> str:
    """Return the common prefix of all words that have this English stem."""
    return _OTHER_ENDING.sub("", stem)


def words_in(text: str, identifiers_only: bool, letter: str = r"[^\W_]") -> list[str]:
    """Return the distinct words at the beginning of a text, in order, or only those with capitals inside."""
    beginning = text[:_HIGHLIGHT_SPELLINGS_MAX_CHARS]
    if identifiers_only and _BORDER.search(beginning) is None:
        return []
    words = dict.fromkeys(re.findall(f"{letter}+", beginning))
    return [word for word in words if not identifiers_only or _is_identifier(word)]


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _is_identifier(word: str) -> bool:
    return _BORDER.search(word) is not None


def has_part(identifier: str, size: int, holds: Callable[[str], bool]) -> bool:
    """Whether any `size` adjacent parts of an identifier such as `refundPolicy` satisfy `holds`."""
    return any(holds(parts) for parts in _runs(identifier, size))


def _runs(word: str, size: int) -> Iterator[str]:
    for identifier in parts_of_name(word):
        parts = identifier.split()
        for first in range(len(parts) - size + 1):
            yield " ".join(parts[first : first + size])


def is_alike(one: str, other: str, distance: int) -> bool:
    """Whether the edit distance of two words is at most `distance`. A transposition of adjacent letters counts as one
    edit."""
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
        # A later cell is at least the minimum of the last row, or the minimum of the row before plus one.
        if min(row) > distance and min(before) >= distance:
            return False
    return row[-1] <= distance


OPEN: Final = "[["
CLOSE: Final = "]]"
_ELLIPSIS: Final = "…"


class _Match(NamedTuple):
    start: int
    end: int
    term: _Term


class _Window(NamedTuple):
    score: tuple[int, int]
    text: str
    matches: list[_Match]


def highlight(texts: Sequence[str], query: str, analyzer: Analyzer = ENGLISH) -> str:
    """Return an excerpt of the texts around as many matches of the query as possible, with the matches between [[ and
    ]].

    It has at most `limits.HIGHLIGHT_MAX_CHARS` characters including the marks, with white space folded. If nothing
    matches, as for a query on `service` only, it is the beginning of the first text. The analyzer must be that of the
    index. Raises QueryError if the query does not parse.
    """
    wanted = _terms(query, analyzer)
    may_match = _beginnings(wanted).search
    texts = [analyzer.normalized(text) for text in dict.fromkeys(texts)]
    windows = [window for text in texts if may_match(text) for window in _windows(text, wanted, analyzer)]
    if windows:
        best = max(windows, key=lambda window: window.score)  # the first of equal ones
        return _render(best.text, best.matches)
    return _render(next((text for text in texts if text.strip()), ""), [])


class _Term(NamedTuple):
    """Word or phrase that a query searches for."""

    analyzer: Analyzer
    words: tuple[Word, ...]
    prefix: bool
    distance: int = 0
    """Maximum edit distance of a match."""

    def pattern(self) -> str:
        """Return a regular expression for all candidate matches, between word borders as the index sees them."""
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
                pattern += rf"(?<!{letter}){self._beginning(word)}{letter}*"
            else:
                pattern += rf"(?<!{letter}){self._beginning(word)}{letter}*?(?!{letter})"
            before = word
        return pattern

    def beginning_pattern(self) -> str:
        """Return a regular expression that matches in each text with a match, also in another spelling."""
        return "" if self.distance else self._beginning(self.words[0])

    def _beginning(self, word: Word) -> str:
        """Return a regular expression for the beginning of all forms of a word."""
        if is_unspaced(word.written):
            return re.escape(word.written)
        root = self._root(word)
        return f"(?:{_written(word.written)}|{root})" if self.prefix and word is self.words[-1] else root

    def _root(self, word: Word) -> str:
        """Return a regular expression for the common prefix of all words of a stem."""
        if not self.analyzer.stemmed:
            return _written(word.stem)
        root = _written(beginning(word.stem))
        # Otherwise, each word with this letter would be a candidate for `die`.
        return f"{root}(?:ie|y)" if word.stem.endswith("ie") else root

    def holds(self, text: str) -> bool:
        """Whether a text that the pattern found is a match, or has one as a part."""
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
        """Whether any stem is within the edit distance of this word's stem."""
        return any(is_alike(stem, self.words[0].stem, self.distance) for stem in stems)


@lru_cache(QUERIES_KEPT)
def _terms(query: str, analyzer: Analyzer) -> tuple[_Term, ...]:
    """Return the first distinct words and phrases of a query. Their number is bounded because a text is searched for
    each."""
    wanted = (each for text in texts_wanted(query) for each in _wanted_of(text, analyzer))
    return tuple(islice(dict.fromkeys(wanted), HIGHLIGHT_TERMS_MAX))


def _wanted_of(text: Text, analyzer: Analyzer) -> Iterator[_Term]:
    """Yield the words or phrase of a clause. For a phrase with slop, also yield each word."""
    words = analyzer.words_wanted(text.text)
    if words:
        yield _Term(analyzer, tuple(words), text.prefix, 0 if text.quoted else text.distance)
    if text.quoted and text.distance and len(words) > 1:
        for word in words:
            yield _Term(analyzer, (word,), text.prefix and word is words[-1])


def _written(text: str) -> str:
    """Return a regular expression for a lower-case text. Only the letter İ becomes two characters in lower case."""
    return re.escape(text).replace("i\u0307", "(?:i\u0307|\u0130)")


def _spelled(text: str, wanted: Sequence[_Term], analyzer: Analyzer) -> list[_Term]:
    """Return the first words of a text that match in another spelling. The text is searched for each of them too."""
    is_alike_wanted = any(one.distance for one in wanted)
    has_spelling = _spelling_test(tuple(wanted), analyzer)
    words = filter(has_spelling, words_in(text, identifiers_only=not is_alike_wanted, letter=analyzer.letter))
    return [
        _Term(analyzer, tuple(analyzer.words_wanted(word)), prefix=False)
        for word in islice(words, HIGHLIGHT_TERMS_MAX)
    ]


@lru_cache(_HIGHLIGHTED_KEPT)
def _spelling_test(wanted: tuple[_Term, ...], analyzer: Analyzer) -> Callable[[str], bool]:
    """Return a test for words that match in another spelling. It caches its results, because words repeat in the hits
    of a search."""
    alike = [one for one in wanted if one.distance]
    shortest = min((len(one.words[0].stem) - one.distance for one in alike), default=0)

    def is_alike_one(word: str) -> bool:
        stems = [each.stem for each in analyzer.words_of(word)]
        return any(one.is_alike(stems) for one in alike)

    @lru_cache(_HIGHLIGHTED_WORDS_KEPT)
    def has_spelling(word: str) -> bool:
        if alike and len(word) >= shortest and (is_alike_one(word) or has_part(word, 1, is_alike_one)):
            return True
        return any(has_part(word, len(one.words), one.holds) for one in wanted)

    return has_spelling


@lru_cache(_HIGHLIGHTED_KEPT)
def _matcher(wanted: tuple[_Term, ...]) -> tuple[re.Pattern[str], Callable[[str], _Term | None]]:
    """Return a regular expression for candidate matches, and the function that returns the term of a match, if it is
    one."""

    @lru_cache(_HIGHLIGHTED_WORDS_KEPT)
    def term_of(occurrence: str) -> _Term | None:
        return next((one for one in wanted if one.holds(occurrence)), None)

    return _pattern(wanted), term_of


@lru_cache(_HIGHLIGHTED_KEPT)
def _beginnings(wanted: tuple[_Term, ...]) -> re.Pattern[str]:
    """Return a regular expression that rules out most texts without a match, faster than the search for matches."""
    return re.compile("|".join(one.beginning_pattern() for one in wanted), re.IGNORECASE)


def _pattern(wanted: Sequence[_Term]) -> re.Pattern[str]:
    """Return a regular expression for the phrases, longer ones first."""
    longest_first = sorted(wanted, key=lambda one: -sum(len(word.written) for word in one.words))
    return re.compile("|".join(one.pattern() for one in longest_first), re.IGNORECASE)


def _windows(text: str, wanted: Sequence[_Term], analyzer: Analyzer) -> list[_Window]:
    """Return one excerpt for each match, beginning at the match. Its score prefers more distinct terms, then more
    matches."""
    if not wanted:
        return []
    pattern, term_of = _matcher((*wanted, *_spelled(text, wanted, analyzer)))
    matches: list[_Match] = []
    for occurrence in pattern.finditer(text):
        term = term_of(occurrence.group())
        if term is not None:
            matches.append(_Match(occurrence.start(), occurrence.end(), term))
        if len(matches) == _HIGHLIGHT_MATCHES_MAX:
            break
    width = limits.HIGHLIGHT_MAX_CHARS - 2 * _HIGHLIGHT_CONTEXT_CHARS
    windows, after = [], 0
    for first, match in enumerate(matches):
        # Matches do not overlap, so the last match of a window is never before that of the window before it.
        after = max(after, first + 1)
        while after < len(matches) and matches[after].end <= match.start + width:
            after += 1
        inside = matches[first:after]
        windows.append(_Window((len({other.term for other in inside}), len(inside)), text, inside))
    return windows


def _render(text: str, matches: Sequence[_Match]) -> str:
    """Return the excerpt around the matches. It never exceeds the limit."""
    start = _word_border(text, max(0, matches[0].start - _HIGHLIGHT_CONTEXT_CHARS)) if matches else 0
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
    tail = _fold(text[place : place + 4 * limits.HIGHLIGHT_MAX_CHARS])
    pieces.append(tail[:room])
    if len(tail) > room or place + 4 * limits.HIGHLIGHT_MAX_CHARS < len(text):
        pieces.append(_ELLIPSIS)
    return "".join(pieces).strip()


def _word_border(text: str, place: int) -> int:
    """Return the beginning of the next word, or `place` if that is far."""
    border = re.compile(r"\s\S").search(text, place, place + _HIGHLIGHT_CONTEXT_CHARS // 2)
    return border.start() + 1 if border is not None and place > 0 else place


def _fold(text: str) -> str:
    return re.sub(r"\s+", " ", text)
