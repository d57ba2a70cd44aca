"""Mutants that `tests/pipeline/test_read_tasks.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tests.pipeline import test_read_tasks
from tracelake.pipeline import decode_task
from tracelake.pipeline.decode_task import gather, read_tasks


@pytest.mark.parametrize(
    "broken", [Mutation("ties have an order", read_tasks, rewrite("(_1, _, _)", "_1"))], ids=rule_of
)
def test_ties(broken: Mutation) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, test_read_tasks.test_ties)


@pytest.mark.parametrize(
    "broken",
    [
        Mutation(
            "rows mix only where they are of whole inputs",
            decode_task._Reader.read,
            rewrite("if _: ...", "if True: ...", nth=2),
        ),
        Mutation("what is large is staged alone", decode_task._first_few, rewrite("False", "True")),
        Mutation(
            "what failed is not whole",
            decode_task._note_end,
            rewrite("_1 is not None and _ is None", "_1 is not None"),
        ),
        Mutation("a task has a bound", read_tasks, rewrite("_ <= _", "True")),
        Mutation("each input costs something", read_tasks, rewrite("_1.a + _", "_1.a")),
        Mutation(
            "the last ones are read",
            read_tasks,
            rewrite(
                "_1._(_(_))\nreturn [_2(_3, _4, _5, _6, _7) for _4 in _1 if _4]",
                "return [_2(_3, _4, _5, _6, _7) for _4 in _1 if _4]",
            ),
        ),
        Mutation("a stripe has a task", read_tasks, rewrite("_ > 1", "False")),
        Mutation(
            "what does not count is dropped", gather, rewrite("(_1 if _2 else _).a", "(_1 if _2 else _1).a")
        ),
    ],
    ids=rule_of,
)
def test_a_broken_rule_is_noticed(broken: Mutation, tmp_path: Path) -> None:
    """A test above fails for each broken rule."""
    assert_caught(broken, lambda: test_read_tasks.check_all(tmp_path))
