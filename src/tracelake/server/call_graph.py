"""Call graph of a trace, or of services: who calls whom, how often, how long, and how many calls fail.

An operation is all spans of a trace with the same type and name. The graph is a page and JSON at
`/api/v1/traces/{trace_id}/graph`. The server lays it out, so that the page reads without JavaScript.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from tracelake.lake.lake import Lake
from tracelake.lake.trace_list import cut
from tracelake.results import Row, Trace
from tracelake.server.http_policy import RequestLake
from tracelake.server.render import span_url
from tracelake.server.routes import JsonRoute, json_response, render_page
from tracelake.server.trace_page import TYPE_LABELS, TraceRow, parents_of, rows_of
from tracelake.server.traces import lay_out

_NODES_MAX: Final = 60
"""Operations of a graph. Those with the fewest calls above this number are one operation together."""
_OTHERS: Final = "(other operations)"
BOX: Final = (240, 58)
"""Width and height of an operation in the drawing, in pixels."""
_WIDTH, _HEIGHT = BOX
_GAP_X: Final = 84
_GAP_Y: Final = 18


@dataclass(slots=True)
class GraphNode:
    """Node of a call graph: the spans of one type and name, with the sums of their figures."""

    name: str
    type: str | None
    url: str
    """Page of its first span."""
    services: list[str] = field(default_factory=list)
    calls: int = 0
    errors: int = 0
    total_ns: int = 0
    """Sum of durations. Calls that run at the same time count each."""
    self_ns: int = 0
    """The same without the time in which spans below them run."""

    @property
    def label(self) -> str | None:
        """The word for the type."""
        return TYPE_LABELS.get(self.type or "")

    def add(self, row: TraceRow) -> None:
        """Add the figures of a span."""
        span = row.bar.span
        self.calls += 1
        self.errors += span["status"] == "ERROR"
        self.total_ns += span["duration_ns"]
        self.self_ns += row.facts.self_ns
        if span["service"] and span["service"] not in self.services:
            self.services.append(cut(span["service"]))


@dataclass(slots=True)
class GraphEdge:
    """Edge of a call graph: the calls of one operation by another, given by their places in the list of nodes."""

    caller: int
    callee: int
    calls: int = 0
    errors: int = 0
    total_ns: int = 0


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Operations of a trace in the order of their first spans, and the calls between them."""

    operations: list[GraphNode]
    calls: list[GraphEdge]
    roots: list[int]
    """Places of operations that no span of the trace calls."""


def graph_of(trace: Trace, rows: Sequence[TraceRow]) -> CallGraph:
    """Return the call graph of a trace, given the rows of its tree."""
    keys = [(row.facts.type, str(row.bar.span["name"])) for row in rows]
    frequent = {key for key, _ in Counter(keys).most_common(_NODES_MAX)}
    places: dict[tuple[str | None, str], int] = {}
    operations: list[GraphNode] = []
    edges: dict[tuple[int, int], GraphEdge] = {}
    roots: dict[int, None] = {}
    of_row: list[int] = []
    for key, row, parent in zip(keys, rows, parents_of([row.bar for row in rows]), strict=True):
        node = key if key in frequent else (None, _OTHERS)
        if (place := places.setdefault(node, len(operations))) == len(operations):
            bar = row.bar
            url = span_url(trace.trace_id, bar.span["span_id"], bar.workspace, bar.kind)
            operations.append(GraphNode(cut(node[1]) or "(no name)", node[0], url))
        of_row.append(place)
        operations[place].add(row)
        if parent is None:
            roots[place] = None
            continue
        caller = of_row[parent]
        edge = edges.setdefault((caller, place), GraphEdge(caller, place))
        edge.calls += 1
        edge.errors += row.bar.span["status"] == "ERROR"
        edge.total_ns += row.bar.span["duration_ns"]
    return CallGraph(operations, list(edges.values()), list(roots))


def service_graph(services: Sequence[Row], calls: Sequence[Row], url_of: Callable[[str], str]) -> CallGraph:
    """Return the graph of the services that call each other. The total of a service is its 95th percentile."""
    figures = {row["service"]: (row["spans"], row["errors"], row["p95_ns"]) for row in services}
    names = list(dict.fromkeys(row[side] for row in calls for side in ("caller", "callee")))
    places = {name: place for place, name in enumerate(names)}
    nodes = [GraphNode(name, None, url_of(name), [], *figures.get(name, ())) for name in names]
    edges = [
        GraphEdge(places[row["caller"]], places[row["callee"]], row["calls"], row["errors"], row["total_ns"])
        for row in calls
    ]
    called = {edge.callee for edge in edges}
    return CallGraph(nodes, edges, [place for place in range(len(nodes)) if place not in called])


@dataclass(frozen=True, slots=True)
class Box:
    """Position of an operation in the drawing, in pixels."""

    operation: GraphNode
    x: int
    y: int
    repeats: int
    """Calls of the operation by itself."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Line from a caller to a callee, as the `d` of an SVG path, with the place of its label."""

    calls: GraphEdge
    path: str
    width: float
    label_x: int
    label_y: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """Call graph with positions. Columns are distances from the roots, from left to right."""

    boxes: list[Box]
    curves: list[Curve]
    width: int
    height: int


