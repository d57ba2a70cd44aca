"""Text that becomes part of a query."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake._errors import UsageError
from tracelake.lake.trace_list import literal


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_literals_mean_their_text(text: str) -> None:
    """DuckDB reads back exactly the quoted text, for any content."""
    assert duckdb.execute(f"SELECT {literal(text)}").fetchone() == (text,)


def test_nul_is_refused() -> None:
    """SQL text cannot contain a NUL."""
    with pytest.raises(UsageError, match="NUL"):
        literal("a\0b")
