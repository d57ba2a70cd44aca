"""The nearest vectors to one, exactly: a first look at coarse codes, then all that may be among the nearest.

A code differs from its vector by a known distance, so its product with the vector that is asked for differs by no more
than that distance times the length of the latter. What is worse at its best than the k-th at its worst is not among
the k nearest. The others are compared exactly, so none is lost by the codes; they only save work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelake.limits import VECTORS_AT_ONCE
from tracelake.search.live import NOBODY, RowIds
from tracelake.search.vector_block import VectorBlock

Doubles: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = npt.NDArray[np.int64]


def nearest(
    blocks: Sequence[VectorBlock],
    query: Doubles,
    most: int,
    allowed: RowIds | None = None,
    gone: RowIds = NOBODY,
) -> tuple[RowIds, Doubles]:
    """Return the ids of the `most` rows whose vectors are nearest, best first, and their scores.

    Equal ones are in the order of their ids. With `allowed`, only of these rows; without those that are `gone`; both
    are sorted.
    """
    places = [_held(block.rows, allowed, gone) for block in blocks]
    bounds = [_bounds(block, query, held) for block, held in zip(blocks, places, strict=True)]
    if not bounds or most < 1:
        return NOBODY, np.array([], np.float64)
    lowest = np.concatenate([middle - error for middle, error in bounds])
    if not len(lowest):
        return NOBODY, np.array([], np.float64)
    rank = min(most, len(lowest))
    least = np.partition(lowest, len(lowest) - rank)[len(lowest) - rank]
    rows, scores = [], []
    for block, held, (middle, error) in zip(blocks, places, bounds, strict=True):
        kept = np.flatnonzero(middle + error >= least)
        chosen = kept if held is None else held[kept]
        rows.append(block.rows[chosen])
        scores.append(_scores(block, query, chosen))
    all_rows, all_scores = np.concatenate(rows), np.concatenate(scores)
    order = np.lexsort((all_rows, -all_scores))[:most]
    return all_rows[order], all_scores[order]


def vector_of(blocks: Sequence[VectorBlock], row: int) -> Doubles | None:
    """Return the vector of a row, None where it has none."""
    for block in blocks:
        places = np.flatnonzero(block.rows == row)
        if len(places):
            return np.asarray(block.exact[places[0]], np.float64) * float(block.norms[places[0]])
    return None


def _bounds(block: VectorBlock, query: Doubles, held: Places | None) -> tuple[Doubles, Doubles]:
    """Return about what each score would be with a query of length 1, and by how much it may be more or less."""
    if held is not None and 2 * len(held) > len(block.rows):
        # One after another they are read faster than most of them are picked.
        middle, error = _bounds(block, query, None)
        return middle[held], error[held]
    number = len(block.rows) if held is None else len(held)
    # Of any other length products may be beyond the numbers of 32 bits.
    narrow = (query / np.linalg.norm(query)).astype(np.float32)
    products = np.empty(number, np.float32)
    chunk = np.empty((min(VECTORS_AT_ONCE, number), len(query)), np.float32)
    for start in range(0, number, VECTORS_AT_ONCE):
        stop = min(start + VECTORS_AT_ONCE, number)
        chunk[: stop - start] = block.codes[start:stop] if held is None else block.codes[held[start:stop]]
        np.dot(chunk[: stop - start], narrow, out=products[start:stop])
    which = slice(None) if held is None else held
    norms = block.norms[which].astype(np.float64)
    return products * block.scales[which] * norms, block.errors[which] * norms


def _scores(block: VectorBlock, query: Doubles, places: Places) -> Doubles:
    length = float(np.linalg.norm(query))
    scores = np.empty(len(places), np.float64)
    for start in range(0, len(places), VECTORS_AT_ONCE):
        some = places[start : start + VECTORS_AT_ONCE]
        scores[start : start + VECTORS_AT_ONCE] = block.exact[some].astype(np.float64) @ (query / length)
    # Digits that count: equal vectors have equal scores, wherever they stand.
    return np.round(scores, 9) * length * block.norms[places]


def _held(rows: RowIds, allowed: RowIds | None, gone: RowIds) -> Places | None:
    """Return the places of the rows that count, None for all."""
    if allowed is None and not len(gone):
        return None
    held = np.ones(len(rows), bool) if allowed is None else _among(rows, allowed)
    return np.flatnonzero(held & ~_among(rows, gone))


def _among(rows: RowIds, allowed: RowIds) -> npt.NDArray[np.bool_]:
    """Return which rows are among some that are sorted."""
    if not len(allowed):
        return np.zeros(len(rows), bool)
    places = np.minimum(np.searchsorted(allowed, rows), len(allowed) - 1)
    among: npt.NDArray[np.bool_] = allowed[places] == rows
    return among
