"""Texts as the index gets them: words in lower case, by their stems, a space between; the texts of many rows at once.

Words repeat. So Arrow cuts texts into chunks, between characters that no word of the analyzer has, and each
different chunk is made words once: a fourth of what tantivy's own filters take, which work wherever a word stands.
A row that is large by itself is made words in pieces, so that little is held beside its text and its words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.limits import (
    INDEX_BATCH_MAX_BYTES,
    INDEX_CHUNK_KEPT_MAX_CHARS,
    INDEX_CHUNKS_KEPT,
    INDEX_WORD_MAX_BYTES,
    INDEX_WORDED_AT_ONCE_BYTES,
)
from tracelake.search.cutting import at_spaces

GAP: Final = "\1"
"""A word that the index leaves out, but for its place: between texts of a row, and where a word is too long."""
_BETWEEN_TEXTS: Final = f" {GAP} "

Numbers: TypeAlias = npt.NDArray[np.int64]


_NONE: Final = pa.array([], pa.string())


class _Parts(NamedTuple):
    """Parts of identifiers, each once and in order, and lists of the numbers of those that each of some texts has."""

    different: Any
    numbers: Any


class Wording:
    """Makes words of chunks, and remembers those of short ones without parts. Any number of threads may use it."""

    def __init__(
        self,
        separators: str,
        words_of: Callable[[str], list[str]],
        words_of_long: Callable[[str], Iterable[list[str]]],
        stems_of: Callable[[str], list[str]],
        parts_of: Callable[[Sequence[str]], Mapping[int, Sequence[str]]],
        parts_of_long: Callable[[str], Iterable[Sequence[str]]],
    ) -> None:
        """`separators` are ASCII, and in no word.

        `words_of` gives the words of a text in lower case, `words_of_long` the same, some at a time, `stems_of` those
        of words with spaces between, `parts_of` the parts of the identifiers of texts, by their numbers, and
        `parts_of_long` those of a long text without separators, some at a time, of which any may come again.
        """
        self._to_spaces = bytes.maketrans(separators.encode(), b" " * len(separators))
        self._words_of, self._words_of_long = words_of, words_of_long
        self._stems_of = stems_of
        self._parts_of, self._parts_of_long = parts_of, parts_of_long
        self._known: dict[str, str] = {}

    def texts_of_rows(self, texts: Any, firsts: Numbers) -> list[str]:
        """Return one text for each row, of which `texts[firsts[row] : firsts[row + 1]]` are: parts, then texts.

        `texts` is an array of Arrow without nulls.
        """
        if texts.nbytes > INDEX_BATCH_MAX_BYTES:
            return [
                self._large(texts.slice(first, last - first)) for first, last in pairwise(firsts.tolist())
            ]
        whole, (different, numbers) = self._at_once(texts, firsts)
        worded = pa.concat_arrays([_NONE, *map(_strings, self._words_of_parts(different))])
        lists: Any = pa.ListArray.from_arrays(numbers.offsets, worded.take(numbers.values))
        have = np.flatnonzero(lists.value_lengths().to_numpy())
        before: Any = pc.binary_join(lists.take(pa.array(have)), _BETWEEN_TEXTS)
        for row, parts in zip(have.tolist(), before.to_pylist(), strict=True):
            whole[row] = f"{parts}{_BETWEEN_TEXTS}{whole[row]}"
        return whole

    def _large(self, texts: Any) -> str:
        """Return the same of one row, a few texts at a time, or a piece of one."""
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
        """Yield a text in pieces, each an array: chunks of not many bytes together, or one that has more."""
        return (
            _strings([piece])
            for piece in at_spaces(text[0].as_buffer().to_pybytes().translate(self._to_spaces))
        )

    def _few(self, texts: Any) -> tuple[Iterable[str], Iterable[Any]]:
        """Return the words of a few texts of a row, and the parts; or of one chunk, however large."""
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
        """Return texts with spaces for all separators."""
        valid, offsets, data = texts.buffers()
        if data is None:
            return texts
        written = pa.py_buffer(data.to_pybytes().translate(self._to_spaces))
        return pa.Array.from_buffers(texts.type, len(texts), [valid, offsets, written], offset=texts.offset)

    def _different(self, written: Any) -> tuple[Any, _Parts]:
        """Return the words of different chunks as an array, and their parts; few at a time become objects of Python."""
        words, parts, owners = [_NONE], [_NONE], [np.empty(0, np.int64)]
        for first, last in _some_at_a_time(_sizes(written)):
            some, held = self._chunks(written.slice(first, last - first).to_pylist())
            words.append(_strings(some))
            for own, some_parts in held:
                owners.append(first + own)
                parts.append(some_parts)
        different = _ordered(parts)
        numbers: Any = pc.index_in(pa.concat_arrays(parts), value_set=different)
        of_each = np.searchsorted(np.concatenate(owners), np.arange(len(written) + 1))
        return pa.concat_arrays(words), _Parts(different, _lists(of_each, numbers))

    def _chunks(self, written: list[str]) -> tuple[list[str], list[tuple[Numbers, Any]]]:
        """Return the words of different chunks, and parts, each with the number of a chunk that has it, in order."""
        words = list(map(self._known.get, written))
        unknown = [number for number, known in enumerate(words) if known is None]
        texts = [written[number] for number in unknown]
        held = [(np.array(owners, np.int64), _strings(parts)) for owners, parts in self._parts(texts)]
        have = {owner for owners, _ in held for owner in owners.tolist()}
        new = self._worded(texts)
        for number, worded in zip(unknown, new, strict=True):
            words[number] = worded
        self._remember(
            (text, worded) for at, (text, worded) in enumerate(zip(texts, new, strict=True)) if at not in have
        )
        numbers = np.array(unknown, np.int64)
        return cast("list[str]", words), [(numbers[owners], parts) for owners, parts in held]

    def _parts(self, texts: list[str]) -> Iterator[tuple[list[int], list[str]]]:
        """Yield the parts of texts, each with the number of a text that has it, in order; of a large one, some each."""
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
        short = (chunk for chunk in chunks if len(chunk[0]) <= INDEX_CHUNK_KEPT_MAX_CHARS)
        new = dict(islice(short, INDEX_CHUNKS_KEPT))
        if len(self._known) + len(new) > INDEX_CHUNKS_KEPT:
            self._known.clear()
        self._known.update(new)

    def _worded(self, texts: Sequence[str]) -> list[str]:
        """Return the words of each text as the index has them, with gaps where one is too long."""
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
    """Yield where each few texts of these sizes begin and end: not too many, nor of too many bytes, or one."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(ends):
        most = (ends[first - 1] if first else 0) + INDEX_WORDED_AT_ONCE_BYTES
        last = min(int(np.searchsorted(ends, most, side="right")), first + INDEX_CHUNKS_KEPT)
        yield first, max(last, first + 1)
        first = max(last, first + 1)


