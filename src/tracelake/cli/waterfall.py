"""A trace in the terminal: the span tree with a bar for each span's time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from rich.text import Text

from tracelake.cli.output import plain
from tracelake.cli.render import duration
from tracelake.results import Row, Trace

LABEL_MAX: Final = 60
SERVICE_MAX: Final = 24
DURATION_WIDTH: Final = 10
BAR_MIN: Final = 8
"""Minimum width of a bar; a narrower bar is not drawn."""
_COLOURS: Final = ("cyan", "green", "yellow", "blue", "magenta", "bright_cyan", "bright_green", "bright_blue")
_UNICODE: Final = {"pipe": "│ ", "tee": "├─", "end": "└─", "bar": "█", "error": "✗ ", "more": "… "}
_ASCII: Final = {"pipe": "| ", "tee": "|-", "end": "`-", "bar": "#", "error": "! ", "more": ".."}


def waterfall(trace: Trace, width: int, *, ascii_only: bool = False) -> Iterator[Text]:
    """Yield a line for each span, parents first, of at most `width` cells: tree, service, duration, bar.

    Errors are red and marked; unfinished spans show as running. The whole trace sets the time scale.
    """
    signs = _ASCII if ascii_only else _UNICODE
    walked = list(trace.walk())
    services = max((len(plain(span["service"] or "")) for _, span in walked), default=0)
    service_width = min(services, SERVICE_MAX, width // 5)
    label_max = min(LABEL_MAX, max(width * 2 // 5, 10))
    trees = _tree(walked, signs, levels_max=label_max // 6)
    labels = [_label(tree, span, signs) for tree, (_, span) in zip(trees, walked, strict=True)]
    label_width = min(max((label.cell_len for label in labels), default=0), label_max)
    bar_width = width - label_width - service_width - DURATION_WIDTH - 4
    start_ns, total_ns = _extent(trace)
    for (_, span), label in zip(walked, labels, strict=True):
        line = label
        line.truncate(label_width, overflow="ellipsis", pad=True)
        line.append(" ").append(_fit(plain(span["service"] or ""), service_width, "dim"))
        took = "running" if not span["end_ns"] else duration(span["duration_ns"])
        line.append(f" {took:>{DURATION_WIDTH}}")
        if bar_width >= BAR_MIN:
            line.append(" ").append(_bar(span, start_ns, total_ns, bar_width, signs["bar"]))
        line.truncate(width)
        line.rstrip()
        yield line


def _tree(walked: list[tuple[int, Row]], signs: dict[str, str], levels_max: int) -> list[str]:
    """Return the tree lines in front of each span, at most `levels_max` levels deep."""
    lines: list[str] = []
    open_at: list[
        bool
    ] = []  # whether a later sibling follows at this depth; built from the last span upwards
    for depth, _ in reversed(walked):
        del open_at[depth + 1 :]
        open_at += [False] * (depth + 1 - len(open_at))
        first = max(1, depth - levels_max)
        line = "" if first == 1 else signs["more"]
        line += "".join(signs["pipe"] if open_at[level] else "  " for level in range(first, depth))
        if depth:
            line += signs["tee"] if open_at[depth] else signs["end"]
        lines.append(line)
        open_at[depth] = True
    return lines[::-1]


def _label(tree: str, span: Row, signs: dict[str, str]) -> Text:
    label = Text(tree, style="default")
    if span["status"] == "ERROR":
        return label.append(signs["error"] + plain(span["name"]), "bold red")
    return label.append(plain(span["name"]))


def _fit(text: str, width: int, style: str) -> Text:
    fitted = Text(text, style=style)
    fitted.truncate(width, overflow="ellipsis", pad=True)
    return fitted


def _extent(trace: Trace) -> tuple[int, int]:
    """Return the start and length of the trace in ns; the length is at least 1."""
    start = min((span["start_ns"] for span in trace.spans), default=0)
    end = max((max(span["start_ns"], span["end_ns"]) for span in trace.spans), default=0)
    return start, max(end - start, 1)


def _bar(span: Row, start_ns: int, total_ns: int, width: int, sign: str) -> Text:
    """Return a bar for the span's time in the trace, at least one cell wide so that short spans stay visible."""
    end_ns = max(span["start_ns"], span["end_ns"] or start_ns + total_ns)
    first = min((span["start_ns"] - start_ns) * width // total_ns, width - 1)
    last = min(-((start_ns - end_ns) * width // total_ns), width)
    colour = _COLOURS[zlib.crc32((span["service"] or "").encode()) % len(_COLOURS)]
    style = "red" if span["status"] == "ERROR" else colour
    return Text(" " * first).append(sign * max(last - first, 1), style)
