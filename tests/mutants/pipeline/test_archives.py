"""Mutants that `tests/pipeline/test_archives.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_archives
from tracelake.otlp import conventions


@pytest.mark.parametrize(
    "broken",
    [Mutation("the mark is quoted", conventions._is_json, rewrite("_1[_2]._(_)", "_1[_2] != ''"))],
    ids=rule_of,
)
def test_quotes_are_read_only_where_mlflow_wrote_them(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_archives.test_quotes_are_read_only_where_mlflow_wrote_them)
