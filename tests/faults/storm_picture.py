"""Draw storms: time to commit against arrival, one panel a storm, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 44
GRID_LINES = 6
Panel = tuple[str, Sequence[tuple[float, float]]]
"""A title, and (arrival, time to commit) of each commit, in seconds."""


def draw(panels: Sequence[Panel], stall: tuple[float, float], seconds: float) -> str:
    """Return the picture; `stall` is the start and end of the stall."""
    height = HEIGHT * len(panels)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12" role="img" aria-label="Time to commit against arrival">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        lines.append(f'<g transform="translate(0 {number * HEIGHT})">')
        lines += draw_panel(panel, stall, seconds)
        lines.append("</g>")
    return "\n".join([*lines, "</svg>"]) + "\n"


def draw_panel(panel: Panel, stall: tuple[float, float], seconds: float) -> Iterator[str]:
    """Yield the elements of one panel."""
    title, points = panel
    step = ceil(max(took for _, took in points) / GRID_LINES * 2) / 2
    top = step * (GRID_LINES + 0.2)

    def x(at: float) -> float:
        return round(LEFT + at / seconds * (WIDTH - LEFT - RIGHT), 1)

    def y(took: float) -> float:
        return round(HEIGHT - BOTTOM - took / top * (HEIGHT - TOP - BOTTOM), 1)

    yield f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}</text>'
    yield (
        f'<rect x="{x(stall[0])}" y="{y(top)}" width="{round(x(stall[1]) - x(stall[0]), 1)}" '
        f'height="{round(y(0) - y(top), 1)}" fill="#fde7c7"/>'
        f'<text x="{x(sum(stall) / 2)}" y="{TOP - 4}" text-anchor="middle" fill="#8a5a00">the store stands still</text>'
    )
    for line in range(GRID_LINES + 1):
        at = y(line * step)
        yield f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{LEFT - 6}" y="{at + 4}" text-anchor="end">{line * step:g}</text>'
    for second in range(0, int(seconds) + 1, 5):
        yield f'<text x="{x(second)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{second}</text>'
    yield f'<text x="{x(seconds / 2)}" y="{HEIGHT - 10}" text-anchor="middle">arrival, s</text>'
    yield (
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">time to commit, s</text>'
    )
    for at, took in points:
        yield f'<circle cx="{x(at)}" cy="{y(took)}" r="2" fill="#1f5fa8" fill-opacity="0.6"/>'
