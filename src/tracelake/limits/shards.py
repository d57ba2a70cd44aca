"""Shards."""

from typing import Final

from tracelake.limits.units import MIB

SHARD_STATE_INLINE_MAX_BYTES: Final = 64 * 1024
"""The state of a shard in one record. Beyond: its beginning goes into an object."""
SHARD_STATE_INLINE_BATCHES: Final = 8
"""Batches that stay in the record then. Beyond: they are in the object."""
SHARD_READ_TRIES_MAX: Final = 5
"""Reads of a state whose object went between two looks, as newer states came. Beyond: it is damaged, says the error."""
COMPACTION_FAN_OUT: Final = 8
"""Adjacent batches of a shard that count as equally large, by the logarithm of their rows to this base. Beyond:
compaction makes one of them, so batches grow with the logarithm of the rows."""
APPENDS_REMEMBERED: Final = 64
"""Appends that a state remembers by their ids. Beyond: whether an older one is in stays unknown, and is said so."""
WRITES_REMEMBERED: Final = 64
"""Writes that a state remembers by the ids that callers gave. Beyond: older ones have records of their own."""
LEASE_S: Final = 3600.0
"""How long collectors look on while nobody renews a lease. Beyond: they take its reader for dead."""
LEASE_MARGIN_S: Final = 60.0
"""And so much longer: a reader renews in time, and its store may be slow. Beyond: the same."""
EPOCH_MIN_S: Final = 3600.0
"""The least time between two epochs of a shard. Beyond: the next collection begins one, and a writer that uploaded
before the last one may not append."""
COMPACTION_TRIES_MAX: Final = 10
"""Other compactions that may be faster in a row. Beyond: this one is given up, and the error says to try again."""
COMPACTION_MEMORY_BYTES: Final = 512 * MIB
"""What one compaction task may hold. Beyond: it uses the disk."""
COMPACTED_AT_HAND_ROWS: Final = 20_000
"""Rows of a compaction that is done in a database which its process keeps open. Beyond: one of its own is opened."""
COMPACTED_AT_HAND_MAX_BYTES: Final = 8 * MIB
"""Stored bytes of such a compaction. Beyond: the same."""
TAKEN_APART_MAX_BYTES: Final = 64 * MIB
"""Stored bytes of a compaction whose one task takes parts of all buckets apart. Beyond: a task for each bucket reads
all of them."""
COMPACTED_PART_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of one part that compaction writes. Beyond: the next part; a part of half of it is left as it is, if no
row of it was retracted."""
