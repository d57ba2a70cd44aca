"""Mutants that `tests/search/test_embedding.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_embedding
from tracelake.search.protocol import choose
from tracelake.search.vector_index import vector_in
from tracelake.search.vectors import load


def test_a_module_that_ends_the_process_is_caught(tmp_path: Path) -> None:
    """Every exception is caught except a keyboard interrupt."""
    broken = Mutation("whatever it raises", load, rewrite("BaseException", "Exception"))
    with broken.applied(), pytest.raises(SystemExit):
        test_embedding.check_import(tmp_path, "import sys\nsys.exit('no model')")


def test_a_vector_that_is_nested_too_deep_is_caught() -> None:
    """Otherwise, it would keep all spans of its request from the tables."""
    broken = Mutation("never an error", vector_in, rewrite("_1(_2, _3, _4, _5, _)", "_1(_2, _3, _4, _5)"))
    assert_caught(broken, lambda: test_embedding.test_vectors_in_attributes("[" * 100000, None))


@pytest.mark.parametrize(
    "broken",
    [Mutation("of twins that with the most vectors is taken", choose, rewrite("-_(...)", "0"))],
    ids=rule_of,
)
def test_f7_of_twins_that_with_vectors_is_taken(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_embedding.test_f7_of_twins_that_with_vectors_is_taken)
