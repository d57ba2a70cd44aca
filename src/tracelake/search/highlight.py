"""Excerpts of hits, cut from texts that the caller read back from the table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from tracelake import limits
from tracelake.search.syntax import terms

OPEN: Final = "[["
CLOSE: Final = "]]"
_ELLIPSIS: Final = "…"


class _Match(NamedTuple):
    start: int
    end: int
    term: str


class _Window(NamedTuple):
    score: tuple[int, int]
    text: str
    matches: list[_Match]


def highlight(texts: Sequence[str], query: str) -> str:
    """Return the excerpt of the texts that shows most of the query, its matches between [[ and ]].

    At most `limits.HIGHLIGHT_MAX_CHARS` characters with the marks, white space folded; the beginning of the
    first text where nothing matches, such as for a query on `service` only. Raises QueryError.
    """
    wanted = terms(query)
    windows = [window for text in texts for window in _windows(text, wanted)]
    if windows:
        best = max(windows, key=lambda window: window.score)  # the first of the best
        return _render(best.text, best.matches)
    return _render(next((text for text in texts if text.strip()), ""), [])


def _pattern(wanted: Iterable[str]) -> re.Pattern[str] | None:
    """Return what finds the phrases, longer ones first, between borders of words as the index sees them."""
    phrases = sorted(wanted, key=lambda phrase: (-len(phrase), phrase))
    if not phrases:
        return None
    either = "|".join(r"[\W_]+".join(map(re.escape, phrase.split(" "))) for phrase in phrases)
    return re.compile(rf"(?<![^\W_])(?:{either})(?![^\W_])", re.IGNORECASE)


def _windows(text: str, wanted: frozenset[str]) -> list[_Window]:
    """Return the excerpts that begin with each match: more different terms are better, then more matches."""
    pattern = _pattern(wanted)
    if pattern is None:
        return []
    matches: list[_Match] = []
    for found in pattern.finditer(text):
        matches.append(_Match(found.start(), found.end(), found.group().lower()))
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
