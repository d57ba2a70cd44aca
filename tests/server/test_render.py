"""The display of values on a page, for every value that a table can hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.server import render

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (1_250, "1.25 µs"),
        (999_999, "1000 µs"),
        (12_345_678, "12.3 ms"),
        (59_900_000_000, "59.9 s"),
        (125_000_000_000, "2 m 05 s"),
        (7_500_000_000_000, "2 h 05 m"),
        (-1_500_000, "-1.50 ms"),
        (-125_000_000_000, "-2 m 05 s"),
    ],
)
def test_duration(nanoseconds: int, text: str) -> None:
    """A duration has two or three digits and a unit."""
    assert render.duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "in the future"),
        (0, "now"),
        (1, "1 second ago"),
        (7300, "2 hours ago"),
        (86400 * 800, "2 years ago"),
    ],
)
def test_ago(seconds: int, text: str) -> None:
    """A time is shown in its largest unit."""
    now_ns = 10**18
    assert render.ago(now_ns - seconds * 10**9, now_ns) == text


def test_timestamp() -> None:
    """A time is shown in UTC with microseconds."""
    assert render.timestamp(1_661_140_374_351_773_094) == "2022-08-22 03:52:54.351773"


@given(INT64)
def test_every_number_can_be_shown(number: int) -> None:
    """No value of a column breaks a page."""
    assert render.duration(number)
    assert render.timestamp(number)
    assert render.ago(number, 10**18)
    assert render.count(number)


@given(st.text())
def test_highlights_are_inert(excerpt: str) -> None:
    """Only the marks of an excerpt become markup."""
    shown = str(render.highlighted(excerpt))
    assert "<" not in shown.replace("<mark>", "").replace("</mark>", "")
    assert shown.count("<mark>") == shown.count("</mark>")


def test_tokens() -> None:
    """Unknown token counts are shown as a dash, or as nothing if both are unknown."""
    assert render.tokens({"input_tokens": 1200, "output_tokens": None}) == "1,200 / –"  # noqa: RUF001
    assert render.tokens({"input_tokens": None, "output_tokens": None}) == ""


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 1024**2, "5.0 MiB"), (1024**5, "1024.0 TiB")],
)
def test_sizes(number: int, text: str) -> None:
    """A size is shown in the unit that fits."""
    assert render.size(number) == text


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ({"kind": "pass", "result": {"traces": {}}}, "nothing was due"),
        (
            {
                "kind": "pass",
                "result": {"traces": {"failed": 2, "archived": 1200}, "failures": {"a": "away", "b": "away"}},
                "error": "2 traces stay hot",
            },
            "1,200 archived, 2 failed\na and 1 more: away",
        ),
        ({"kind": "pass", "error": "no database"}, "no database"),
        (
            {"kind": "restore", "result": {"restored": {"a": True, "b": False}, "failed": {"c": "gone"}}},
            "1 restored\nc: gone",
        ),
        ({"kind": "deletion", "result": {"deleted": ["a"]}}, "1 deleted"),
        ({"kind": "deletion", "result": {"deleted": [], "failed": {"a": "away"}}}, "0 deleted\na: away"),
        ({"kind": "sweep", "result": {"deleted_objects": 3}}, "3 objects deleted"),
        ({"kind": "sweep"}, "0 objects deleted"),
    ],
)
def test_outcomes(operation: dict[str, Any], text: str) -> None:
    """The page shows the outcome, and each reason once."""
    assert render.outcome({"result": None, "error": None} | operation) == text
