"""Mutants that `tests/access/test_keys.py` notices."""

from __future__ import annotations

import pytest

from tests.access import test_keys
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.access import keys as protocol

RULES = [
    Mutation("the token is the key's", protocol.check_token, rewrite("not _1", "_1")),
    Mutation("a revoked key ends", protocol.key_status, rewrite("if _: ...", "if False: ...")),
    Mutation("a key ends at its time", protocol.key_status, rewrite("_1 <= _2", "_1 > _2")),
    Mutation("a role grants what it holds", protocol.check_need, rewrite("if _: ...", "if False: ...")),
]


@pytest.mark.parametrize("broken", RULES, ids=rule_of)
def test_broken_rules_are_caught(broken: Mutation) -> None:
    """Each broken rule of keys is caught."""
    assert_caught(broken, test_keys.check_refusals)
