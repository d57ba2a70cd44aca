"""Mutants that `tests/server/test_mlflow_search.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_mlflow_search
from tracelake._errors import DamageError
from tracelake.server import mlflow


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "the others are answered",
            mlflow._traces,
            rewrite("try: ...\nexcept (_, _1) as a: ...", "try: ...\nexcept _1 as a: ..."),
        ),
        Mutation(
            "also beside large ones",
            mlflow._traces,
            rewrite(
                "try: ...\nexcept _ as a: ...",
                "try: ...\nexcept damageerror as a: ...",
                damageerror=DamageError,
            ),
        ),
        Mutation("it is there", mlflow._traces, rewrite("_\ncontinue", "pass\ncontinue")),
        Mutation(
            "it says why",
            mlflow._without_spans,
            rewrite(
                "_ = _1\nreturn _",
                "info, = _1\nreturn {'trace_info': {**info, 'tags': {**info['tags'], 'a': 'b'}}, 'spans': []}",
            ),
        ),
        Mutation(
            "large is no damage",
            mlflow._without_spans,
            rewrite("(_1, _) if _2(_3, _1) else (_4, _5)", "(_1, _5) if _2(_3, _1) else (_4, _5)"),
        ),
        Mutation(
            "its tags are there",
            mlflow._without_spans,
            rewrite("{**_1, _2: {**_, _3: _4}}", "{**_1, _2: {_3: _4}}"),
        ),
    ],
    ids=rule_of,
)
def test_a_damaged_trace_takes_no_other_of_a_batch_along(broken: Mutation, tmp_path: Path) -> None:
    """The check fails for each broken rule."""
    assert_caught(
        broken, lambda: test_mlflow_search.test_a_damaged_trace_takes_no_other_of_a_batch_along(tmp_path)
    )
