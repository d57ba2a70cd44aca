"""Patterns of keys, as the shell and `glob` have them for paths."""

from __future__ import annotations

import fnmatch
import glob
import re
from typing import Final, TypeAlias

_ANY_DEPTH: Final = "**"
_MAGIC: Final = re.compile(r"[*?\[]")
Places: TypeAlias = frozenset[int]
"""How many names of a pattern may be matched: several, since `**` stands for any number."""


def is_pattern(text: str) -> bool:
    """Whether a text may name more than one thing."""
    return glob.has_magic(text)


class KeyPattern:
    """A pattern of keys: `*`, `?` and `[…]` stay between two slashes, `**` for a whole name is any number of names.

    As with files, only a pattern that begins with a dot matches a name that does.
    """

    def __init__(self, pattern: str) -> None:
        self.prefix = _MAGIC.split(pattern, maxsplit=1)[0]
        """What all keys begin with that it matches."""
        names = pattern.split("/")
        if names[-1] == _ANY_DEPTH:
            names.append("*")  # all that is below, but not what has the name itself
        self._steps = [None if name == _ANY_DEPTH else _Name(name) for name in names]

    def matches(self, key: str) -> bool:
        """Whether it matches a whole key."""
        at = self.begin()
        for name in key.split("/"):
            at = self.after(at, name)
        return self.is_end(at)

    def begin(self) -> Places:
        """Return where in the pattern nothing of a key is matched yet."""
        return self._with_skipped({0})

    def after(self, at: Places, name: str) -> Places:
        """Return where in it one more name of a key leads; nowhere if it does not match."""
        reached = set()
        for number in at:
            step = self._steps[number] if number < len(self._steps) else _NOTHING
            if step is None:
                reached |= set() if name.startswith(".") else {number}
            elif step.matches(name):
                reached.add(number + 1)
        return self._with_skipped(reached)

    def is_end(self, at: Places) -> bool:
        """Whether all of it is matched."""
        return len(self._steps) in at

    def goes_on(self, at: Places) -> bool:
        """Whether a longer key may be matched."""
        return any(number < len(self._steps) for number in at)

    def names(self, at: Places) -> set[str] | None:
        """Return the only names that lead further; None where these are not known by the pattern alone."""
        steps = [self._steps[number] for number in at if number < len(self._steps)]
        plain = {step.plain for step in steps if step is not None and step.plain is not None}
        return plain if len(plain) == len(steps) else None

    def _with_skipped(self, at: set[int]) -> Places:
        """Return places in the pattern, and those behind each `**` there: it may stand for no name."""
        reached = set(at)
        for number in range(len(self._steps)):
            if number in reached and self._steps[number] is None:
                reached.add(number + 1)
        return frozenset(reached)


class _Name:
    """The pattern of one name."""

    def __init__(self, pattern: str) -> None:
        self.plain = None if is_pattern(pattern) else pattern
        """The name itself, where it is no pattern."""
        self._takes_hidden = pattern.startswith(".")
        self._match = re.compile(fnmatch.translate(pattern)).match

    def matches(self, name: str) -> bool:
        return (self._takes_hidden or not name.startswith(".")) and self._match(name) is not None


_NOTHING: Final = _Name("")
"""What comes behind the end of a pattern: no name is empty."""
