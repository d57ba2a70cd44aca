"""Mutants that `tests/archive/test_frames.py` notices."""

from __future__ import annotations

import pytest

from tests.archive import test_frames
from tests.archive.test_archive import Make
from tests.mutants.mutation import Mutation, assert_caught, rewrite, rule_of
from tracelake.archive.store import ArchiveStore


@pytest.mark.parametrize(
    "broken", [Mutation("all of it", ArchiveStore.begin, rewrite("_1 == 1", "_1 > 0"))], ids=rule_of
)
def test_a_trace_of_several_parts_is_archived_whole(broken: Mutation, make: Make) -> None:
    """The check fails if the rule is broken."""
    assert_caught(broken, lambda: test_frames.test_a_trace_of_several_parts_is_archived_whole(make))
