"""Rows cut by the bytes that they take: a million small ones are no matter, a hundred of 15 MiB each are.

One column of an Arrow array holds 2 GiB of text, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def cut(rows: pa.Table, max_bytes: int, max_rows: int | None = None) -> Iterator[pa.Table]:
    """Yield rows in their order, in slices of at most so many Arrow bytes, or of one row that has more."""
    step = max_rows or len(rows)
    for start in range(0, len(rows), max(step, 1)):
        yield from _halved(rows.slice(start, step), max_bytes)


def _halved(rows: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    if len(rows) <= 1 or rows.nbytes <= max_bytes:
        yield rows
        return
    half = len(rows) // 2
    yield from _halved(rows.slice(0, half), max_bytes)
    yield from _halved(rows.slice(half), max_bytes)
