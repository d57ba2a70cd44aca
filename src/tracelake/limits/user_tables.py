"""Tables of the user."""

from typing import Final

from tracelake.limits.units import MIB

BUCKETS_DEFAULT: Final = 8
"""Hash buckets of a new lake or table. Beyond: name more when it is made; they are fixed for its life."""
BUCKETS_MAX: Final = 4_096
"""Hash buckets of a lake or table. Beyond: it is not made, and the error says so."""
STAGED_ROWS_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a task that writes to a table of the user holds. Beyond: it writes pieces."""
MERGE_THREADS_MAX: Final = 4
"""Parts that one writer writes at once, and no more than there are processors. Beyond: they wait."""
COMPARED_KEYS_MAX: Final = 2_000_000
"""Keys of a write that are compared at once with those that are stored; of one bucket, all. Beyond: the next
buckets."""
SMALL_PART_MAX_BYTES: Final = MIB // 4
"""A piece of a write that goes into one part with others of its bucket. Beyond: it is a part."""
SMALL_PARTS_MAX_BYTES: Final = 8 * MIB
"""What such pieces may have together, as stored. Beyond: the next part."""
UPPER_MISMATCHES_MAX: Final = 100
"""Other writers that may be faster, one after the other. Beyond: the write is given up, and nothing was written."""
KEYS_TOLD_MAX: Final = 3
"""Keys that an error names. Beyond: it says how many more there are."""
KEY_TOLD_MAX_CHARS: Final = 80
"""One of these keys. Beyond: it is cut."""
