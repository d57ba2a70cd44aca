"""The positions of the bars of a trace."""

from __future__ import annotations

import time
from functools import partialmethod
from unittest import mock

import pytest

from tests.server.fake_lake import span_row
from tracelake.results import Row, Trace, _Places
from tracelake.server.render import span_url
from tracelake.server.trace_page import _selected, rows_of
from tracelake.server.traces import Waterfall, lay_out


def waterfall(*spans: Row) -> Waterfall:
    """Lay out these spans."""
    return lay_out(Trace("t", {}, spans))


def test_bars_stand_on_one_axis() -> None:
    """The axis runs from the first start to the last end; bars keep their proportions."""
    laid = waterfall(
        span_row(1, 0, end_ns=span_row(1, 10)["start_ns"]),
        span_row(1, 5, parent=0, service="bank"),
    )
    assert [(bar.depth, bar.parent, bar.x, bar.width) for bar in laid.bars] == [
        (0, True, 0, 1000),
        (1, False, 500, 100),
    ]
    assert laid.ticks == ["0", "2.50 s", "5.00 s", "7.50 s", "10.0 s"]
    assert laid.services == {"shop": 0, "bank": 1}


def test_w11_spans_of_two_workspaces_may_have_one_id() -> None:
    """Each span is drawn once. A child is placed below the parent in the same workspace, or else in any workspace."""

    def check() -> None:
        rows = [
            span_row(1, number, **options) | {"workspace": name}
            for number, name, options in (
                (0, "a", {}),
                (0, "b", {}),
                (1, "b", {"parent": 0}),
                (2, "a", {"parent": 0}),
                (3, "c", {"parent": 1}),
            )
        ]
        bars = waterfall(*rows).bars
        assert [(bar.span["workspace"], bar.span["span_id"][-1], bar.depth) for bar in bars] == [
            (rows[at]["workspace"], rows[at]["span_id"][-1], depth)
            for at, depth in ((0, 0), (3, 1), (1, 0), (2, 1), (4, 2))
        ]

    check()
    for name in ("_own", "_any"):
        with (
            mock.patch.object(_Places, "find", partialmethod(_find_without, name)),
            pytest.raises(AssertionError),
        ):
            check()


def test_a_server_span_hangs_below_the_client_span_with_its_id() -> None:
    """If two spans have the parent's id, a child is placed below the one of its service: the server's first, else
    the client's."""
    rows = [
        span_row(0, 0, service="shop", kind="INTERNAL"),
        span_row(0, 1, service="shop", kind="CLIENT", parent=0),
        span_row(0, 1, service="bank", kind="SERVER", parent=0),
        span_row(0, 2, service="bank", parent=1),
        span_row(0, 3, service="shop", parent=1),
        span_row(0, 4, service="other", parent=1),
    ]
    walked = [(depth, rows.index(span)) for depth, span in Trace("t", {}, tuple(rows)).walk()]
    assert walked == [(0, 0), (1, 1), (2, 2), (3, 3), (2, 4), (2, 5)]
    backwards = [(depth, rows.index(span)) for depth, span in Trace("t", {}, tuple(reversed(rows))).walk()]
    assert sorted(backwards) == sorted(walked)
    alone = [(depth, span["service"]) for depth, span in Trace("t", {}, (rows[2], rows[3], rows[4])).walk()]
    assert alone == [(0, "bank"), (1, "bank"), (1, "shop")]
    loop = [{**row, "parent_span_id": row["span_id"]} for row in rows[1:3]]
    assert len(list(Trace("t", {}, tuple(loop)).walk())) == 2


def _find_without(places: _Places, name: str, workspace: str | None, span_id: str | None) -> int | None:
    """Find a position like `_Places.find`, without one of its two maps."""
    own = None if name == "_own" else places._own.get((workspace, span_id or ""))
    return places._any.get(span_id or "") if own is None and name != "_any" else own


def test_w11_a_row_says_its_workspace_where_others_have_the_id() -> None:
    """A row's address contains its workspace only if another workspace has the id, so each address names one row
    (W11)."""

    def check() -> None:
        rows = [span_row(1, at, workspace=each) for at, each in ((0, "a b"), (0, "default"), (1, "a b"))]
        laid = waterfall(*rows)
        ids = [row["span_id"] for row in rows]
        assert [bar.address for bar in laid.bars] == [
            f"span={ids[0]}&workspace=a%20b",
            f"span={ids[1]}&workspace=default",
            f"span={ids[2]}",
        ]
        bars = rows_of(laid)
        selected = [_selected(bars, ids[0], each, None) for each in ("a b", "default", None, "c")]
        assert selected == [bars[0], bars[1], bars[1], None]
        assert span_url("t", "s", "default") == span_url("t", "s") == "/traces/t?span=s#span=s"
        assert span_url("t", "s", "a&b") == "/traces/t?span=s&workspace=a%26b#span=s&workspace=a%26b"

    check()


def test_running_span_reaches_to_the_end() -> None:
    """A span without an end is drawn to the end of the axis."""
    laid = waterfall(span_row(1, 0, end_ns=0), span_row(1, 9))
    assert (laid.bars[0].x, laid.bars[0].width) == (0, 1000)


def test_odd_times_and_shapes_are_drawn() -> None:
    """An end before the start, equal times, no service, orphans and cycles all get a bar on the axis."""
    odd = [
        span_row(1, 1, end_ns=1, service=None),
        span_row(1, 1, parent=77, span_id="orphan"),
        span_row(1, 2, parent=3),
        span_row(1, 3, parent=2),
        span_row(1, 4, start_ns=-(2**63), end_ns=2**63 - 1),
    ]
    for spans in (odd, odd[:1], []):
        laid = waterfall(*spans)
        assert len(laid.bars) == len(spans)
        assert all(0 <= bar.x <= 1000 and 0 <= bar.width <= 1000 for bar in laid.bars)


def test_many_spans_take_no_time() -> None:
    """A chain of 10,000 nested spans is laid out well within a second or two."""
    spans = [span_row(1, number, parent=number - 1 if number else None) for number in range(10_000)]
    start = time.process_time()  # the machine's load does not matter
    laid = waterfall(*spans)
    assert (laid.bars[-1].depth, laid.bars[-1].indent) == (9_999, 24)
    assert time.process_time() - start < 5
