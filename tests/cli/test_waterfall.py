"""Traces of every shape as a waterfall."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.server.fake_lake import span_row
from tracelake.cli.query import waterfall
from tracelake.results import Row, Trace


def lines(spans: list[Row], width: int = 100, *, ascii_only: bool = False) -> list[str]:
    """Return the lines of a waterfall, all within the requested width."""
    drawn = list(waterfall(Trace("1" * 32, {}, tuple(spans)), width, ascii_only=ascii_only))
    assert all(line.cell_len <= width for line in drawn)
    assert len(drawn) == len(spans)
    return [line.plain for line in drawn]


def span(number: int, parent: int | None = None, start: int = 0, length: int = 10, **changed: Any) -> Row:
    """Return a span that runs from `start` ms for `length` ms."""
    start_ns, duration_ns = start * 1_000_000, length * 1_000_000
    times = {"start_ns": start_ns, "end_ns": start_ns + duration_ns or 1, "duration_ns": duration_ns}
    return span_row(1, number, parent, **(times | changed))


def test_tree_lines_and_bars() -> None:
    """Children are below their parents, and a bar shows the time of its span."""
    spans = [span(1, length=100), span(2, 1, 0, 50), span(3, 2, 10, 20), span(4, 1, 50, 50)]
    drawn = lines(spans)
    assert [line.split("  ")[0].split(" shop")[0].rstrip() for line in drawn] == [
        "step 1",
        "├─step 2",
        "│ └─step 3",
        "└─step 4",
    ]
    assert [line.count("█") for line in drawn] == [72, 36, 15, 36]
    assert drawn[3].rindex("█") == drawn[0].rindex("█")
    assert "100.00 ms" in drawn[0]


def test_errors_are_marked_without_colour() -> None:
    """An error is marked without colour, and red with colour."""
    (line,) = waterfall(Trace("1" * 32, {}, (span(1, status="ERROR"),)), 100)
    assert line.plain.startswith("✗ step 1")
    assert any("red" in str(piece.style) for piece in line.spans)


def test_orphans_and_cycles_are_shown_once() -> None:
    """Spans with a missing parent, and cycles of parents, are shown once at the top level."""
    drawn = lines([span(1, parent=99), span(2, parent=3), span(3, parent=2), span(4, parent=4)])
    assert sorted(line.split(" shop")[0].strip() for line in drawn) == [
        "step 1",
        "step 2",
        "step 3",
        "step 4",
    ]


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [span(1, length=0)],
        [span(1, start=5, length=0), span(2, 1, start=5, length=0)],
        [span(1, end_ns=0, duration_ns=0), span(2, 1, length=50)],
        [span(1, start_ns=10, end_ns=5, duration_ns=0)],
        [span(1, start_ns=0, end_ns=2**63 - 1, duration_ns=2**63 - 1), span(2, 1)],
        [span(1, service=None), span(2, 1, service="")],
        [span(1, name="名前" * 50, service="サービス" * 20), span(2, 1, name="", service="x")],
        [span(1, name="\x1b[31mred\nline\u202e", service="\x07")],
    ],
)
@pytest.mark.parametrize("width", [1, 20, 40, 200])
def test_odd_traces_fit_every_width(spans: list[Row], width: int) -> None:
    """No length, running span, wide character or control character breaks a line."""
    assert not any("\x1b" in line or "\n" in line for line in lines(spans, width))


def test_a_running_span_says_so() -> None:
    """A span without an end has no duration."""
    assert "running" in lines([span(1, end_ns=0, duration_ns=0), span(2, 1)])[0]


def test_a_thousand_spans_in_a_row_and_at_random() -> None:
    """A chain a thousand spans deep stays readable, and any tree has one line per span."""
    chain = [span(n, n - 1 if n > 1 else None, n, 1_000 - n) for n in range(1, 1_001)]
    deepest = lines(chain)[-1]
    assert "step 1000" in deepest
    assert deepest.startswith("… ")
    rng = random.Random(1)
    lines([span(n, rng.randrange(n) or None, rng.randrange(99), rng.randrange(99)) for n in range(1, 1_001)])


def test_ascii_for_screens_without_more() -> None:
    """With `ascii_only` nothing but ASCII is drawn."""
    spans = [span(1, length=100), span(2, 1, 0, 50, status="ERROR"), span(3, 1)]
    assert all(line.isascii() for line in lines(spans, ascii_only=True))
