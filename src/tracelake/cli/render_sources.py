"""Sources as a table for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from tracelake.cli.render import grid, size
from tracelake.lake.sources import SourceInfo


def sources(infos: Iterable[SourceInfo]) -> Table:
    """Return the sources of a lake, one a row."""
    return grid(
        ("source", "state", "lag", "taken", "a second", "address"),
        [
            (
                info.name if info.added or not info.address else "(watched)",
                info.state,
                _lag(info),
                f"{info.taken_inputs:,} ({size(info.taken_bytes)})",
                size(info.bytes_per_s),
                info.address or None,
            )
            for info in infos
        ],
        ids=("source", "state"),
    )


def _lag(info: SourceInfo) -> str | None:
    if info.waiting is None:
        return None
    if not info.waiting:
        return "0"
    more = [] if info.waiting_bytes is None else [size(info.waiting_bytes)]
    more += [] if info.oldest_waiting_s is None else [f"{info.oldest_waiting_s:.1f} s"]
    unit = info.unit.removesuffix("s") if info.waiting == 1 else info.unit
    return f"{info.waiting:,} {unit}" + (f" ({', '.join(more)})" if more else "")
