"""Mutants that `tests/server/test_search_by_meaning.py` notices."""

from __future__ import annotations

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.server import test_search_by_meaning
from tests.server.client import Client
from tests.server.test_search_by_meaning import client, plain_client, real_lake
from tracelake import Lake, limits
from tracelake.server import traces
from tracelake.tables.table import ReadGate


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "a turn ends",
            traces._turn,
            rewrite(
                """
                                            try: ...
                                            finally:
                                                _
                                            """,
                """
                                            try: ...
                                            finally:
                                                pass
                                            """,
            ),
        ),
        Mutation("a vector needs none", traces._turn, rewrite("_1 or _", "_1")),
        Mutation("words need none", traces._turn, rewrite("(None, _)", "()")),
    ],
    ids=rule_of,
)
def test_broken_turns_are_caught(
    client: Client, real_lake: Lake, monkeypatch: pytest.MonkeyPatch, broken: Mutation
) -> None:
    """The checks fail if any rule of turns is removed."""
    monkeypatch.setattr(
        traces, "_BY_MEANING", ReadGate(limits.SEMANTIC_SEARCHES_AT_ONCE_MAX, "search again later")
    )
    assert_caught(broken, lambda: test_search_by_meaning.check_slow(client, real_lake))
