"""Reading."""

from typing import Final

from tracelake.limits.units import MIB

ROW_GROUP_ROWS: Final = 16_384
"""Rows of one Parquet row group: small enough for point reads, large enough to compress. Beyond: the next group."""
ROW_GROUP_MAX_BYTES: Final = 8 * MIB
"""Arrow bytes of one row group, which who reads it holds. Beyond: the next group, unless it is a single row."""
FOOTERS_REMEMBERED_MAX_BYTES: Final = 64 * MIB
"""Footers of parts, as they are in memory, that a process keeps, so that who looks for keys reads each once. Beyond:
they are read again."""
FOOTERS_AT_ONCE_BYTES: Final = 4 * MIB
"""Footers, as they are stored, that who looks for keys reads at the same time; in memory they take several times as
much. Beyond: the next ones."""
SUMMARIES_REMEMBERED_MAX_BYTES: Final = 256 * MIB
"""What parts say of their keys, three bytes for each trace, that a process keeps: of some 70 million traces. Beyond:
footers are read again, of those that are too many."""
COLUMNS_KEPT_MAX_BYTES: Final = 64 * MIB
"""Bytes in memory of columns that a process keeps of the row groups in which it looked up traces last. Beyond: they are
read again."""
TRACE_ROWS_MAX_BYTES: Final = 512 * MIB
"""What the rows of a trace take in memory that is read whole, resource and scope at each span. Beyond: 413; SQL reads
columns of it."""
TRACE_USAGE_MAX_STEPS: Final = 32
"""Levels above a span among which a span that repeats its usage is looked for. Beyond: both count for the trace."""
LARGE_TRACE_ROWS_BYTES: Final = 32 * MIB
"""Such rows that requests read beside each other, however many these are. Beyond: one answer is made at a time."""
LARGE_TRACES_ANSWERED_MAX: Final = 4
"""Answers with such a trace that are made, or were and are not sent yet, of one process. Beyond: they wait."""
LARGE_TRACES_WAITING_MAX: Final = 8
"""Requests that wait for one of these, or to search by meaning: each has a thread that others need. Beyond: 503."""
LOOKED_UP_TRACES_MAX: Final = 64
"""Traces whose rows are looked up without a query. Beyond: by one, which takes several processors."""
READ_THROUGH_MAX_BYTES: Final = 64 * 1024
"""What lies between two columns of a part, and is read with them. Beyond: the store is asked twice."""
STATISTICS_TEXT_MAX_CHARS: Final = 40
"""The least and greatest text of a column. Beyond: a part keeps neither, and is pruned by other columns."""
DICTIONARY_SAMPLE_ROWS: Final = 1_024
"""Rows of a row group that are looked at to choose an encoding. Beyond: rows are taken to be alike."""
DICTIONARY_DISTINCT_MAX: Final = 0.98
"""Share of distinct values among them. Beyond: a dictionary would be as long as the rows, and the column has none."""
PLAIN_PART_MAX_BYTES: Final = 16 * 1024
"""Arrow bytes of a part that is written without compression. Beyond: it is compressed."""
SPLIT_MIN_BYTES: Final = 32 * MIB
"""Parts, as stored, that one task reads together. Beyond: the next task."""
BOUNDED_BATCH_ROWS: Final = 2_048
"""Rows of one Arrow batch of a query whose rows may take so much memory and no more. Beyond: the next batch."""
SPLIT_BATCH_ROWS: Final = 8_192
"""Rows of one Arrow batch that a task yields. Beyond: the next batch."""
LISTEN_POLL_S: Final = 0.5
"""How often a listener looks for new commits. Beyond: it looks again."""
CHECK_THREADS_MAX: Final = 4
"""Parts that a reader compares with their checksums at once, and no more than there are processors. Beyond: they
wait."""
CHECKED_PARTS_MAX: Final = 100_000
"""Parts that a process remembers to have compared with their checksums. Beyond: it compares them again."""
CONDITIONS_REMEMBERED_MAX: Final = 16
"""Parsed conditions that a process remembers. Beyond: the one used longest ago is parsed again."""
CONDITION_KEYS_MAX: Final = 10_000
"""Keys of one condition whose buckets are computed. Beyond: all buckets are read, which they would be in anyway."""
QUERY_DATABASES_MAX: Final = 4
"""Databases, each locked to its files, that a process keeps for queries of users. Beyond: one is opened anew."""
