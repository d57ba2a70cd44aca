"""Mutants that `tests/shards/test_compaction_machine.py` notices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.machine import FAILURES
from tests.mutants.mutation import Mutation, assert_caught, drop, rewrite
from tests.shards import test_compaction_machine
from tracelake._errors import TaskError
from tracelake.tables.maintenance import Maintainer
from tracelake.tasks import backoff
from tracelake.tasks.backoff import RetrySchedule


def test_rules_of_failing_compactions_are_held(tmp_path: Path) -> None:
    """Each rule of failing compactions, broken once, fails a test above."""
    full, far = (FAILURES[0], FAILURES[-2])
    damage = TaskError("", kind="tracelake._errors.DamageError")
    rules: tuple[tuple[Mutation, Callable[[Path], None]], ...] = (
        (
            Mutation(
                "only damage is passed by", Maintainer._compact_or_pass_by, rewrite("_ or _1", "False or _1")
            ),
            lambda folder: test_compaction_machine.check_left(folder, full),
        ),
        (
            Mutation("in a task too", backoff.is_damage, rewrite("_1 and _", "_1 and True")),
            lambda folder: test_compaction_machine.check_left(folder, far),
        ),
        (
            Mutation("damage in a task", backoff.is_damage, rewrite("_1 and _", "_1 and False")),
            lambda folder: test_compaction_machine.check_damage(folder, damage),
        ),
        (
            Mutation("tried again without a commit", Maintainer.maintain, rewrite("_1 and _", "_1")),
            lambda folder: test_compaction_machine.check_left(folder, full),
        ),
        (
            Mutation("after a pause", Maintainer.maintain, rewrite("_ < _", "False")),
            lambda folder: test_compaction_machine.check_left(folder, full),
        ),
        (
            Mutation(
                "what was passed by is tried again",
                Maintainer.maintain,
                rewrite("if _._: ...\nelse: ...", "if False: ...\nelse: ..."),
            ),
            lambda folder: test_compaction_machine.check_damage(folder, damage),
        ),
        (
            Mutation("it ends", Maintainer.maintain, drop("a._()")),
            lambda folder: test_compaction_machine.check_left(folder, full),
        ),
        (
            Mutation("not for ever before all else", RetrySchedule.passes_by, rewrite("_1 >= _", "_1 < 0")),
            lambda folder: test_compaction_machine.check_bound(folder, full),
        ),
        (
            Mutation("commits do not wait", RetrySchedule.skipped, rewrite("_1 + _", "_1 + 1000")),
            test_compaction_machine.check_transactions,
        ),
    )
    for number, (broken, check) in enumerate(rules):
        (folder := (tmp_path / str(number))).mkdir()
        assert_caught(broken, lambda: check(folder))  # noqa: B023  called at once
