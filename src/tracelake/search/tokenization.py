"""Tokenization of texts where tantivy's tokenizers do not suffice.

Texts in scripts without spaces are split into pairs of letters: 東京都 becomes 東京, 京都 and 都.

Each letter therefore begins one word, any run of letters is a phrase of pairs, and a single letter matches as a prefix.

Identifiers are indexed as one word and also by their parts: `refundPolicy` is found as a whole, and as `refund`,
`policy` or both. The characters `_`, `-`, `.`, `/` and `:` need no such rule, because they separate words anyway.

`BatchTokenizer` turns the texts of many rows into lower-case stems, separated by spaces. Because words repeat, Arrow
splits texts into chunks at characters that no word contains, and each distinct chunk is tokenized once. This takes a
fourth of the time of tantivy's own filters, which process every occurrence. A large row is tokenized in pieces, to
bound the memory beyond its text and its words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from operator import add
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.limits import (
    IDENTIFIER_MAX_BYTES,
    INDEX_BATCH_MAX_BYTES,
    INDEX_VALUE_MAX_CHARS,
    INDEX_WORD_MAX_BYTES,
)

INDEX_CHUNKS_KEPT: Final = 65_536
"""Distinct words that a process caches for each kind of text."""
_INDEX_CHUNK_KEPT_MAX_CHARS: Final = 32
"""One cached word."""
INDEX_WORDED_AT_ONCE_BYTES: Final = 256 * 1024
"""Text that is split into words at a time; each word is a Python object."""
INDEX_IDENTIFIERS_KEPT: Final = 16_384
"""Identifiers whose parts a process caches."""

_LETTERS: Final = r"[0-9A-Za-z\u{80}-\u{10FFFF}]*"
BORDER: Final = "[a-z0-9][A-Z]|[A-Z][A-Z][a-z]"
"""Regular expression for the letters on both sides of a border between parts, for Python and Polars."""
_IDENTIFIER: Final = f"{_LETTERS}(?:{BORDER}){_LETTERS}"
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _parts_of(identifier: str) -> str:
    """Insert spaces between the parts of an identifier: `HTTPServer` becomes `HTTP Server`."""
    return " ".join(_PART.findall(identifier))


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _parts_of_short(name: str) -> tuple[str, ...]:
    return identifiers([name]).get(0, ())


def parts_of_name(name: str) -> tuple[str, ...]:
    """Return the parts of the identifiers of a name. Short names are cached because many spans have the same."""
    return _parts_of_short(name) if len(name) <= INDEX_VALUE_MAX_CHARS else identifiers([name]).get(0, ())


def identifiers(texts: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Return the distinct parts of identifiers with inner capitals, by the number of their text."""
    # Polars scans a text in a tenth of the time of Python's regular expressions or numpy.
    import polars as pl  # noqa: PLC0415  a sixth of the start of a process that has no use for it

    words_of_texts = pl.Series(texts, dtype=pl.String).str.extract_all(_IDENTIFIER)
    matching = (words_of_texts.list.len() > 0).arg_true()
    return {
        number: tuple(
            sorted({_parts_of(word) for word in words if len(word.encode()) <= IDENTIFIER_MAX_BYTES})
        )
        for number, words in zip(matching.to_list(), words_of_texts.gather(matching).to_list(), strict=True)
    }


