"""Terms of attributes: what stands in the fields `attribute` and `number`, for documents and for queries.

An attribute is one term of path and value, so that a path may have any characters, and one look into the dictionary
answers. Numbers have a second term of sixteen hex digits each for the path and for the value, whose order is that
of the numbers: a range of terms is a range of numbers. tantivy's own fields of JSON are not used: a range over one
with numbers of two kinds ends the process of tantivy 0.27, and one whose path has a dot finds nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np

from tracelake.limits import INDEX_ARRAY_MAX_ELEMENTS, INDEX_PATHS_KEPT, INDEX_VALUE_MAX_CHARS

Element: TypeAlias = str | bool | int | float
SEPARATOR: Final = "\0"
"""Between path and value of a term."""
JOINT: Final = " "
"""Between the terms of a row, which tantivy gets as one text."""
REPLACEMENT: Final = "\x1a"
"""What stands in terms for characters that mean something there."""
_SPACES: Final = " \t\n\r\f"
_FOR_SPACES: Final = "\1\2\3\4\5"
_IN_TERMS: Final = str.maketrans(_FOR_SPACES + _SPACES, len(_FOR_SPACES) * REPLACEMENT + _FOR_SPACES)
_IN_VALUES: Final = str.maketrans(_FOR_SPACES, _SPACES)
BYTES_IN_TERMS: Final = bytes(ord(chr(byte).translate(_IN_TERMS)) for byte in range(256))
"""What each byte of a value is in terms: white space is another character there, for tantivy splits terms at it."""
NUMERIC: Final = re.compile("[idID]")
"""Letters of attributes whose value is a number (see `otlp.values`)."""


def path_term(path: str) -> str:
    """Return the path of an attribute as it stands in terms: of a long one the beginning and a checksum of all."""
    path = path.replace(SEPARATOR, REPLACEMENT).translate(_IN_TERMS)
    if len(path) <= INDEX_VALUE_MAX_CHARS:
        return path
    return f"{path[:INDEX_VALUE_MAX_CHARS]}{REPLACEMENT}{_digits_of(path)}"


def term_of(path: str, value: str) -> str:
    """Return the term of an attribute, its path as `path_term` gives it."""
    return f"{path}{SEPARATOR}{value.translate(_IN_TERMS)}"


def elements_of(text: str) -> list[Element]:
    """Return the plain elements of an array that is written as JSON, the first ones; none for what is no array."""
    if not text.startswith("["):
        return []
    try:
        array = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return []
    plain = [element for element in array if isinstance(element, str | bool | int | float)]
    short = [each for each in plain if not isinstance(each, str) or len(each) <= INDEX_VALUE_MAX_CHARS]
    return short[:INDEX_ARRAY_MAX_ELEMENTS]


def element_text(element: Element) -> str:
    """Return an element of an array as a query names it."""
    return element if isinstance(element, str) else json.dumps(element)


def element_number(element: Element) -> float | None:
    """Return the number that an element is; None for a text or boolean."""
    if isinstance(element, str | bool):
        return None
    try:
        number = float(element)
    except OverflowError:
        return None
    return None if math.isnan(number) else number


def as_written(term: str) -> str:
    """Return a path or value of a term as a person writes it."""
    return term.translate(_IN_VALUES)


def number_terms(paths: Sequence[str], values: Sequence[float]) -> list[str]:
    """Return the terms of attributes that are numbers; NaN is none, and is given to nobody."""
    bits = (np.asarray(values, np.float64) + 0.0).view(np.uint64)  # + 0.0: there is one zero
    sign = np.uint64(1 << 63)
    ordered = np.where(bits & sign, ~bits, bits | sign).astype(">u8").tobytes().hex()
    return [_digits_of(path) + ordered[16 * at : 16 * at + 16] for at, path in enumerate(paths)]


@functools.lru_cache(INDEX_PATHS_KEPT)
def _digits_of(path: str) -> str:
    return hashlib.blake2b(path.lower().encode(errors="replace"), digest_size=8).hexdigest()
