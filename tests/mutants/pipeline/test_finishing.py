"""Mutants that `tests/pipeline/test_finishing.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_finishing
from tracelake.pipeline.replay import Replayer


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "rows that a peer appended stand for what cannot be read",
            Replayer.feed,
            rewrite("_ and _", "False"),
        )
    ],
    ids=rule_of,
)
def test_what_a_peer_appended_stands_for_what_cannot_be_read(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_finishing.test_what_a_peer_appended_stands_for_what_cannot_be_read)
