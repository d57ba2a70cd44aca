"""Batches of a pass: traces that are archived together, and where the next ones are looked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracelake.batching import batches
from tracelake.limits import ARCHIVE_BATCH_BYTES, ARCHIVE_BATCH_TRACES

Place: TypeAlias = tuple[int, str]
"""In the traces of an experiment, by their age: the start and the id of one."""
BEGINNING: Final[Place] = (-(2**63), "")


@dataclass(frozen=True, slots=True)
class TraceBatch:
    """Traces that are archived together."""

    trace_ids: tuple[str, ...]
    size_bytes: int
    """Of their OTLP, uncompressed."""
    end: Place


def batches_of(sizes_bytes: Mapping[str, int], end: Place) -> Iterator[TraceBatch]:
    """Cut traces into batches, in the order of their ids: what lies together in the tables is read together."""
    for ids in batches(
        sorted(sizes_bytes), sizes_bytes.__getitem__, ARCHIVE_BATCH_BYTES, ARCHIVE_BATCH_TRACES
    ):
        yield TraceBatch(tuple(ids), sum(map(sizes_bytes.__getitem__, ids)), end)
