"""Mutants that `tests/otlp/test_hostile_payloads.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.otlp import test_hostile_payloads
from tracelake.otlp.parse import has_spans_beyond


@pytest.mark.parametrize(
    "broken", [Mutation("no message is smaller", has_spans_beyond, rewrite("_ * _1", "3 * _1"))], ids=rule_of
)
def test_empty_spans_are_counted(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_hostile_payloads.test_empty_spans_are_counted)
