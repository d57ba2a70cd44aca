"""Which parts of an index are merged, pure.

Parts of the same transactions are a *generation*: they cover all buckets together. Adjacent generations become one as
batches of a table do, by the number of their documents. A generation whose parts are as large as parts become gains
nothing by it, and is left alone. Where nothing comes for some time, what is left of that becomes fewer still.

A run is no larger than what a task joins: what is larger is built of the rows, which takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from tracelake import tiers
from tracelake.batching import batches
from tracelake.limits import (
    INDEX_FAN_OUT,
    INDEX_MERGED_MAX_BYTES,
    INDEX_REBUILT_PART_ROWS,
    INDEX_REPLACED_MIN,
    INDEX_REST_SHARE,
    INDEX_REWRITTEN_SHARE,
)
from tracelake.search.model import PartRef
from tracelake.search.vectors import VectorSettings, has_vectors


@dataclass(frozen=True, slots=True)
class Generation:
    """Parts that hold the rows of the same transactions."""

    parts: tuple[PartRef, ...]

    @property
    def lower(self) -> int:
        """The first of the transactions."""
        return self.parts[0].lower

    @property
    def upper(self) -> int:
        """The transaction after the last."""
        return self.parts[0].upper

    @property
    def as_of(self) -> int:
        """The transaction as of which its rows are live."""
        return self.parts[0].as_of

    @property
    def documents(self) -> int:
        """How many documents its parts have together."""
        return sum(part.documents for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """How large its parts are together."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def is_full(self) -> bool:
        """Whether its parts are as large as parts become. Of others, any two can be joined."""
        return self.documents >= INDEX_REBUILT_PART_ROWS or 2 * self.size_bytes > INDEX_MERGED_MAX_BYTES


def generations(parts: Sequence[PartRef]) -> list[Generation]:
    """Return the parts of an index by the transactions whose rows they hold, in order."""
    return [Generation(tuple(same)) for _, same in groupby(parts, lambda part: (part.lower, part.upper))]


def due(generations: Sequence[Generation], fan_out: int = INDEX_FAN_OUT) -> Sequence[Generation]:
    """Return adjacent generations to merge now, the oldest that are due; none where nothing is."""
    for stretch in _not_full(generations):
        run = tiers.due([each.documents for each in stretch], fan_out)
        if run:
            return next(
                batches(stretch[run.start : run.stop], lambda each: each.size_bytes, INDEX_MERGED_MAX_BYTES)
            )
    return ()


def due_at_rest(generations: Sequence[Generation]) -> Sequence[Generation]:
    """Return adjacent generations to merge into one part where nothing comes, the newest; none where few are left."""
    for stretch in reversed(_not_full(generations)):
        newest = _of_one_part(stretch[-(INDEX_FAN_OUT**2) :])
        run = tiers.due_at_rest([each.documents for each in newest], INDEX_REST_SHARE)
        if run:
            return newest[run.start :]
    return ()


def _of_one_part(stretch: Sequence[Generation]) -> Sequence[Generation]:
    """Return the newest that are no larger together than parts become."""
    documents = list(accumulate(each.documents for each in reversed(stretch)))
    sizes = accumulate(each.size_bytes for each in reversed(stretch))
    fit = sum(
        rows <= INDEX_REBUILT_PART_ROWS and size <= INDEX_MERGED_MAX_BYTES
        for rows, size in zip(documents, sizes, strict=True)
    )
    return stretch[len(stretch) - fit :]


def until_due(generations: Sequence[Generation], fan_out: int = INDEX_FAN_OUT) -> int:
    """Return how many transactions must come before anything is due, where nothing is now.

    If they are small ones, that is: after a large one something may be due earlier, and is then late by so many.
    """
    if not generations or generations[-1].is_full:
        return fan_out
    newest = _not_full(generations)[-1]
    return fan_out - len(tiers.runs([each.documents for each in newest], fan_out)[-1])


def _not_full(generations: Sequence[Generation]) -> list[list[Generation]]:
    return [list(each) for full, each in groupby(generations, lambda each: each.is_full) if not full]


def counts_replaced(documents: int, live: int) -> bool:
    """Whether an index counts so many rows that were replaced that scores suffer."""
    replaced = documents - live
    return replaced >= INDEX_REPLACED_MIN and replaced > INDEX_REWRITTEN_SHARE * documents


def to_rewrite(generations: Sequence[Generation], live: Mapping[int, int]) -> list[Generation]:
    """Return the generations most of whose replaced documents are to go, given the live rows of each transaction."""
    return [
        each
        for each in generations
        if each.documents - sum(rows for t, rows in live.items() if each.lower <= t < each.upper)
        > INDEX_REWRITTEN_SHARE * each.documents
    ]


def without_vectors(generations: Sequence[Generation], vectors: VectorSettings | None) -> list[Generation]:
    """Return the generations that were built before their index had these vectors, or with others."""
    return [
        each for each in generations if not all(has_vectors(part.vectors, vectors) for part in each.parts)
    ]


def with_merged(
    parts: Sequence[PartRef], run: Sequence[PartRef], merged: Sequence[PartRef]
) -> tuple[PartRef, ...] | None:
    """Return the parts of an index with others in the place of a run, None where the run is not there any more."""
    if run[0] not in parts:
        return None
    start = parts.index(run[0])
    stop = start + len(run)
    return None if tuple(parts[start:stop]) != tuple(run) else (*parts[:start], *merged, *parts[stop:])