_UNSPACED: Final = (
    "\u0e01-\u0e3e\u0e40-\u0e4e\u0e50-\u0e59"  # Thai
    "\u0e81-\u0eff"  # Lao
    "\u1000-\u1049\u1050-\u109f"  # Burmese
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"  # Korean: has spaces, but none before the endings of words
    "\u1780-\u17d3\u17e0-\u17e9"  # Khmer
    "\u3005-\u3007\u3031-\u3035\u303b\u303c\u3041-\u3096\u3099-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Kana
    "\uff66-\uff9f"
    "\u3105-\u312f"  # Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
"""Letters of scripts without spaces, without their punctuation, as a part of a regular expression."""
SPACED_LETTER: Final = rf"[^\W_{_UNSPACED}]"
_RUNS: Final = re.compile(rf"[{_UNSPACED}]+|{SPACED_LETTER}+")
_LETTER: Final = re.compile(rf"[{_UNSPACED}]")
_BETWEEN_SPACES: Final = re.compile(
    r"""[^\W_](?:[^\s"'`\u00b4\u2018-\u201f\u00ab\u00bb(){}\[\]<>,;|]*[^\W_])?"""
)
_SPACED_RUN: Final = re.compile(r"[^\W_]+")
_OTHER_WIDTH: Final = re.compile("[\ufb00-\ufb06\uff01-\uff9f\uffa0-\uffdc]+")
"""Latin ligatures, full-width ASCII, half-width kana and Hangul."""
_SYMBOLS: Final = frozenset(("Sc", "Sm", "So", "Cn", "Co", "Cs"))
_NO_LETTER: Final = re.compile(r"[\W_]")
BETWEEN_RUNS: Final = "".join(letter for letter in map(chr, range(128)) if not letter.isalnum())
"""ASCII characters that are in no run of letters and digits."""


def pairs(text: str) -> Iterator[str]:
    """Yield the words of a text: batches of letter pairs for scripts without spaces, and runs of other letters."""
    for match in (_SPACED_RUN if text.isascii() else _RUNS).finditer(text):
        run = match[0]
        if is_unspaced(run):
            yield from _paired(run)
        else:
            yield run


def _paired(run: str) -> Iterator[str]:
    at_once = 1 + INDEX_WORDED_AT_ONCE_BYTES // 3
    for first in range(0, len(run) - 1, at_once):
        some = run[first : first + at_once + 1]  # the last letter also begins the next batch
        yield " ".join(map(add, some, some[1:]))
    yield run[-1]


def is_letter(word: str) -> bool:
    """Whether a word is a single letter of a script without spaces, which ends a run of them."""
    return len(word) == 1 and _LETTER.match(word) is not None


def normalized(text: str) -> str:
    """Return a text in form NFC, with the usual characters for full-width letters, half-width kana and ligatures."""
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return text
    text = _OTHER_WIDTH.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def is_symbol(letter: str) -> bool:
    """Whether a non-ASCII character is a symbol, such as an emoji or a currency sign."""
    return not letter.isascii() and unicodedata.category(letter) in _SYMBOLS


def is_unspaced(word: str) -> bool:
    """Whether a word is of a script without spaces."""
    return _LETTER.match(word) is not None


def has_unspaced(text: str) -> bool:
    """Whether a text has letters of a script without spaces."""
    return not text.isascii() and _LETTER.search(text) is not None


def is_pair(word: str) -> bool:
    """Whether a word is two letters of a script without spaces. The second letter begins the next word."""
    return len(word) == 2 and is_unspaced(word)


def between_spaces(text: str) -> Iterator[str]:
    """Yield the words of a text between white space, unchanged. A word begins and ends with a letter or digit.

    A word that is too long for the index is split into runs of letters and digits.
    """
    for match in _BETWEEN_SPACES.finditer(text):
        word = match[0]
        if len(word) * 4 < INDEX_WORD_MAX_BYTES or len(word.encode()) < INDEX_WORD_MAX_BYTES:
            yield word
        else:
            yield from (run[0] for run in _SPACED_RUN.finditer(word))


def together(words: Iterator[str]) -> Iterator[str]:
    """Join words with spaces into texts of bounded size."""
    some, size = list[str](), 0
    for word in words:
        some.append(word)
        size += len(word) + 1
        if size >= INDEX_WORDED_AT_ONCE_BYTES:
            yield " ".join(some)
            some, size = [], 0
    yield " ".join(some)


def pieces(text: str, has_words: Callable[[str], object]) -> Iterator[str]:
    """Yield a text in pieces. The next piece begins with a character that is neither a letter nor a word according to
    `has_words`."""
    first = 0
    while len(text) - first > INDEX_WORDED_AT_ONCE_BYTES:
        borders = _NO_LETTER.finditer(text, first + INDEX_WORDED_AT_ONCE_BYTES)
        end = next((border.start() for border in borders if not has_words(border[0])), len(text))
        yield text[first:end]
        first = end
    yield text[first:]


def at_spaces(text: bytes) -> Iterator[bytes]:
    """Yield a text in pieces between spaces. A piece is of bounded size, or has no space."""
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
    """Yield the parts of a text without ASCII separators. It is one identifier, and a long one has no parts."""
    if len(text) <= IDENTIFIER_MAX_BYTES:
        yield identifiers([text]).get(0, ())


def parts_of_long(text: str) -> Iterator[Sequence[str]]:
    """Yield the parts that `parts_of_words` returns for a text, in batches."""
    for piece in pieces(text, lambda letter: not letter.isascii()):
        yield identifiers([piece]).get(0, ())
    several = filter(None, (_runs_of(word) for word in between_spaces(text) if not word.isalnum()))
    while some := list(islice(several, INDEX_CHUNKS_KEPT)):
        yield some


def parts_of_words(texts: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Return the parts of words that have inner capitals or characters other than letters and digits."""
    parts = identifiers(texts)
    for number, text in enumerate(texts):
        several = {_runs_of(word) for word in between_spaces(text) if not word.isalnum()}
        several.discard("")
        if several:
            parts[number] = tuple(sorted(several.union(parts.get(number, ()))))
    return parts


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _parts_of_short_name(name: str) -> tuple[str, ...]:
    return parts_of_words([name]).get(0, ())


def parts_of_identifier(name: str) -> tuple[str, ...]:
    """Return the parts of the words of a name. Short names are cached."""
    return (
        _parts_of_short_name(name)
        if len(name) <= INDEX_VALUE_MAX_CHARS
        else parts_of_words([name]).get(0, ())
    )


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _runs_of(word: str) -> str:
    return " ".join(_SPACED_RUN.findall(word))


GAP: Final = "\1"
"""Word that the index omits but counts as a position. It separates the texts of a row and replaces words that are too
long."""
_BETWEEN_TEXTS: Final = f" {GAP} "

Numbers: TypeAlias = npt.NDArray[np.int64]

_NONE: Final = pa.nulls(0, pa.string())  # `pa.array` of Python values imports pandas, if it is installed


class _Parts(NamedTuple):
    """Distinct parts of identifiers in order, and for each text the list of its part numbers."""

    different: Any
    numbers: Any


class BatchTokenizer:
    """Splits many texts into words at once. It caches the words of short chunks without parts. Threads may share it."""

    def __init__(
        self,
        separators: str,
        words_of: Callable[[str], list[str]],
        words_of_long: Callable[[str], Iterable[list[str]]],
        stems_of: Callable[[str], list[str]],
        parts_of: Callable[[Sequence[str]], Mapping[int, Sequence[str]]],
        parts_of_long: Callable[[str], Iterable[Sequence[str]]],
    ) -> None:
        """Store the functions that split texts.

        Args:
            separators: ASCII characters that are in no word.
            words_of: Returns the lower-case words of a text.
            words_of_long: Yields the lower-case words of a long text in batches.
            stems_of: Returns the stems of words with spaces between.
            parts_of: Returns the parts of the identifiers of texts, by text number.
            parts_of_long: Yields the parts of a long text without separators in batches, possibly with duplicates.
        """
        self._to_spaces = bytes.maketrans(separators.encode(), b" " * len(separators))
        self._words_of, self._words_of_long = words_of, words_of_long
        self._stems_of = stems_of
        self._parts_of, self._parts_of_long = parts_of, parts_of_long
        self._known: dict[str, str] = {}

    def texts_of_rows(self, texts: Any, firsts: Numbers) -> list[str]:
        """Return one text for each row: its identifier parts, then its words.

        The texts of a row are `texts[firsts[row] : firsts[row + 1]]`; `texts` is an Arrow array without nulls.
        """
        if texts.nbytes > INDEX_BATCH_MAX_BYTES:
            return [
                self._large(texts.slice(first, last - first)) for first, last in pairwise(firsts.tolist())
            ]
        joined, (different, numbers) = self._at_once(texts, firsts)
        worded = pa.concat_arrays([_NONE, *map(_strings, self._words_of_parts(different))])
        lists: Any = pa.ListArray.from_arrays(numbers.offsets, worded.take(numbers.values))
        have = np.flatnonzero(lists.value_lengths().to_numpy())
        before: Any = pc.binary_join(lists.take(pa.array(have)), _BETWEEN_TEXTS)
        for row, parts in zip(have.tolist(), before.to_pylist(), strict=True):
            joined[row] = f"{parts}{_BETWEEN_TEXTS}{joined[row]}"
        return joined

    def _large(self, texts: Any) -> str:
        """Return the text of one row, processed in batches of texts, or in pieces of a long text."""
        words, parts = list[str](), [_NONE]
        for first, last in _some_at_a_time(_sizes(texts)):
            if first:
                words.append(GAP)
            few = texts.slice(first, last - first).cast(pa.string())
            for some in [few] if len(few) > 1 else self._pieces(few):
                some_words, some_parts = self._few(some)
                words += some_words
                parts += some_parts
        words_of_parts = self._words_of_parts(_ordered(parts))
        return " ".join([*(f"{_BETWEEN_TEXTS.join(some)} {GAP}" for some in words_of_parts), *words])

    def _pieces(self, text: Any) -> Iterator[Any]:
        """Yield a text in pieces, as arrays. A piece is of bounded size, or one larger chunk."""
        return (
            _strings([piece])
            for piece in at_spaces(text[0].as_buffer().to_pybytes().translate(self._to_spaces))
        )

    def _few(self, texts: Any) -> tuple[Iterable[str], Iterable[Any]]:
        """Return the words and the parts of a batch of texts of a row, or of one chunk of any size."""
        if len(texts) == 1 and texts[0].as_buffer().size > INDEX_WORDED_AT_ONCE_BYTES:
            chunk = texts[0].as_py()
            return self._words_some_at_a_time(chunk), (_strings(some) for _, some in self._parts([chunk]))
        words, parts = self._at_once(texts, np.array([0, len(texts)]))
        return words, [parts.different]

    def _at_once(self, texts: Any, firsts: Numbers) -> tuple[list[str], _Parts]:
        """Return the words of each row, and the parts of rows."""
        of_texts = texts.dictionary_encode()
        split = pc.ascii_split_whitespace(self._with_spaces(of_texts.dictionary))
        of_chunks = split.values.dictionary_encode()
        chunks, (different, of_each) = self._different(of_chunks.dictionary)
        words = chunks.take(of_chunks.indices)
        joined: Any = pc.binary_join(pa.ListArray.from_arrays(split.offsets, words), " ")
        rows: Any = pa.ListArray.from_arrays(pa.array(firsts, pa.int32()), joined.take(of_texts.indices))
        joined_rows: Any = pc.binary_join(rows, _BETWEEN_TEXTS)
        of_each = _together(of_each, of_chunks.indices.to_numpy(), split.offsets.to_numpy())
        of_rows = _together(of_each, of_texts.indices.to_numpy(), firsts)
        return joined_rows.to_pylist(), _Parts(different, of_rows)

    def _with_spaces(self, texts: Any) -> Any:
        """Replace all separators in texts by spaces."""
        valid, offsets, data = texts.buffers()
        if data is None:
            return texts
        written = pa.py_buffer(data.to_pybytes().translate(self._to_spaces))
        return pa.Array.from_buffers(texts.type, len(texts), [valid, offsets, written], offset=texts.offset)

    def _different(self, written: Any) -> tuple[Any, _Parts]:
        """Return the words of distinct chunks as an array, and their parts. Batches bound the number of Python
        objects."""
        words, parts, owners = [_NONE], [_NONE], [np.empty(0, np.int64)]
        for first, last in _some_at_a_time(_sizes(written)):
            some, chunk_parts = self._chunks(written.slice(first, last - first).to_pylist())
            words.append(_strings(some))
            for own, some_parts in chunk_parts:
                owners.append(first + own)
                parts.append(some_parts)
        different = _ordered(parts)
        numbers: Any = pc.index_in(pa.concat_arrays(parts), value_set=different)
        of_each = np.searchsorted(np.concatenate(owners), np.arange(len(written) + 1))
        return pa.concat_arrays(words), _Parts(different, _lists(of_each, numbers))

    def _chunks(self, written: list[str]) -> tuple[list[str], list[tuple[Numbers, Any]]]:
        """Return the words of distinct chunks, and their parts as (chunk numbers, parts), ordered by chunk."""
        words = list(map(self._known.get, written))
        unknown = [number for number, cached in enumerate(words) if cached is None]
        texts = [written[number] for number in unknown]
        chunk_parts = [(np.array(owners, np.int64), _strings(parts)) for owners, parts in self._parts(texts)]
        have = {owner for owners, _ in chunk_parts for owner in owners.tolist()}
        new = self._worded(texts)
        for number, worded in zip(unknown, new, strict=True):
            words[number] = worded
        self._remember(
            (text, worded) for at, (text, worded) in enumerate(zip(texts, new, strict=True)) if at not in have
        )
        numbers = np.array(unknown, np.int64)
        return cast("list[str]", words), [(numbers[owners], parts) for owners, parts in chunk_parts]

    def _parts(self, texts: list[str]) -> Iterator[tuple[list[int], list[str]]]:
        """Yield the parts of texts as (text numbers, parts), ordered by text. The parts of a large text are yielded
        in batches."""
        if len(texts) == 1 and len(texts[0]) > INDEX_WORDED_AT_ONCE_BYTES:
            for some in self._parts_of_long(texts[0]):
                different = list(dict.fromkeys(some))
                yield [0] * len(different), different
        elif texts:
            parts = self._parts_of(texts)
            owners = [number for number in sorted(parts) for _ in parts[number]]
            yield owners, [part for number in sorted(parts) for part in parts[number]]

    def _words_of_parts(self, different: Any) -> Iterator[list[str]]:
        for first, last in _some_at_a_time(_sizes(different)):
            yield self._worded(different.slice(first, last - first).to_pylist())

    def _remember(self, chunks: Iterable[tuple[str, str]]) -> None:
        short = (chunk for chunk in chunks if len(chunk[0]) <= _INDEX_CHUNK_KEPT_MAX_CHARS)
        new = dict(islice(short, INDEX_CHUNKS_KEPT))
        if len(self._known) + len(new) > INDEX_CHUNKS_KEPT:
            self._known.clear()
        self._known.update(new)

    def _worded(self, texts: Sequence[str]) -> list[str]:
        """Return the words of each text in the form of the index, with gaps for words that are too long."""
        if len(texts) == 1 and len(texts[0]) > INDEX_WORDED_AT_ONCE_BYTES:
            return [" ".join(self._words_some_at_a_time(texts[0]))]
        return self._stemmed(list(map(self._words_of, texts)))

    def _words_some_at_a_time(self, text: str) -> Iterator[str]:
        return (self._stemmed([some])[0] for some in self._words_of_long(text) if some)

    def _stemmed(self, words: list[list[str]]) -> list[str]:
        different = dict.fromkeys(word for some in words for word in some)
        short = [word for word in different if len(word.encode()) < INDEX_WORD_MAX_BYTES]
        stems = dict(zip(short, self._stems_of(" ".join(short)), strict=True))
        return [
            stems.get(some[0], GAP) if len(some) == 1 else " ".join([stems.get(word, GAP) for word in some])
            for some in words
        ]


def _some_at_a_time(sizes: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each batch of texts with these sizes. Their number and bytes are bounded, except for
    one large text."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(ends):
        most = (ends[first - 1] if first else 0) + INDEX_WORDED_AT_ONCE_BYTES
        last = min(int(np.searchsorted(ends, most, side="right")), first + INDEX_CHUNKS_KEPT)
        yield first, max(last, first + 1)
        first = max(last, first + 1)


def _together(entries: Any, codes: npt.NDArray[Any], firsts: npt.NDArray[Any]) -> Any:
    """Return the distinct entries that each list of codes contains; list n is `codes[firsts[n] : firsts[n + 1]]`."""
    lengths = entries.value_lengths().to_numpy()
    places = np.flatnonzero(lengths[codes])
    having = codes[places]
    lists = (np.searchsorted(firsts, places, side="right") - 1).repeat(lengths[having])
    numbers = entries.take(pa.array(having)).flatten().to_numpy()
    stride = int(numbers.max(initial=0)) + 1
    both = np.unique(lists * stride + numbers)
    return _lists(np.searchsorted(both, np.arange(len(firsts)) * stride), pa.array(both % stride))


def _sizes(texts: Any) -> npt.NDArray[Any]:
    if pa.types.is_dictionary(texts.type):
        return cast("npt.NDArray[Any]", _sizes(texts.dictionary)[texts.indices.to_numpy()])
    return cast("npt.NDArray[Any]", pc.binary_length(texts).to_numpy())


def _lists(firsts: Numbers, values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(firsts, pa.int32()), values)


def _ordered(parts: Sequence[Any]) -> Any:
    """Return the distinct parts of some arrays, in order."""
    different: Any = pc.unique(pa.concat_arrays(parts))
    return different.take(pc.sort_indices(different))


def _strings(texts: Sequence[str] | Sequence[bytes]) -> Any:
    return pa.array(texts, pa.string())
