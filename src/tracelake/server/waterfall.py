"""Lays the spans of a trace out as rows of a waterfall: pure arithmetic, no markup."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from tracelake.otlp.conventions import WORKSPACE_DEFAULT
from tracelake.results import Row, Trace
from tracelake.server.render import duration, span_query

SCALE = 1_000
"""Bars are placed on an axis from 0 to this."""
COLOURS = 8
DEPTH_SHOWN_MAX = 24
"""Rows deeper than this are indented no further."""
TICKS = 4


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: a span, how deep it stands, and where its bar begins and how long it is on the axis."""

    span: Row
    depth: int
    parent: bool
    x: float
    width: float
    colour: int
    workspace: str | None = None
    """Of the span, where several workspaces of the trace have one with its id."""
    kind: str | None = None
    """Of the span, if a client and a server span of one workspace share its id."""

    @property
    def indent(self) -> int:
        """Return the steps to indent the row by."""
        return min(self.depth, DEPTH_SHOWN_MAX)

    @property
    def address(self) -> str:
        """Return what names the row in the address of its page."""
        return span_query(self.span["span_id"], self.workspace, self.kind)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """All rows of a trace, parents first; services with their colours; labels of the axis from left to right."""

    bars: list[Bar]
    services: dict[str, int]
    ticks: list[str]

    def first_of_page(
        self, span_id: str, page_size: int, workspace: str | None = None, kind: str | None = None
    ) -> int:
        """Return the index of the first row of the page that shows this span; 0 where no row does."""
        rows = [index for index, bar in enumerate(self.bars) if bar.span["span_id"] == span_id]
        rows = [index for index in rows if self.bars[index].kind == kind] or rows
        own = [index for index in rows if self.bars[index].workspace == (workspace or WORKSPACE_DEFAULT)]
        return next(iter(own or rows), 0) // page_size * page_size


def lay_out(trace: Trace) -> Waterfall:
    """Place every span. One that still runs reaches to the end of the axis."""
    start_ns = min((span["start_ns"] for span in trace.spans), default=0)
    end_ns = max((max(span["start_ns"], span["end_ns"]) for span in trace.spans), default=0)
    length_ns = max(end_ns - start_ns, 1)
    rows = list(trace.walk())
    parents = [below > depth for (depth, _), (below, _) in pairwise(rows)] + [False]
    services: dict[str, int] = {}
    times = Counter(span["span_id"] for span in trace.spans)
    sides = Counter((span["span_id"], span.get("workspace")) for span in trace.spans)
    bars = []
    for (depth, span), parent in zip(rows, parents, strict=False):
        colour = services.setdefault(span["service"] or "", len(services) % COLOURS)
        x = (span["start_ns"] - start_ns) * SCALE / length_ns
        stop_ns = span["end_ns"] or end_ns
        width = (max(stop_ns, span["start_ns"]) - span["start_ns"]) * SCALE / length_ns
        here = sides[span["span_id"], span.get("workspace")]
        workspace = span.get("workspace") if times[span["span_id"]] > here else None
        kind = span.get("kind") if here > 1 else None
        bars.append(Bar(span, depth, parent, round(x, 2), round(width, 2), colour, workspace, kind))
    ticks = ["0", *(duration(length_ns * tick // TICKS) for tick in range(1, TICKS + 1))]
    return Waterfall(bars, {name: colour for name, colour in services.items() if name}, ticks)
