"""Mutants: break one rule in the code of a function temporarily, and check that a test notices.

A mutant names a fragment of the function and its replacement. The fragment is matched token by token, so that
formatting, comments, line breaks and brackets around long lines do not matter.
"""

from __future__ import annotations

import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final

import pytest

_LAYOUT: Final = {
    *(tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.COMMENT, tokenize.ENCODING, tokenize.ENDMARKER),
}


@dataclass(frozen=True)
class Broken:
    """A rule, the fragment of a function that keeps it, and a replacement that breaks it."""

    rule: str
    function: Callable[..., Any]
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the rule temporarily."""
        function = inspect.unwrap(self.function)
        assert isinstance(function, FunctionType)
        code = function.__code__
        function.__code__ = self.altered(function)
        try:
            yield
        finally:
            function.__code__ = code

    def altered(self, function: FunctionType) -> CodeType:
        """Compile the function with the replacement. Raises AssertionError unless the fragment occurs once."""
        source = textwrap.dedent(inspect.getsource(function))
        lines = source.splitlines(keepends=True)
        first = next(number for number, line in enumerate(lines) if line.startswith(("def ", "async def ")))
        source = "".join(lines[first:])  # without decorators
        if source.count(self.old) == 1:  # part of a string, or code that is written unchanged
            text = source.replace(self.old, self.new)
        else:
            start, end = self._find(source)
            text = source[:start] + self._replacement(source, start) + source[end:]
        made: dict[str, Any] = {}
        future = compile("from __future__ import annotations", "", "exec").co_flags
        exec(  # of our code
            compile(text, inspect.getfile(function), "exec", future, dont_inherit=True),
            function.__globals__,
            made,
        )
        code = made[function.__name__].__code__
        assert isinstance(code, CodeType)
        return code

    def _find(self, source: str) -> tuple[int, int]:
        """Return where the fragment begins and ends in the source."""
        for with_brackets in (True, False):
            tokens, fragment = _tokens(source, with_brackets), _tokens(self.old, with_brackets)
            texts = [token for token, _, _ in fragment]
            places = [
                (tokens[at][1], tokens[at + len(texts) - 1][2])
                for at in range(len(tokens) - len(texts) + 1)
                if [token for token, _, _ in tokens[at : at + len(texts)]] == texts
            ]
            if places:
                break
        assert len(places) == 1, (
            f"{self.rule}: {self.function.__qualname__} has {self.old!r} {len(places)} times"
        )
        return _balanced(source, *places[0]) if not with_brackets else places[0]

    def _replacement(self, source: str, start: int) -> str:
        """Return the replacement, its further lines indented like the line of the fragment."""
        line = source[source.rfind("\n", 0, start) + 1 : start]
        indent = line[: len(line) - len(line.lstrip())]
        return textwrap.dedent(self.new).strip().replace("\n", f"\n{indent}")


def _balanced(source: str, start: int, end: int) -> tuple[int, int]:
    """Extend a position to brackets that only one side has, because a formatter adds them around long lines."""
    while source[start:end].count("(") > source[start:end].count(")"):
        end = source.index(")", end) + 1
    while source[start:end].count(")") > source[start:end].count("("):
        start = source.rindex("(", 0, start)
    return start, end


def _tokens(code: str, with_brackets: bool) -> list[tuple[str, int, int]]:
    """Return the tokens of code with their positions, without layout and trailing commas."""
    offsets = [0]
    for line in code.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    tokens: list[tuple[str, int, int]] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            text = token.string
            if token.type in _LAYOUT or (text in {"(", ")"} and not with_brackets):
                continue
            if text in {")", "]", "}"} and tokens and tokens[-1][0] == ",":
                tokens.pop()
            start, end = (offsets[line - 1] + column for line, column in (token.start, token.end))
            tokens.append((text, start, end))
    except (tokenize.TokenError, IndentationError):
        pass  # a fragment may end inside brackets, or dedent below its beginning
    return tokens


def assert_caught(broken: Broken, check: Callable[[], object]) -> None:
    """Check that a test fails while the rule is broken; the test itself must show that it passes otherwise."""
    with broken.applied():
        try:
            check()
        except NameError:
            raise
        except (Exception, pytest.fail.Exception):  # noqa: BLE001  any way in which a test fails
            return
    raise AssertionError(f"no test noticed that this rule was broken: {broken.rule}")
