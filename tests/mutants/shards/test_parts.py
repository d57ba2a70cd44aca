"""Mutants that `tests/shards/test_parts.py` notices."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.shards import test_parts
from tracelake.shards import parts
from tracelake.shards.parts import write_part


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("texts are short", parts._with_statistics, rewrite("_(_) or _1", "False or _1")),
        Mutation(
            "times have them",
            parts._with_statistics,
            rewrite(
                "not (_1(_2) or _3(_2))",
                "is_integer(_2) and (not (_1(_2) or _3(_2)))",
                is_integer=pa.types.is_integer,
            ),
        ),
        Mutation("the key has them", write_part, rewrite("{_1, _}", "{_1}")),
    ],
    ids=rule_of,
)
def test_a_footer_has_no_long_texts(broken: Mutation, tmp_path: Path) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_parts.test_a_footer_has_no_long_texts(tmp_path))
