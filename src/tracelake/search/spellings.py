"""Words of a text that a query finds though they are written otherwise: alike, or as a part of an identifier."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from tracelake.limits import HIGHLIGHT_SPELLINGS_MAX_CHARS
from tracelake.search.parts import BORDER, parts_of_name

_BORDER: Final = re.compile(BORDER)
_OTHER_ENDING: Final = re.compile("(?:ie|le|[eily])$")
"""How an English stem may end where its words do not: `dying` is `die`, `hoping` is `hope`, `visibility` is `visibl`.

By the rules of the stemmer (snowballstem.org/algorithms/english): all that it puts in the place of another ending."""


def beginning(stem: str) -> str:
    """Return how each word begins that has this English stem."""
    return _OTHER_ENDING.sub("", stem)


def words_in(text: str, identifiers_only: bool, letter: str = r"[^\W_]") -> list[str]:
    """Return the different words at the beginning of a text, in order, or those with capitals inside."""
    beginning = text[:HIGHLIGHT_SPELLINGS_MAX_CHARS]
    if identifiers_only and _BORDER.search(beginning) is None:
        return []
    words = dict.fromkeys(re.findall(f"{letter}+", beginning))
    return [word for word in words if not identifiers_only or _BORDER.search(word)]


def has_part(identifier: str, size: int, holds: Callable[[str], bool]) -> bool:
    """Whether so many parts beside each other of `refundPolicy` are what is looked for."""
    return any(holds(parts) for parts in _runs(identifier, size))


def _runs(word: str, size: int) -> Iterator[str]:
    for identifier in parts_of_name(word):
        parts = identifier.split()
        for first in range(len(parts) - size + 1):
            yield " ".join(parts[first : first + size])


def is_alike(one: str, other: str, distance: int) -> bool:
    """Whether words differ by so many letters at most; two that changed places are one."""
    if abs(len(one) - len(other)) > distance:
        return False
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one):
        earlier, before, row = before, row, [at + 1]
        for place, there in enumerate(other):
            cost = min(before[place] + (letter != there), before[place + 1] + 1, row[place] + 1)
            if at and place and (letter, one[at - 1]) == (other[place - 1], there):
                cost = min(cost, earlier[place - 1] + 1)
            row.append(cost)
        # A later cell is at least as far as the nearest of the last row, or one more than that of the row before.
        if min(row) > distance and min(before) >= distance:
            return False
    return row[-1] <= distance
