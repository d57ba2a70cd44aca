"""Mutants that `tests/faults/test_flip_tracking.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import test_flip_tracking
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.archive import verify
from tracelake.tracking.database import TrackingDatabase


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("packs are read whole", verify._check_repository, rewrite("a(b)", "False")),
        Mutation(
            "errors that quote damage", TrackingDatabase._failures, rewrite("UnicodeDecodeError", "KeyError")
        ),
    ],
    ids=rule_of,
)
def test_a_few_rounds(broken: Mutation, tmp_path: Path) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_flip_tracking.test_a_few_rounds(tmp_path))
