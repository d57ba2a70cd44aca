"""Texts as the index gets them: words in lower case, by their stems, a space between; the texts of many rows at once.

Words repeat. So Arrow cuts texts into chunks, between characters that no word of the analyzer has, and each
different chunk is made words once: a fourth of what tantivy's own filters take, which work wherever a word stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.limits import (
    INDEX_CHUNK_KEPT_MAX_CHARS,
    INDEX_CHUNKS_KEPT,
    INDEX_WORD_MAX_BYTES,
    INDEX_WORDED_AT_ONCE_BYTES,
)

GAP: Final = "\1"
"""A word that the index leaves out, but for its place: between texts of a row, and where a word is too long."""
_BETWEEN_TEXTS: Final = f" {GAP} "

Numbers: TypeAlias = npt.NDArray[np.int64]


Parts: TypeAlias = Mapping[str, str]
"""The parts of identifiers as they are written, with their words."""


class Wording:
    """Makes words of chunks, and remembers those of short ones without parts. Any number of threads may use it."""

    def __init__(
        self,
        separators: str,
        words_of: Callable[[str], list[str]],
        words_of_long: Callable[[str], Iterable[list[str]]],
        stems_of: Callable[[str], list[str]],
        parts_of: Callable[[Sequence[str]], dict[int, tuple[str, ...]]],
    ) -> None:
        """`separators` are ASCII, and in no word.

        `words_of` gives the words of a text in lower case, `words_of_long` the same, some at a time, `stems_of` those
        of words with spaces between, and `parts_of` the parts of the identifiers of texts, by their numbers.
        """
        self._to_spaces = bytes.maketrans(separators.encode(), b" " * len(separators))
        self._words_of, self._words_of_long = words_of, words_of_long
        self._stems_of, self._parts_of = stems_of, parts_of
        self._known: dict[str, str] = {}

    def texts_of_rows(self, texts: Any, firsts: Numbers) -> list[str]:
        """Return one text for each row, of which `texts[firsts[row] : firsts[row + 1]]` are: parts, then texts.

        `texts` is an array of Arrow without nulls.
        """
        of_texts = texts.dictionary_encode()
        split = pc.ascii_split_whitespace(self._with_spaces(of_texts.dictionary))
        of_chunks = split.values.dictionary_encode()
        chunks, parts_of_chunks = self._different(of_chunks.dictionary)
        words = chunks.take(of_chunks.indices)
        joined: Any = pc.binary_join(pa.ListArray.from_arrays(split.offsets, words), " ")
        rows: Any = pa.ListArray.from_arrays(pa.array(firsts, pa.int32()), joined.take(of_texts.indices))
        joined_rows: Any = pc.binary_join(rows, _BETWEEN_TEXTS)
        whole: list[str] = joined_rows.to_pylist()
        parts_of_texts = _together(parts_of_chunks, of_chunks.indices.to_numpy(), split.offsets.to_numpy())
        for row, parts in _together(parts_of_texts, of_texts.indices.to_numpy(), firsts).items():
            whole[row] = _BETWEEN_TEXTS.join([*(parts[part] for part in sorted(parts)), whole[row]])
        return whole

    def _with_spaces(self, texts: Any) -> Any:
        """Return texts with spaces for all separators."""
        valid, offsets, data = texts.buffers()
        if data is None:
            return texts
        written = pa.py_buffer(data.to_pybytes().translate(self._to_spaces))
        return pa.Array.from_buffers(texts.type, len(texts), [valid, offsets, written], offset=texts.offset)

    def _different(self, written: Any) -> tuple[Any, dict[int, Parts]]:
        """Return the words of different chunks as an array, and their parts; few at a time become objects of Python."""
        words, parts_of_chunks = [pa.array([], pa.string())], dict[int, Parts]()
        for first, last in _some_at_a_time(written):
            some, parts = self._chunks(written.slice(first, last - first).to_pylist())
            words.append(pa.array(some, pa.string()))
            parts_of_chunks |= {first + number: own for number, own in parts.items()}
        return pa.concat_arrays(words), parts_of_chunks

    def _chunks(self, written: list[str]) -> tuple[list[str], dict[int, Parts]]:
        """Return the words of different chunks, and the parts of those that have any, by their numbers."""
        words = list(map(self._known.get, written))
        unknown = [number for number, known in enumerate(words) if known is None]
        texts = [written[number] for number in unknown]
        parts_of_texts = self._parts_of(texts) if texts else {}
        each = list({part for parts in parts_of_texts.values() for part in parts})
        words_of_part = dict(zip(each, self._worded(each), strict=True))
        new = self._worded(texts)
        for number, worded in zip(unknown, new, strict=True):
            words[number] = worded
        self._remember(
            (text, worded)
            for at, (text, worded) in enumerate(zip(texts, new, strict=True))
            if at not in parts_of_texts
        )
        parts_of_chunks: dict[int, Parts] = {
            unknown[at]: {part: words_of_part[part] for part in parts} for at, parts in parts_of_texts.items()
        }
        return cast("list[str]", words), parts_of_chunks

    def _remember(self, chunks: Iterable[tuple[str, str]]) -> None:
        short = (chunk for chunk in chunks if len(chunk[0]) <= INDEX_CHUNK_KEPT_MAX_CHARS)
        new = dict(islice(short, INDEX_CHUNKS_KEPT))
        if len(self._known) + len(new) > INDEX_CHUNKS_KEPT:
            self._known.clear()
        self._known.update(new)

    def _worded(self, texts: Sequence[str]) -> list[str]:
        """Return the words of each text as the index has them, with gaps where one is too long."""
        if len(texts) == 1 and len(texts[0]) > INDEX_WORDED_AT_ONCE_BYTES:
            return [" ".join(self._stemmed([some])[0] for some in self._words_of_long(texts[0]) if some)]
        return self._stemmed(list(map(self._words_of, texts)))

    def _stemmed(self, words: list[list[str]]) -> list[str]:
        different = dict.fromkeys(word for some in words for word in some)
        short = [word for word in different if len(word.encode()) < INDEX_WORD_MAX_BYTES]
        stems = dict(zip(short, self._stems_of(" ".join(short)), strict=True))
        return [
            stems.get(some[0], GAP) if len(some) == 1 else " ".join([stems.get(word, GAP) for word in some])
            for some in words
        ]


def _some_at_a_time(written: Any) -> Iterator[tuple[int, int]]:
    """Yield where of an array each few texts begin and end: not too many, nor of too many bytes, or one."""
    ends = np.cumsum(pc.binary_length(written).to_numpy())
    first = 0
    while first < len(written):
        most = (ends[first - 1] if first else 0) + INDEX_WORDED_AT_ONCE_BYTES
        last = min(int(np.searchsorted(ends, most, side="right")), first + INDEX_CHUNKS_KEPT)
        yield first, max(last, first + 1)
        first = max(last, first + 1)


def _together(
    held: Mapping[int, Parts], codes: npt.NDArray[Any], firsts: npt.NDArray[Any]
) -> dict[int, Parts]:
    """Return the parts of all that each list has in it, where any has: list n is `codes[firsts[n] : firsts[n + 1]]`."""
    if not held:
        return {}
    has_parts = np.zeros(max(int(codes.max()), *held) + 1, bool)
    has_parts[list(held)] = True
    places = np.flatnonzero(has_parts[codes])
    lists = np.searchsorted(firsts, places, side="right") - 1
    together: dict[int, dict[str, str]] = {}
    for number, code in zip(lists.tolist(), codes[places].tolist(), strict=True):
        together.setdefault(number, {}).update(held[code])
    return cast("dict[int, Parts]", together)
