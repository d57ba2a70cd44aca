"""Rules of tables, broken: a named check must fail."""

from __future__ import annotations

import pytest

from tests.tables import test_query_memory
from tests.tables.test_query_memory import lake
from tracelake import Lake

__all__ = ["lake"]


def test_running_every_condition_here_is_caught(lake: Lake) -> None:
    """If a condition that produces large values runs in this process, its memory has no limit."""
    answer = test_query_memory.run(lake, "where", "length(repeat(name, 200000000)) > 0", unlimited=True)
    with pytest.raises(AssertionError, match="bytes"):
        test_query_memory.check_memory(answer)