def _together(held: Any, codes: npt.NDArray[Any], firsts: npt.NDArray[Any]) -> Any:
    """Return the numbers of all that each list has in it, once each: list n is `codes[firsts[n] : firsts[n + 1]]`."""
    lengths = held.value_lengths().to_numpy()
    places = np.flatnonzero(lengths[codes])
    having = codes[places]
    lists = (np.searchsorted(firsts, places, side="right") - 1).repeat(lengths[having])
    numbers = held.take(pa.array(having)).flatten().to_numpy()
    many = int(numbers.max(initial=0)) + 1
    both = np.unique(lists * many + numbers)
    return _lists(np.searchsorted(both, np.arange(len(firsts)) * many), pa.array(both % many))


def _sizes(texts: Any) -> npt.NDArray[Any]:
    if pa.types.is_dictionary(texts.type):
        return cast("npt.NDArray[Any]", _sizes(texts.dictionary)[texts.indices.to_numpy()])
    return cast("npt.NDArray[Any]", pc.binary_length(texts).to_numpy())


def _lists(firsts: Numbers, values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(firsts, pa.int32()), values)


def _ordered(parts: Sequence[Any]) -> Any:
    """Return the different parts of some arrays, in order."""
    different: Any = pc.unique(pa.concat_arrays(parts))
    return different.take(pc.sort_indices(different))


def _strings(texts: Sequence[str] | Sequence[bytes]) -> Any:
    return pa.array(texts, pa.string())
