"""Mutants that `tests/journal/test_trimming.py` notices."""

from __future__ import annotations

import pytest

from tests.journal import test_trimming
from tests.journal.test_trimming import _store
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.journal.store import _missing
from tracelake.pipeline.continuous import JournalTrimmer
from tracelake.storage import MemoryKeyValueStore


@pytest.mark.parametrize(
    "broken", [Mutation("a stretch has neighbours only", _missing, rewrite("_ - _", "0"))], ids=rule_of
)
def test_a_floor_that_is_lost_is_one_finding_and_raised_anew(
    broken: Mutation, store: MemoryKeyValueStore
) -> None:
    """The check fails if the rule is broken."""
    assert_caught(
        broken, lambda: test_trimming.test_a_floor_that_is_lost_is_one_finding_and_raised_anew(store)
    )


@pytest.mark.parametrize(
    "broken",
    [
        Mutation("all at once", JournalTrimmer.after, rewrite("_(0, _)", "0")),
        Mutation("what is kept goes, too", JournalTrimmer.after, rewrite("_ + _1", "_1")),
        Mutation("after each transaction", JournalTrimmer.after, rewrite("_ - _ < _", "False")),
    ],
    ids=rule_of,
)
def test_a_pipeline_trims_its_journal(broken: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails for each broken rule."""
    assert_caught(broken, lambda: test_trimming.test_a_pipeline_trims_its_journal(monkeypatch))
