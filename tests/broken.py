"""One rule broken: a few words in the source of a function are others for a while, wherever it is imported."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import pytest


@dataclass(frozen=True)
class Broken:
    """A rule, the words that keep it, and others that break it."""

    rule: str
    function: Callable[..., Any]
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Break the rule for a while."""
        function = inspect.unwrap(self.function)
        assert isinstance(function, FunctionType)
        code = function.__code__
        function.__code__ = self._altered(function)
        try:
            yield
        finally:
            function.__code__ = code

    def _altered(self, function: FunctionType) -> CodeType:
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.old) == 1, f"{self.rule}: {function.__qualname__} has {self.old!r} not once"
        lines = source.replace(self.old, self.new).splitlines(keepends=True)
        first = next(number for number, line in enumerate(lines) if line.startswith(("def ", "async def ")))
        made: dict[str, Any] = {}
        future = compile("from __future__ import annotations", "", "exec").co_flags
        exec(  # of our own words
            compile("".join(lines[first:]), inspect.getfile(function), "exec", future, dont_inherit=True),
            function.__globals__,
            made,
        )
        code = made[function.__name__].__code__
        assert isinstance(code, CodeType)
        return code


def assert_caught(broken: Broken, check: Callable[[], object]) -> None:
    """Check that a test fails while the rule is broken; that it passes else is for the test itself to show."""
    with broken.applied():
        try:
            check()
        except NameError:
            raise
        except (Exception, pytest.fail.Exception):  # noqa: BLE001  whatever a failing test ends with
            return
    raise AssertionError(f"nobody noticed that this rule was broken: {broken.rule}")
