"""Mutants that `tests/access/test_audit.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.access import test_audit
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tracelake.access import audit
from tracelake.access.audit import _TIME_STOP, EventCounter, _is_written_at, expired


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("a workspace sees its own", audit.Audit._is_shown, rewrite("_ and _1", "True and _1")),
            test_audit.check_lists,
        ),
        (
            Mutation(
                "pages follow one another",
                audit.Audit._entries,
                rewrite("if _1: ...\n_ = _", "if _1: ...\nreturn"),
            ),
            test_audit.check_lists,
        ),
        (
            Mutation(
                "workspaces have bounds of their own", audit._short, rewrite("if _: ...", "if True: ...")
            ),
            test_audit.check_pushes_out,
        ),
        (
            Mutation(
                "a workspace's name makes no place",
                audit._short,
                rewrite("if _1 == _2: ...\nreturn _[_]", "if _1 == _2: ...\nreturn _1"),
            ),
            test_audit.check_pushes_out,
        ),
        (
            Mutation(
                "what is removed at once is bounded", audit.Audit.trim, rewrite("a(b, c)", "a(b, 10 ** 9)")
            ),
            test_audit.check_trims,
        ),
        (
            Mutation(
                "what was not written is made up for",
                EventCounter.unwritten,
                rewrite("_1 > _", "not is_written_at(_1)", is_written_at=_is_written_at),
            ),
            test_audit.check_made_up_for,
        ),
        (
            Mutation(
                "also once its minute is over",
                EventCounter._begin_minute,
                rewrite("{_1: _2 for _2 in a}", "{_1: _2 for _2 in ()}"),
            ),
            test_audit.check_made_up_for,
        ),
        (
            Mutation(
                "what is kept of minutes is bounded", EventCounter._begin_minute, rewrite("_ + 1", "None")
            ),
            test_audit.check_made_up_for,
        ),
        (Mutation("what is old goes", expired, rewrite("_ >= _", "False")), test_audit.check_trims),
        (
            Mutation("what is too much goes", expired, rewrite("_ or _1", "False or _1")),
            test_audit.check_trims,
        ),
        (
            Mutation("a jump is not believed", expired, rewrite("_1(_2, _)", "_1(_2, 10 ** 30)")),
            test_audit.check_jumps,
        ),
        (Mutation("what is ahead is counted apart", expired, drop("continue")), test_audit.check_jumps),
        (
            Mutation("what is ahead is bounded", expired, rewrite("if _ > _._: ...", "if False: ...")),
            test_audit.check_jumps,
        ),
        (
            Mutation(
                "what has another name stays",
                audit._time_in,
                rewrite(
                    "_1 = _2\nreturn _",
                    "_1 = _2\nreturn time_stop - int(_1) if _1 else None",
                    time_stop=_TIME_STOP,
                ),
            ),
            test_audit.check_reads_names,
        ),
        (
            Mutation(
                "a number is written where it doubled",
                audit._is_written_at,
                rewrite("return _", "return True"),
            ),
            test_audit.check_counts,
        ),
        (
            Mutation("different things are bounded", EventCounter.count, rewrite("_1 and _", "_1 and False")),
            test_audit.check_counts,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """Each broken rule is caught."""
    assert_caught(broken, check)
