"""Mutants that `tests/pipeline/test_walking.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_walking
from tracelake.pipeline.sources.files import _Glob


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Mutation("once each", _Glob._enter, rewrite("_ in _", "False")), test_walking.links_without_end),
        (Mutation("links last", _Glob._visit, rewrite("(_ if _ else _1).a", "_1.a")), test_walking.bounded),
        (
            Mutation("so many links", _Glob._follow, rewrite("if _: ...", "if False: ...")),
            test_walking.bounded,
        ),
        (
            Mutation("a link hides nothing", _Glob._is, rewrite("OSError", "RuntimeError")),
            test_walking.links_that_lead_nowhere,
        ),
        (Mutation("so many entries", _Glob._listed, rewrite("_._ > _", "False")), test_walking.bounded),
    ],
    ids=rule_of,
)
def test_a_broken_rule_is_noticed(tmp_path: Path, broken: Mutation, check: Callable[[Path], None]) -> None:
    """A test above fails for each broken bound."""
    assert_caught(broken, lambda: check(tmp_path))
