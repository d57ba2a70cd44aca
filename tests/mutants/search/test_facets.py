"""Mutants that `tests/search/test_facets.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.search import test_facets
from tracelake.search.facets import _counted, _facet, _with_total


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("spans without a value count", _with_total, rewrite("{**_1, _: _}", "{**_1}")),
        Mutation("what has no value is none", _facet, rewrite("_ != _", "True")),
        Mutation(
            "in one service its own spans count",
            _counted,
            rewrite(
                """
                if _1:
                    ...
                else:
                    ...
                    _2 = _3[_4]
                """,
                """
                if _1:
                    ...
                else:
                    ...
                    _2 = _3[_4] + 1
                """,
            ),
        ),
    ],
    ids=rule_of,
)
def test_spans_without_a_value_count_in_the_total(broken: Mutation, tmp_path: Path) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_facets.test_spans_without_a_value_count_in_the_total(tmp_path))
