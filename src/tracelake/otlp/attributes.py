"""Columns of attributes: keys and texts in two flat lists, and how many of them each owner has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from tracelake.limits import OTLP_TEXT_MAX_BYTES
from tracelake.otlp.messages import Message
from tracelake.otlp.repeats import mark_repeats
from tracelake.otlp.values import Exceptions, RefusedError, to_text, types_tail

if TYPE_CHECKING:
    Array: TypeAlias = pa.Array[Any]
else:
    Array = pa.Array  # generic in the stubs only


class Attributes(NamedTuple):
    """The attributes of several owners (spans, events, …), one owner after the other."""

    keys: list[str]
    texts: list[str]
    letters: str | None
    """One letter for each attribute, see values.py; None where all are strings."""
    counts: list[int]
    types: list[str | None]
    """For each owner its letters, None where all are strings. JSON follows if a letter is `r`: see `types_tail`."""


def read_attributes(owners: Sequence[Sequence[Message]]) -> Attributes:
    """Return the attributes of all owners as text. Raises RefusedError for a value that cannot be taken."""
    flat = list(chain.from_iterable(owners))
    counts = list(map(len, owners))
    keys = [entry.key for entry in flat]
    texts: list[str] = [entry.value.string_value for entry in flat]
    if all(texts):
        marked = mark_repeats(keys, counts, None)
        if marked is None:
            return Attributes(keys, texts, None, counts, [None] * len(counts))
        return _with_letters(keys, texts, marked, counts, {})
    letters = ["s"] * len(flat)
    exceptions: dict[int, Exceptions] = {}
    for i, text in enumerate(texts):
        if not text:  # not a string, or an empty one
            try:
                texts[i], letters[i], exact = to_text(flat[i])
            except RefusedError as error:
                raise RefusedError(f"attribute {keys[i]!r:.60}: {error}") from None
            if exact is not None:
                exceptions[i] = exact
    return _with_letters(keys, texts, mark_repeats(keys, counts, letters) or letters, counts, exceptions)


def _with_letters(
    keys: list[str],
    texts: list[str],
    letters: list[str],
    counts: list[int],
    exceptions: dict[int, Exceptions],
) -> Attributes:
    joined = "".join(letters)
    types: list[str | None] = []
    for count, end in zip(counts, accumulate(counts), strict=True):
        piece = joined[end - count : end]
        if exceptions:
            piece += types_tail([exceptions[i] for i in range(end - count, end) if i in exceptions])
        types.append(piece if piece.strip("s") else None)
    return Attributes(keys, texts, joined, counts, types)


def check_texts(texts: Iterable[str], field: str) -> None:
    """Raise RefusedError for a text longer than OTLP_TEXT_MAX_BYTES."""
    for text in texts:
        # The length in characters is free, and a character has at most 4 bytes.
        if 4 * len(text) > OTLP_TEXT_MAX_BYTES and len(text.encode()) > OTLP_TEXT_MAX_BYTES:
            raise RefusedError(f"{field}: {len(text.encode())} bytes, must be at most {OTLP_TEXT_MAX_BYTES}")


class AttributesColumn:
    """Collects attributes of more and more owners."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.texts: list[str] = []
        self.counts: list[int] = []
        self.types: list[str | None] = []

    def extend(self, more: Attributes) -> None:
        """Add these owners at the end."""
        self.keys += more.keys
        self.texts += more.texts
        self.counts += more.counts
        self.types += more.types

    def maps(self) -> Array:
        """Return one map for each owner."""
        keys, texts = pa.array(self.keys, pa.string()), pa.array(self.texts, pa.string())
        return pa.MapArray.from_arrays(_offsets(self.counts), keys, texts)

    def letters(self) -> Array:
        """Return the types of each owner's attributes."""
        return pa.array(self.types, pa.string())


def list_array(counts: Iterable[int], items: Array) -> Array:
    """Return lists that have so many of the items each."""
    return pa.ListArray.from_arrays(_offsets(counts), items)


def _offsets(counts: Iterable[int]) -> Any:
    return pa.array(accumulate(counts, initial=0), pa.int32())
