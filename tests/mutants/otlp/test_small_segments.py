"""Mutants that `tests/otlp/test_small_segments.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.otlp import test_small_segments
from tracelake.otlp import framing
from tracelake.otlp.framing import Reading

BROKEN = [
    Mutation("nothing lies behind", framing._small_plain, rewrite("while _1 < _2: ...", "if _1 < _2: ...")),
    Mutation("the last one is whole", framing._small_segment, rewrite("_1 is None or _ > _", "_1 is None")),
    Mutation("a kind is known", framing._small_segment, rewrite("_ is None or _1 > _2", "_1 > _2")),
    Mutation("it is a segment", framing._small_segment, rewrite("not _", "False")),
    Mutation("payloads are counted", Reading._read, drop("_ += _")),
    Mutation(
        "places are those of the bytes", framing._small_segment, rewrite("_1(_2(..., a))", "_1(_2(..., 0))")
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=rule_of)
def test_a_broken_rule_is_noticed(broken: Mutation, tmp_path: Path) -> None:
    """Each broken rule, which would read other payloads, is caught."""
    assert_caught(broken, lambda: test_small_segments.check(tmp_path))
