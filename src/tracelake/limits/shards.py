"""Shards."""

from typing import Final

from tracelake.limits.units import MIB

SHARD_STATE_INLINE_MAX_BYTES: Final = 64 * 1024
"""State of a shard stored in one record. Beyond: its older part goes into an object."""
SHARD_STATE_INLINE_BATCHES: Final = 8
"""Batches that stay in the record then. Beyond: they are in the object."""
SHARD_READ_TRIES_MAX: Final = 5
"""Reads of a state whose object was deleted because newer states came. Beyond: an error reports damage."""
COMPACTION_FAN_OUT: Final = 8
"""Adjacent batches of a shard in one size class, by the logarithm of their rows to this base. Beyond: compaction
merges them, so the number of batches grows with the logarithm of the rows."""
APPENDS_REMEMBERED: Final = 64
"""Appends that a state remembers by id. Beyond: the outcome of an older append is reported as unknown."""
WRITES_REMEMBERED: Final = 64
"""Writes that a state remembers by the caller's id. Beyond: older ones have separate records."""
LEASE_S: Final = 3600.0
"""Time that collectors observe a lease without renewal. Beyond: its reader counts as dead."""
LEASE_MARGIN_S: Final = 60.0
"""Extra time on top of it, because a reader renews in time but its store may be slow. Beyond: its reader counts as
dead."""
EPOCH_MIN_S: Final = 3600.0
"""Shortest time between two epochs of a shard. Beyond: the next collection begins one, and a writer that uploaded
before the previous one may not append."""
COMPACTION_TRIES_MAX: Final = 10
"""Consecutive races lost to other compactions. Beyond: this one is abandoned, and the error suggests a retry."""
COMPACTION_MEMORY_BYTES: Final = 512 * MIB
"""Memory of one compaction task. Beyond: it spills to disk."""
COMPACTED_AT_HAND_ROWS: Final = 20_000
"""Rows of a compaction that uses the process's open database. Beyond: a separate database is opened."""
COMPACTED_AT_HAND_MAX_BYTES: Final = 8 * MIB
"""Stored bytes of a compaction that uses the process's open database. Beyond: a separate database is opened."""
TAKEN_APART_MAX_BYTES: Final = 64 * MIB
"""Stored bytes of a compaction whose single task splits parts of all buckets. Beyond: a task for each bucket reads
all parts."""
COMPACTED_PART_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of one part that compaction writes. Beyond: the next part; a part of half this size is left unchanged,
if it has no retracted rows."""
