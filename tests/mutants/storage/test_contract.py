"""Mutants that `tests/storage/test_contract.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.storage import test_contract
from tracelake.storage.object_records import conflict_at


def test_a_write_over_damage_by_any_version_is_noticed(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The test above catches a store that lets any version overwrite damage."""
    broken = Mutation("under its version", conflict_at, rewrite("if _: ...", "if False: ..."))
    assert_caught(
        broken,
        lambda: test_contract.test_what_nobody_can_read_is_replaced_under_its_version(request, tmp_path),
    )
