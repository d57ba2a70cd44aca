"""Rules of rows that no other mutant breaks: what columns hold, and how many bytes a payload has."""

from __future__ import annotations

import pytest
import zstandard

from tests.broken import Broken, assert_caught
from tests.tracking.requests import trace_id
from tracelake import limits
from tracelake._errors import DamageError
from tracelake.tracking import requests as rows
from tracelake.tracking.store import unpacked


def test_columns_hold_what_both_databases_do() -> None:
    """A text is cut where its column ends, and has no NUL, which PostgreSQL takes in none."""

    def check() -> None:
        assert rows._cut("a\0b" + "x" * limits.TRACKING_NAME_MAX_CHARS, 3) == "a\ufffdb"
        assert rows._cut("a\0", 3) == "a\ufffd"

    check()
    for broken in (
        Broken("a text is cut", rows._cut, "text[:max_chars]", "text"),
        Broken("no column has a NUL", rows._cut, '.replace("\\0", "\\ufffd")', ""),
    ):
        assert_caught(broken, check)


def test_a_payload_has_the_bytes_that_its_row_says() -> None:
    """A payload that unpacks to less than was stored is damage, and no trace of fewer spans."""
    packed = zstandard.ZstdCompressor().compress(b"12")

    def check() -> None:
        with pytest.raises(DamageError, match="2 bytes, not 3"):
            unpacked(trace_id(1), packed, 3)

    check()
    assert_caught(Broken("sizes are compared", unpacked, "len(data) != size_bytes", "False"), check)
