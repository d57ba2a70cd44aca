"""Mutants that `tests/pipeline/test_output_receipts.py` notices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutation import Mutation, assert_caught, rewrite
from tests.pipeline import test_output_receipts
from tests.pipeline.test_output_receipts import lake
from tracelake import Lake
from tracelake.pipeline.outputs.external import KeyedOutput


def test_where_who_finds_it_notes_nothing_it_is_caught(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check detects the broken rule."""
    broken = Mutation(
        "who finds the marker notes it", KeyedOutput._write, rewrite("_\nreturn", "pass\nreturn")
    )
    assert_caught(broken, lambda: test_output_receipts.check_a_death(lake, tmp_path, monkeypatch))
