"""Mutants of lakes: for each broken rule, a named check fails."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from tests.lake.test_formats_of_lakes import check_names_a_release
from tracelake import DamageError, location


def test_a_checksum_that_comes_before_the_format_is_caught(tmp_path: Path) -> None:
    """If earlier formats are not checked first, their lakes are reported as damaged."""
    with (
        mock.patch.object(location, "_earlier_release", return_value=None),
        pytest.raises((AssertionError, DamageError)),
    ):
        check_names_a_release(tmp_path)
