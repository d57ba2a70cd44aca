"""Cutting texts into words where tantivy's own tokenizers do not: between white space, and without any.

Scripts without spaces are cut into pairs: 東京都 is 東京, 京都 and 都. So each letter begins one word, runs of letters
are phrases of pairs wherever they stand, and a single letter is the beginning of words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from operator import add
from typing import Final

from tracelake.limits import (
    IDENTIFIER_MAX_BYTES,
    INDEX_CHUNKS_KEPT,
    INDEX_IDENTIFIERS_KEPT,
    INDEX_VALUE_MAX_CHARS,
    INDEX_WORD_MAX_BYTES,
    INDEX_WORDED_AT_ONCE_BYTES,
)
from tracelake.search.parts import identifiers

_UNSPACED: Final = (
    "\u0e01-\u0e3e\u0e40-\u0e4e\u0e50-\u0e59"  # Thai
    "\u0e81-\u0eff"  # Lao
    "\u1000-\u1049\u1050-\u109f"  # Burmese
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"  # Korean: with spaces, but what is added to words has none
    "\u1780-\u17d3\u17e0-\u17e9"  # Khmer
    "\u3005-\u3007\u3031-\u3035\u303b\u303c\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Kana
    "\uff66-\uff9f"
    "\u3105-\u312f"  # Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Letters of scripts without spaces, without their punctuation, as a part of an expression."""
SPACED_LETTER: Final = rf"[^\W_{_UNSPACED}]"
_RUNS: Final = re.compile(rf"[{_UNSPACED}]+|{SPACED_LETTER}+")
_LETTER: Final = re.compile(rf"[{_UNSPACED}]")
_BETWEEN_SPACES: Final = re.compile(
    r"""[^\W_](?:[^\s"'`\u00b4\u2018-\u201f\u00ab\u00bb(){}\[\]<>,;|]*[^\W_])?"""
)
_SPACED_RUN: Final = re.compile(r"[^\W_]+")
_OTHER_WIDTH: Final = re.compile("[\ufb00-\ufb06\uff01-\uff9f\uffa0-\uffdc]+")
"""Ligatures of Latin letters, full-width ASCII, half-width kana and Hangul."""
_SYMBOLS: Final = frozenset(("Sc", "Sm", "So", "Cn", "Co", "Cs"))
_NO_LETTER: Final = re.compile(r"[\W_]")
BETWEEN_RUNS: Final = "".join(letter for letter in map(chr, range(128)) if not letter.isalnum())
"""Characters of ASCII that are in no run of letters and digits."""


def pairs(text: str) -> Iterator[str]:
    """Yield the words of a text: pairs of letters of scripts without spaces, many at a time, and runs of others."""
    for match in (_SPACED_RUN if text.isascii() else _RUNS).finditer(text):
        run = match[0]
        if is_unspaced(run):
            yield from _paired(run)
        else:
            yield run


def _paired(run: str) -> Iterator[str]:
    at_once = 1 + INDEX_WORDED_AT_ONCE_BYTES // 3
    for first in range(0, len(run) - 1, at_once):
        some = run[first : first + at_once + 1]  # the last letter begins the next of them
        yield " ".join(map(add, some, some[1:]))
    yield run[-1]


def is_letter(word: str) -> bool:
    """Whether a word is a single letter of a script without spaces: where a run of them ends."""
    return len(word) == 1 and _LETTER.match(word) is not None


def normalized(text: str) -> str:
    """Return a text in form NFC, full-width letters, half-width kana and ligatures replaced by the usual ones."""
    if text.isascii():
        return text
    text = _OTHER_WIDTH.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def is_symbol(letter: str) -> bool:
    """Whether a character outside ASCII is a symbol and no letter, such as an emoji or a currency sign."""
    return not letter.isascii() and unicodedata.category(letter) in _SYMBOLS


def is_unspaced(word: str) -> bool:
    """Whether a word is of a script without spaces."""
    return _LETTER.match(word) is not None


