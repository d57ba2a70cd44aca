"""Parts of identifiers: `refundPolicy` is found as a whole, for it is one word, and as `refund`, `policy` and both.

Other identifiers need nothing: `_`, `-`, `.`, `/` and `:` are between words anyway.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tracelake.limits import IDENTIFIER_MAX_BYTES, INDEX_IDENTIFIERS_KEPT, INDEX_VALUE_MAX_CHARS

_LETTERS: Final = r"[0-9A-Za-z\u{80}-\u{10FFFF}]*"
BORDER: Final = "[a-z0-9][A-Z]|[A-Z][A-Z][a-z]"
"""The letters on both sides of where a part ends, as an expression for Python and Polars."""
_IDENTIFIER: Final = f"{_LETTERS}(?:{BORDER}){_LETTERS}"
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^A-Z]+")


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _parts_of(identifier: str) -> str:
    """Return an identifier with spaces between its parts: `HTTPServer` is `HTTP Server`."""
    return " ".join(_PART.findall(identifier))


@lru_cache(INDEX_IDENTIFIERS_KEPT)
def _parts_of_short(name: str) -> tuple[str, ...]:
    return identifiers([name]).get(0, ())


def parts_of_name(name: str) -> tuple[str, ...]:
    """Return the parts of the identifiers of a name; many spans have the same, and short ones are remembered."""
    return _parts_of_short(name) if len(name) <= INDEX_VALUE_MAX_CHARS else identifiers([name]).get(0, ())


def identifiers(texts: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Return the parts of the identifiers with capitals inside, once each, by the number of their text."""
    # Polars looks through a text in a tenth of the time that Python's own expressions take, or numpy.
    import polars as pl  # noqa: PLC0415  a sixth of the start of a process that has no use for it

    words_of_texts = pl.Series(texts, dtype=pl.String).str.extract_all(_IDENTIFIER)
    held = (words_of_texts.list.len() > 0).arg_true()
    return {
        number: tuple(
            sorted({_parts_of(word) for word in words if len(word.encode()) <= IDENTIFIER_MAX_BYTES})
        )
        for number, words in zip(held.to_list(), words_of_texts.gather(held).to_list(), strict=True)
    }
