"""Datasets."""

from typing import Final

DATASET_ADD_DEFAULT: Final = 1_000
"""Examples that one call adds to a dataset by default. Beyond: they are omitted."""
DATASET_ADD_MAX: Final = 10_000
"""Examples that one call may add to a dataset. Beyond: the call is refused; use several calls."""
DATASET_NOTES_MAX_CHARS: Final = 10_000
"""Description of a dataset, or metadata of its examples, keys and values together. Beyond: the call is refused."""
DATASET_LOOKUP_SPANS: Final = 500
"""Spans whose texts are in memory together while they become examples. Beyond: the next batch."""
FILES_AT_ONCE: Final = 16
"""Files of entries, such as examples, that one call reads or writes concurrently. Beyond: they wait."""
FILES_EXPIRED_TRIES_MAX: Final = 30
"""Retries in a row for files that expired before they were staged; each retry halves the concurrency. Beyond: the
call fails."""
FILES_READ_AHEAD: Final = 64
"""Prefetched files in memory. Beyond: they are read when there is room."""
EXPORT_BATCH_EXAMPLES: Final = 1_000
"""Examples in one Arrow batch, and in one row group of a Parquet export. Beyond: the next one."""
