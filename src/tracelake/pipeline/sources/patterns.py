"""Patterns of keys, as the shell and `glob` have them for paths."""

from __future__ import annotations

import fnmatch
import glob
import re
from typing import Final

_ANY_DEPTH: Final = "**"
_MAGIC: Final = re.compile(r"[*?\[]")


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
        at = self._with_skipped({0})
        for name in key.split("/"):
            after = set()
            for number in at:
                step = self._steps[number] if number < len(self._steps) else _NOTHING
                if step is None:
                    after |= set() if name.startswith(".") else {number}
                elif step.matches(name):
                    after.add(number + 1)
            at = self._with_skipped(after)
        return len(self._steps) in at

    def _with_skipped(self, at: set[int]) -> set[int]:
        """Return places in the pattern, and those behind each `**` there: it may stand for no name."""
        reached = set(at)
        for number in range(len(self._steps)):
            if number in reached and self._steps[number] is None:
                reached.add(number + 1)
        return reached


class _Name:
    """The pattern of one name."""

    def __init__(self, pattern: str) -> None:
        self._takes_hidden = pattern.startswith(".")
        self._match = re.compile(fnmatch.translate(pattern)).match

    def matches(self, name: str) -> bool:
        return (self._takes_hidden or not name.startswith(".")) and self._match(name) is not None


_NOTHING: Final = _Name("")
"""What comes behind the end of a pattern: no name is empty."""
