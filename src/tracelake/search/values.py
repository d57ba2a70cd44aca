"""Terms of attributes: what stands in the fields `attribute` and `number`, for documents and for queries.

An attribute is one term of path and value, so that a path may have any characters, and one look into the dictionary
answers. Numbers have a second term of sixteen hex digits each for the path and for the value, whose order is that
of the numbers: a range of terms is a range of numbers. tantivy's own fields of JSON are not used: a range over one
with numbers of two kinds ends the process of tantivy 0.27, and one whose path has a dot finds nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from tracelake.limits import INDEX_PATHS_KEPT, INDEX_VALUE_MAX_CHARS

SEPARATOR: Final = "\0"
"""Between path and value of a term."""
_NUMERIC: Final = frozenset("idID")
"""Letters of attributes whose value is a number (see `otlp.values`)."""


def path_term(path: str) -> str:
    """Return the path of an attribute as it stands in terms: of a long one the beginning and a checksum of all."""
    path = path.replace(SEPARATOR, "\ufffd")
    if len(path) <= INDEX_VALUE_MAX_CHARS:
        return path
    return f"{path[:INDEX_VALUE_MAX_CHARS]}\ufffd{_digits_of(path)}"


def term_of(path: str, value: str) -> str:
    """Return the term of an attribute, its path as `path_term` gives it."""
    return f"{path}{SEPARATOR}{value}"


def number_terms(paths: Sequence[str], values: Sequence[float]) -> list[str]:
    """Return the terms of attributes that are numbers; NaN is none, and is given to nobody."""
    bits = (np.asarray(values, np.float64) + 0.0).view(np.uint64)  # + 0.0: there is one zero
    sign = np.uint64(1 << 63)
    ordered = np.where(bits & sign, ~bits, bits | sign).astype(">u8").tobytes().hex()
    return [_digits_of(path) + ordered[16 * at : 16 * at + 16] for at, path in enumerate(paths)]


@functools.lru_cache(INDEX_PATHS_KEPT)
def _digits_of(path: str) -> str:
    return hashlib.blake2b(path.lower().encode(errors="replace"), digest_size=8).hexdigest()


def is_number(letter: str) -> bool:
    """Whether the type letter of an attribute says that it is a number."""
    return letter in _NUMERIC
