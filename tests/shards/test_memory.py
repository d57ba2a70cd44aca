"""Compaction in bounded memory. `python -m tests.shards.memory` measures it with 2 million rows."""

from __future__ import annotations

from tests.shards.memory import measure
from tracelake.limits import MIB


def test_a_task_takes_far_less_memory_than_its_rows() -> None:
    """A task with limits of a few MiB sorts 150,000 rows in less than half of their Arrow size."""
    measured = measure(150_000, part_max_bytes=8 * MIB, memory_bytes=64 * MIB)
    assert measured.arrow_mib > 100
    assert measured.peak_mib < measured.arrow_mib / 2
