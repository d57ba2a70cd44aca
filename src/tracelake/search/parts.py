"""Parts of identifiers: `refundPolicy` is found as a whole, for it is one word, and as `refund`, `policy` and both.

Borders are looked for in the bytes of a whole column at once, so texts without such identifiers cost next to nothing.
Other identifiers need nothing: `_`, `-`, `.`, `/` and `:` are between words anyway.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import numpy as np

from tracelake.limits import IDENTIFIER_MAX_BYTES, INDEX_IDENTIFIERS_KEPT

_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def parts_of(identifier: bytes) -> str:
    """Return an identifier with spaces between its parts: `HTTPServer` is `HTTP Server`."""
    return " ".join(_PART.findall(identifier.decode(errors="replace")))


def identifiers(texts: Any) -> dict[int, set[str]]:
    """Return the parts of identifiers with capitals inside, by the number of the text of an Arrow column.

    Texts that are equal are looked at once.
    """
    encoded = texts.dictionary_encode()
    found = _identifiers(encoded.dictionary)
    if not found:
        return {}
    numbers = encoded.indices.fill_null(-1).to_numpy()
    rows = np.flatnonzero(np.isin(numbers, list(found)))
    return {row: found[number] for row, number in zip(rows.tolist(), numbers[rows].tolist(), strict=True)}


def _identifiers(texts: Any) -> dict[int, set[str]]:
    _, offsets_buffer, data = texts.buffers()
    if data is None or not len(texts):
        return {}
    width = np.int64 if str(texts.type).startswith("large") else np.int32
    offsets = np.frombuffer(offsets_buffer, width)[texts.offset : texts.offset + len(texts) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    held = np.frombuffer(data, np.uint8)[first:last]
    starts = offsets.astype(np.int64) - first
    borders = _borders(held, starts)
    if not len(borders):
        return {}
    texts_of = np.searchsorted(starts, borders, side="right") - 1
    inside = borders > starts[texts_of]  # a border between two texts is none
    borders, texts_of = borders[inside], texts_of[inside]
    outside = np.flatnonzero(~_in_words(held))
    begins = _beside(outside, borders, starts[texts_of] - 1, before=True) + 1
    ends = _beside(outside, borders, starts[texts_of + 1], before=False)
    # An identifier has several borders.
    begins, once = np.unique(begins, return_index=True)
    whole = held.tobytes()
    found: dict[int, set[str]] = {}
    for number, begin, end in zip(texts_of[once].tolist(), begins.tolist(), ends[once].tolist(), strict=True):
        if end - begin <= IDENTIFIER_MAX_BYTES:
            found.setdefault(number, set()).add(parts_of(whole[begin:end]))
    return found


def _borders(held: Any, starts: Any) -> Any:
    """Return where a capital follows a small letter or digit, or another capital before a small letter."""
    capitals = np.flatnonzero(held - np.uint8(65) < 26)
    capitals = capitals[capitals > 0]
    before, behind = held[capitals - 1], held[np.minimum(capitals + 1, len(held) - 1)]
    after_small = (before - np.uint8(97) < 26) | (before - np.uint8(48) < 10)
    in_capitals = (before - np.uint8(65) < 26) & (behind - np.uint8(97) < 26)
    in_capitals &= ~np.isin(capitals + 1, starts)  # the small letter is of the next text
    return capitals[after_small | in_capitals]


def _in_words(held: Any) -> Any:
    return ((held | 32) - np.uint8(97) < 26) | (held - np.uint8(48) < 10) | (held >= 128)


def _beside(outside: Any, borders: Any, limit: Any, *, before: bool) -> Any:
    """Return the nearest place outside of words before or behind each border, at most the limit."""
    at = np.searchsorted(outside, borders) - before
    known = (at >= 0) & (at < len(outside))
    near = np.where(
        known, outside[np.clip(at, 0, max(len(outside) - 1, 0))] if len(outside) else limit, limit
    )
    return np.maximum(near, limit) if before else np.minimum(near, limit)
