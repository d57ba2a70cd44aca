"""Mutants that `tests/server/test_auditing.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_auditing
from tests.server.test_auditing import guarded
from tests.server.test_guard import Guarded
from tracelake.server import audit as auditing
from tracelake.server import guard, key_ring
from tracelake.server.audit import AuditWriter


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation(
                "a change is in the audit before it is made", AuditWriter.begin, drop("await _.a(_1, _2)")
            ),
            test_auditing.check_before,
        ),
        (
            Mutation("it is known what came of it", AuditWriter.end, rewrite("_._", "str")),
            test_auditing.check_some_routes,
        ),
        (
            Mutation(
                "annotations too", guard.Guard.__call__, rewrite("_1 and _2 != _", "_1 and _2 == 'admin'")
            ),
            test_auditing.check_some_routes,
        ),
        (
            Mutation(
                "what no route takes is no change",
                guard.Guard.__call__,
                rewrite("if _(_): ...\nelse: ...", "if True: ...\nelse: ..."),
            ),
            test_auditing.check_no_route,
        ),
        (
            Mutation("refused ones are counted", guard.Guard._count_refused, drop("_(_)")),
            test_auditing.check_refused,
        ),
        (
            Mutation(
                "only its token is of a key", key_ring.KeyRing.holder, rewrite("_1 or _2 or _", "_1 or _2")
            ),
            test_auditing.check_refused,
        ),
        (
            Mutation(
                "of refused ones the key is told",
                guard.Guard._count_refused,
                rewrite(
                    "_1, _2 = (_, _3(_4))\n_5 = _6(_7, _8(_9), _1, _10(_11), _12, _2)",
                    "_1, _2 = (_11['path'] + _3(_9), _3(_4))\n_5 = _6(_7, _8(_9), _1, _10(_11), _12, _2)",
                ),
            ),
            test_auditing.check_refused,
        ),
        (
            Mutation(
                "a record is of the workspace of its key",
                auditing.record_of,
                rewrite("_._ if a else None", "None"),
            ),
            test_auditing.check_who_reads,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(
    guarded: Guarded, broken: Mutation, check: Callable[[Guarded], None]
) -> None:
    """The checks fail if any rule is removed."""
    assert_caught(broken, lambda: check(guarded))


def test_broken_groups_are_caught() -> None:
    """Without its shield a cancelled request cancels others of its group."""
    assert_caught(
        Mutation("who goes away goes alone", AuditWriter.begin, rewrite("_1 = _(_2)", "_1 = _2")),
        test_auditing.check_groups,
    )
