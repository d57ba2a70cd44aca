"""User tables."""

from typing import Final

from tracelake.limits.units import MIB

BUCKETS_DEFAULT: Final = 8
"""Default hash buckets of a new lake or table. Beyond: set more at creation; the number is fixed for its life."""
BUCKETS_MAX: Final = 4_096
"""Hash buckets of a lake or table. Beyond: its creation fails with an error."""
STAGED_ROWS_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a task writing to a user table holds. Beyond: it writes slices."""
MERGE_THREADS_MAX: Final = 4
"""Parts that one writer writes concurrently, at most one a processor. Beyond: they wait."""
COMPARED_KEYS_MAX: Final = 2_000_000
"""Keys of a write that are compared with the stored keys at once; all keys of one bucket go together. Beyond: the
next buckets."""
SMALL_PART_MAX_BYTES: Final = MIB // 4
"""Slice of a write that shares a part with others of its bucket. Beyond: it is a separate part."""
SMALL_PARTS_MAX_BYTES: Final = 8 * MIB
"""Stored size of such slices together. Beyond: the next part."""
UPPER_MISMATCHES_MAX: Final = 100
"""Consecutive races that a write may lose to other writers. Beyond: the write fails, and nothing was written."""
KEYS_TOLD_MAX: Final = 3
"""Keys that an error names. Beyond: it reports how many more there are."""
KEY_TOLD_MAX_CHARS: Final = 80
"""One of these keys. Beyond: it is truncated."""
