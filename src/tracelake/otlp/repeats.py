"""Attribute keys that an owner has twice, against OTLP's rule: DuckDB and Spark refuse such maps.

The second `retry` is stored as `retry#2`, and its type letter says so: it is a capital, or `+` for `-`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MARKED: Final = {letter: letter.upper() for letter in "sidbxjrpn"} | {"-": "+"}
_PLAIN: Final = {marked: letter for letter, marked in _MARKED.items()}


def mark_repeats(keys: list[str], counts: Sequence[int], letters: Sequence[str] | None) -> list[str] | None:
    """Rename repeated keys in place, owner by owner; return the letters anew, or None where no key repeats.

    `letters` has one for each key, or is None where all values are strings.
    """
    changed: list[str] | None = None
    start = 0
    for count in counts:
        end = start + count
        if count > 1 and len(set(keys[start:end])) != count:
            changed = changed or list(letters or "s" * len(keys))
            _mark_owner(keys, changed, start, end)
        start = end
    return changed


def _mark_owner(keys: list[str], letters: list[str], start: int, end: int) -> None:
    taken = set(keys[start:end])
    seen: set[str] = set()
    numbers: dict[str, int] = {}
    for at in range(start, end):
        key = keys[at]
        if key not in seen:
            seen.add(key)
            continue
        number = numbers.get(key, 1) + 1
        while f"{key}#{number}" in taken:
            number += 1
        numbers[key] = number
        keys[at] = f"{key}#{number}"
        taken.add(keys[at])
        letters[at] = _MARKED[letters[at]]


def unmark(key: str, letter: str) -> tuple[str, str]:
    """Return key and letter as they were."""
    if letter in _PLAIN:
        return key[: key.rindex("#")], _PLAIN[letter]
    return key, letter
