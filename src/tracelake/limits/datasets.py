"""Datasets."""

from typing import Final

DATASET_ADD_DEFAULT: Final = 1_000
"""Examples that one call adds to a dataset, unless it says otherwise. Beyond: they are left out."""
DATASET_ADD_MAX: Final = 10_000
"""Examples that one call adds to a dataset. Beyond: the call is refused; make several."""
DATASET_NOTES_MAX_CHARS: Final = 10_000
"""The description of a dataset, or the metadata that a caller notes on examples, keys and values together. Beyond:
the call is refused."""
DATASET_LOOKUP_SPANS: Final = 500
"""Spans whose texts are in memory together while they become examples. Beyond: the next so many."""
FILES_AT_ONCE: Final = 16
"""Files of entries, such as examples, that one call reads or writes at the same time. Beyond: they wait."""
FILES_EXPIRED_TRIES_MAX: Final = 30
"""How often in a row files that expired before they were staged are written again, half as many at once each time.
Beyond: the call fails."""
FILES_READ_AHEAD: Final = 64
"""Files that are in memory before they are asked for. Beyond: they are read when there is room."""
EXPORT_BATCH_EXAMPLES: Final = 1_000
"""Examples of one Arrow batch, and of one row group of an export as Parquet. Beyond: the next one."""