def has_unspaced(text: str) -> bool:
    """Whether a text has letters of a script without spaces."""
    return not text.isascii() and _LETTER.search(text) is not None


def is_pair(word: str) -> bool:
    """Whether a word is two letters of a script without spaces, of which the second begins the next word."""
    return len(word) == 2 and is_unspaced(word)


def between_spaces(text: str) -> Iterator[str]:
    """Yield the words of a text between white space: what has letters at both ends, as it is written.

    One that is longer than the index takes is cut into runs of letters and digits.
    """
    for match in _BETWEEN_SPACES.finditer(text):
        word = match[0]
        if len(word) * 4 < INDEX_WORD_MAX_BYTES or len(word.encode()) < INDEX_WORD_MAX_BYTES:
            yield word
        else:
            yield from (run[0] for run in _SPACED_RUN.finditer(word))


def together(words: Iterator[str]) -> Iterator[str]:
    """Yield texts of some of the words each, with spaces between."""
    some, size = list[str](), 0
    for word in words:
        some.append(word)
        size += len(word) + 1
        if size >= INDEX_WORDED_AT_ONCE_BYTES:
            yield " ".join(some)
            some, size = [], 0
    yield " ".join(some)


def pieces(text: str, has_words: Callable[[str], object]) -> Iterator[str]:
    """Yield a text in pieces that end before a character which is in no word: where `has_words` says so, too."""
    first = 0
    while len(text) - first > INDEX_WORDED_AT_ONCE_BYTES:
        borders = _NO_LETTER.finditer(text, first + INDEX_WORDED_AT_ONCE_BYTES)
        end = next((border.start() for border in borders if not has_words(border[0])), len(text))
        yield text[first:end]
        first = end
    yield text[first:]


def at_spaces(text: bytes) -> Iterator[bytes]:
    """Yield a text in pieces between spaces: what has not many bytes together, or has no space in it."""
    first = 0
    while len(text) - first > INDEX_WORDED_AT_ONCE_BYTES:
        most = first + INDEX_WORDED_AT_ONCE_BYTES
        end = text.rfind(b" ", first, most)
        if end < 0:
            end = text.find(b" ", most)
        if end < 0:
            break
        yield text[first:end]
        first = end + 1
    yield text[first:]


def parts_of_run(text: str) -> Iterator[Sequence[str]]:
    """Yield the parts of a text without ASCII between its words, which is one identifier: a long one has none."""
    if len(text) <= IDENTIFIER_MAX_BYTES:
        yield identifiers([text]).get(0, ())


def parts_of_long(text: str) -> Iterator[Sequence[str]]:
    """Yield what `parts_of_words` returns of a text, some at a time."""
    for piece in pieces(text, lambda letter: not letter.isascii()):
        yield identifiers([piece]).get(0, ())
    several = filter(None, (_runs_of(word) for word in between_spaces(text) if not word.isalnum()))
    while some := list(islice(several, INDEX_CHUNKS_KEPT)):
        yield some


def parts_of_words(texts: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Return the parts of words that have more than letters and digits in them, and of those with capitals inside."""
    parts = identifiers(texts)
    for number, text in enumerate(texts):
        several = {_runs_of(word) for word in between_spaces(text) if not word.isalnum()}
        several.discard("")
        if several:
            parts[number] = tuple(sorted(several.union(parts.get(number, ()))))
    return parts


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _parts_of_short(name: str) -> tuple[str, ...]:
    return parts_of_words([name]).get(0, ())


def parts_of_name(name: str) -> tuple[str, ...]:
    """Return the parts of the words of a name; short ones are remembered."""
    return _parts_of_short(name) if len(name) <= INDEX_VALUE_MAX_CHARS else parts_of_words([name]).get(0, ())


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _runs_of(word: str) -> str:
    return " ".join(_SPACED_RUN.findall(word))
