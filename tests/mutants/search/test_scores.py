"""Mutants that `tests/search/test_scores.py` notices."""

from __future__ import annotations

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.search import test_scores
from tests.search.test_scores import many
from tracelake.search.documents import ranked_as_far_as
from tracelake.search.searcher import Searcher


def test_of_equal_scores_those_at_the_end_of_a_list_do_not_count(many: Searcher) -> None:
    """Many spans with one phrase score alike; pages cut anywhere would lack some."""
    broken = Mutation("lists count as far as scores differ", ranked_as_far_as, rewrite("_ or _", "True"))
    assert_caught(broken, lambda: test_scores.check_pages(many, '"the user"', "score"))