def _columns(graph: CallGraph) -> list[int]:
    """Return the column of each operation: its shortest distance from a root."""
    callees: dict[int, list[int]] = {}
    for edge in graph.calls:
        callees.setdefault(edge.caller, []).append(edge.callee)
    column = dict.fromkeys(graph.roots, 0)
    queue = deque(graph.roots)
    for first in range(len(graph.operations)):
        while queue:
            place = queue.popleft()
            for callee in callees.get(place, ()):
                if callee not in column:
                    column[callee] = column[place] + 1
                    queue.append(callee)
        if first not in column:  # services that call each other in a circle
            column[first] = 0
            queue.append(first)
    return [column[place] for place in range(len(graph.operations))]


def draw(graph: CallGraph) -> Drawing:
    """Place the operations: each column in the order of its callers, so that few lines cross."""
    columns = _columns(graph)
    callers: dict[int, list[int]] = {}
    for edge in graph.calls:
        if columns[edge.caller] < columns[edge.callee]:
            callers.setdefault(edge.callee, []).append(edge.caller)
    position: dict[int, float] = {}
    at: dict[int, tuple[int, int]] = {}
    height = 0
    for column in range(max(columns, default=-1) + 1):
        members = [place for place, each in enumerate(columns) if each == column]
        center = {
            place: sum(position[caller] for caller in above) / len(above)
            if (above := callers.get(place))
            else 0
            for place in members
        }
        for row, place in enumerate(sorted(members, key=lambda place: (center[place], place))):
            position[place] = row
            at[place] = column * (_WIDTH + _GAP_X), row * (_HEIGHT + _GAP_Y)
        height = max(height, len(members) * (_HEIGHT + _GAP_Y))
    repeats = {edge.caller: edge.calls for edge in graph.calls if edge.caller == edge.callee}
    boxes = [
        Box(operation, *at[place], repeats.get(place, 0)) for place, operation in enumerate(graph.operations)
    ]
    curves = [
        _curve(edge, at[edge.caller], at[edge.callee]) for edge in graph.calls if edge.caller != edge.callee
    ]
    below = any(columns[edge.callee] <= columns[edge.caller] for edge in graph.calls)
    return Drawing(
        boxes, curves, (max(columns, default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X, height + 24 * below
    )


def _curve(edge: GraphEdge, caller: tuple[int, int], callee: tuple[int, int]) -> Curve:
    """Return the line between two boxes. A call back to an earlier column runs below the boxes."""
    width = round(1 + math.log2(edge.calls) / 2, 1)
    (x1, y1), (x2, y2) = caller, callee
    if x2 > x1:
        start_x, start_y, end_y = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
        middle = (start_x + x2) // 2
        path = f"M{start_x} {start_y}C{middle} {start_y} {middle} {end_y} {x2} {end_y}"
        return Curve(edge, path, width, x2 - 10, end_y - 6)
    start_x, start_y, end_x, end_y = x1 + _WIDTH // 2, y1 + _HEIGHT, x2 + _WIDTH // 2, y2 + _HEIGHT
    low = max(start_y, end_y) + 22
    path = f"M{start_x} {start_y}C{start_x} {low} {end_x} {low} {end_x} {end_y}"
    return Curve(edge, path, width, end_x - 6, end_y + 14)


def read_graph(lake: Lake, trace_id: str) -> tuple[Trace, CallGraph]:
    """Return a trace without the texts of its spans, and its call graph. Raises NotFoundError for an unknown id."""
    trace = lake.hot.outline(trace_id)
    return trace, graph_of(trace, rows_of(lay_out(trace)))


def graph_json(trace_id: str, graph: CallGraph) -> dict[str, Any]:
    """Return the JSON of a call graph. `caller` and `callee` are places in `operations`."""
    operations = [asdict(each) for each in graph.operations]
    for operation in operations:
        del operation["url"]
    return {"trace_id": trace_id, "operations": operations, "calls": [asdict(each) for each in graph.calls]}


api = APIRouter(prefix="/api/v1", route_class=JsonRoute)


@api.get("/traces/{trace_id}/graph")
def graph(lake: RequestLake, trace_id: str) -> Response:
    """Call graph of a trace: which operations call which, how often, how long."""
    trace, call_graph = read_graph(lake, trace_id)
    return json_response(graph_json(trace.trace_id, call_graph))


pages = APIRouter(include_in_schema=False)


@pages.get("/traces/{trace_id}/graph")
def graph_page(lake: RequestLake, request: Request, trace_id: str) -> Response:
    """Show the call graph of a trace."""
    trace, call_graph = read_graph(lake, trace_id)
    return render_page(
        request,
        "graph.html",
        f"/api/v1/traces/{trace.trace_id}/graph",
        trace=trace,
        graph=call_graph,
        drawing=draw(call_graph),
        calls=sorted(call_graph.calls, key=lambda each: -each.total_ns),
        box=BOX,
    )
