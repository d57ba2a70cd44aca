"""Reading."""

from typing import Final

from tracelake.limits.units import MIB

ROW_GROUP_ROWS: Final = 16_384
"""Rows of one Parquet row group: small enough for point reads, large enough to compress. Beyond: the next group."""
ROW_GROUP_MAX_BYTES: Final = 8 * MIB
"""Arrow bytes of one row group, which a reader holds in memory. Beyond: the next group, unless it is a single row."""
FOOTERS_REMEMBERED_MAX_BYTES: Final = 64 * MIB
"""Part footers that a process caches in memory, so that key lookups read each once. Beyond: they are read again."""
FOOTERS_AT_ONCE_BYTES: Final = 4 * MIB
"""Stored footers that a key lookup reads at the same time; in memory they take several times as much. Beyond: the
next ones."""
SUMMARIES_REMEMBERED_MAX_BYTES: Final = 256 * MIB
"""Key summaries of parts that a process caches, three bytes a trace: some 70 million traces. Beyond: the footers of
the others are read again."""
COLUMNS_KEPT_MAX_BYTES: Final = 64 * MIB
"""Cached columns of the row groups that recent trace lookups read. Beyond: they are read again."""
TRACE_ROWS_MAX_BYTES: Final = 512 * MIB
"""Memory for the rows of a trace that is read whole, with resource and scope at each span. Beyond: 413; SQL can read
single columns."""
TRACE_USAGE_MAX_STEPS: Final = 32
"""Ancestors of a span that are searched for one whose usage it repeats. Beyond: both count for the trace."""
LARGE_TRACE_ROWS_BYTES: Final = 32 * MIB
"""Memory of trace rows that any number of requests read concurrently. Beyond: one response is built at a time."""
LARGE_TRACES_ANSWERED_MAX: Final = 4
"""Responses of a process with such a large trace that are being built or not sent yet. Beyond: requests wait."""
LARGE_TRACES_WAITING_MAX: Final = 8
"""Requests that wait for a large trace or a semantic search; each occupies a thread that others need. Beyond: 503."""
LOOKED_UP_TRACES_MAX: Final = 64
"""Traces whose rows are looked up without a query. Beyond: a query on several processors."""
READ_THROUGH_MAX_BYTES: Final = 64 * 1024
"""Gap between two columns of a part that is read along with them. Beyond: a second request to the store."""
STATISTICS_TEXT_MAX_CHARS: Final = 40
"""Minimum and maximum text of a column. Beyond: a part keeps neither, and is pruned by other columns."""
DICTIONARY_SAMPLE_ROWS: Final = 1_024
"""Rows of a row group that are sampled to choose an encoding. Beyond: the other rows are assumed to be similar."""
DICTIONARY_DISTINCT_MAX: Final = 0.98
"""Share of distinct values among them. Beyond: the column has no dictionary, which would be as long as the rows."""
PLAIN_PART_MAX_BYTES: Final = 16 * 1024
"""Arrow bytes of a part that is written uncompressed. Beyond: it is compressed."""
SPLIT_MIN_BYTES: Final = 32 * MIB
"""Stored bytes of parts that one task reads together. Beyond: the next task."""
BOUNDED_BATCH_ROWS: Final = 2_048
"""Rows of one Arrow batch of a query with a memory limit. Beyond: the next batch."""
SPLIT_BATCH_ROWS: Final = 8_192
"""Rows of one Arrow batch that a task yields. Beyond: the next batch."""
LISTEN_POLL_S: Final = 0.5
"""Interval at which a listener polls for new commits. Beyond: the next poll."""
CHECK_THREADS_MAX: Final = 4
"""Parts that a reader checks against their checksums concurrently, at most one a processor. Beyond: they wait."""
CHECKED_PARTS_MAX: Final = 100_000
"""Parts that a process remembers as checked. Beyond: it checks them again."""
CONDITIONS_REMEMBERED_MAX: Final = 16
"""Parsed conditions that a process caches. Beyond: the least recently used one is parsed again."""
CONDITION_KEYS_MAX: Final = 10_000
"""Keys of one condition whose buckets are computed. Beyond: all buckets are read, as so many keys would need anyway."""
QUERY_DATABASES_MAX: Final = 4
"""Databases, each locked to its files, that a process keeps for user queries. Beyond: a new one is opened."""
QUERY_MEMORY_BYTES: Final = 2048 * MIB
"""Memory of one DuckDB database that runs conditions and SQL of users, by default. Beyond: it spills to disk, or the
query fails."""
QUERY_MEMORY_MIN_BYTES: Final = 64 * MIB
"""Smallest value of that setting. Beyond: the setting is refused."""
QUERY_SPILL_MAX_BYTES: Final = 4096 * MIB
"""Temporary files of such a database. Beyond: the query fails."""
QUERY_PROCESS_EXTRA_BYTES: Final = 1024 * MIB
"""Memory of a process that runs one query, besides that of its database. Beyond: the query fails."""
QUERY_ERROR_MAX_CHARS: Final = 4_096
"""Characters of DuckDB's message about such a query. Beyond: it is cut."""
