"""Mutants that `tests/server/test_large_reads.py` notices."""

from __future__ import annotations

from pathlib import Path
from threading import Semaphore

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_large_reads
from tracelake import limits
from tracelake.hot.tier import HotTier, HotTraces
from tracelake.server.app import _Answers
from tracelake.tables import table
from tracelake.tables.table import LargeReads, ReadGate


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("of tables", table.read_trace, rewrite("if _1: ...\n_", "if _1: ...")),
            test_large_reads.check_routes,
        ),
        (
            Mutation(
                "of few parts",
                HotTraces._read,
                rewrite("_1 is not None and _2 > _3", "_1 is not None and False and (_2 > _3)"),
            ),
            test_large_reads.check_routes,
        ),
        (
            Mutation("of many parts", HotTraces.rows, rewrite("_1 > _2", "False and _1 > _2")),
            test_large_reads.check_routes,
        ),
        (
            Mutation("of an archive", HotTier._here, rewrite("a > _._", "False")),
            test_large_reads.check_archived,
        ),
        (
            Mutation("small ones need no turn", table.read_trace, rewrite("min(_, _1)", "min(1, _1)")),
            test_large_reads.check_routes,
        ),
        (Mutation("it is made by then", _Answers.__call__, drop("_()")), test_large_reads.check_sending),
        (Mutation("it is given back", table.large_reads, drop("_()")), test_large_reads.check_too_large),
        (
            Mutation("one is made at a time", LargeReads.begin, drop("_", nth=3)),
            test_large_reads.check_routes,
        ),
        (Mutation("few wait to be sent", LargeReads.begin, drop("_", nth=2)), test_large_reads.check_routes),
        (
            Mutation("few wait", ReadGate.begin, rewrite("_1 >= _2", "False and _1 >= _2")),
            test_large_reads.check_turns,
        ),
        (
            Mutation("who waits no more does not count", ReadGate.begin, drop("_ -= 1")),
            test_large_reads.check_turns,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(
    broken: Mutation, check: test_large_reads.Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks fail if any rule is removed."""
    for turns, at_once in ((table._ANSWERS, limits.LARGE_TRACES_ANSWERED_MAX), (table._MAKING, 1)):
        monkeypatch.setattr(turns, "_free", Semaphore(at_once))
    assert_caught(broken, lambda: check(tmp_path))
