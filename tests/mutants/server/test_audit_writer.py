"""Mutants that `tests/server/test_audit_writer.py` notices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite, rule_of
from tests.server import test_audit_writer
from tracelake.server import audit as auditing
from tracelake.server import audit as noting
from tracelake.server.audit import AuditWriter


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (
            Mutation("the thread is there before the first change", AuditWriter.__init__, drop("_(_)")),
            test_audit_writer.check_thread,
        ),
        (
            Mutation(
                "cancelled is not known", noting.response_outcome, rewrite("Exception", "BaseException")
            ),
            test_audit_writer.check_outcomes,
        ),
        (
            Mutation("an answer that was sent stays", noting.response_outcome, rewrite("_ or 500", "500")),
            test_audit_writer.check_outcomes,
        ),
        (
            Mutation("numbers are heard of", AuditWriter._write, rewrite("_ == _", "False")),
            test_audit_writer.check_numbers,
        ),
        (
            Mutation("who was refused leaves no record", AuditWriter.begin, drop("_(...)")),
            test_audit_writer.check_waits,
        ),
        (
            Mutation("what is begun comes first", auditing._is_waited_for, rewrite("_ is None", "False")),
            test_audit_writer.check_waits,
        ),
    ],
    ids=rule_of,
)
def test_broken_rules_are_caught(broken: Mutation, check: Callable[[], None]) -> None:
    """The checks fail if any rule is removed."""
    assert_caught(broken, check)
