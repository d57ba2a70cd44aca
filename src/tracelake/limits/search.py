"""Search and reading."""

from typing import Final

from tracelake.limits.input import MIB

ROW_GROUP_ROWS: Final = 16_384
"""Rows of one Parquet row group: small enough for point reads, large enough to compress. Beyond: the next group."""
ROW_GROUP_MAX_BYTES: Final = 8 * MIB
"""Arrow bytes of one row group, which a reader holds in memory. Beyond: the next group, unless it is a single
row."""
COLUMNS_CACHED_MAX_BYTES: Final = 128 * MIB
"""Columns of row groups that a process caches in memory after a read of a trace or of hits. Beyond: the least recently
used ones are read again."""
LIST_COLUMNS_MAX_BYTES: Final = 128 * MIB
"""Columns of all rows of a table that a process caches in memory for lists and the overview. Beyond: lists read the
files of the table."""
TRACE_ROWS_MAX_BYTES: Final = 512 * MIB
"""Memory for the rows of a trace that is read whole, with resource and scope at each span. Beyond: 413; SQL can
read single columns."""
TRACE_USAGE_MAX_STEPS: Final = 32
"""Ancestors of a span that are searched for one whose usage it repeats. Beyond: both count for the trace."""
LARGE_TRACE_ROWS_BYTES: Final = 32 * MIB
"""Memory of trace rows that any number of requests read concurrently. Beyond: one response is built at a time."""
LARGE_TRACES_ANSWERED_MAX: Final = 4
"""Responses of a process with such a large trace that are being built or not sent yet. Beyond: requests wait."""
LARGE_TRACES_WAITING_MAX: Final = 8
"""Requests that wait for a large trace or a semantic search; each occupies a thread that others need. Beyond:
503."""
QUERY_MEMORY_BYTES: Final = 2048 * MIB
"""Memory of one DuckDB database that runs conditions and SQL of users, by default. Beyond: it spills to disk, or
the query fails."""
QUERY_MEMORY_MIN_BYTES: Final = 64 * MIB
"""Smallest value of that setting. Beyond: the setting is refused."""
QUERY_SPILL_MAX_BYTES: Final = 4096 * MIB
"""Temporary files of such a database. Beyond: the query fails."""
SEARCH_HITS_DEFAULT: Final = 20
"""Default hits of one search. Beyond: they are omitted."""
SEARCH_HITS_MAX: Final = 1_000
"""Hits of one search. Beyond: it is refused."""
SEARCH_OFFSET_MAX_HITS: Final = 100_000
"""Offset of a page of a search. Beyond: it is refused."""
FACETS_MAX: Final = 20
"""Facets of one request. Beyond: it is refused."""
FACET_VALUES_MAX: Final = 20
"""Returned values of a facet, the most frequent, or the last days. Beyond: they are counted together."""
FACET_VALUES_COUNTED_MAX: Final = 60_000
"""Distinct values that a facet counts in one index part. Beyond: the rarest count as others, and the facet is not
exact."""
INDEX_BATCH_MAX_BYTES: Final = 16 * MIB
"""Span columns converted to documents at a time; as words they take several times as much. Beyond: half as many
spans at a time; a single larger span is split into words in pieces."""
INDEX_WORD_MAX_BYTES: Final = 100
"""One indexed word: a SHA-256 in hex fits, a SHA-512 does not. Beyond: it is not indexed."""
INDEX_ARRAY_MAX_BYTES: Final = 8192
"""Attribute array whose elements are indexed as whole values. Beyond: only its words are indexed."""
INDEX_ARRAY_MAX_ELEMENTS: Final = 64
"""Elements of an array indexed as whole values. Beyond: only the words of the others are indexed."""
INDEX_VALUE_MAX_CHARS: Final = 128
"""Attribute value that is indexed as a whole. Beyond: only its words and its presence are indexed."""
IDENTIFIER_MAX_BYTES: Final = 64
"""One identifier with inner capitals, such as `refundPolicy`. Beyond: it is indexed only as a whole."""
INDEX_REBUILT_PART_ROWS: Final = 200_000
"""Rows of one part in an index rebuild. Beyond: more parts, at most one a bucket."""
INDEX_MERGED_MAX_BYTES: Final = 512 * MIB
"""Index parts, together, that a task merges without reading their rows; it takes twice as much memory. Beyond:
fewer are merged; a larger part is rebuilt from the rows as several parts, if it must be rewritten."""
VECTOR_DIMENSIONS_MAX: Final = 8_192
"""Dimensions of a vector. Beyond: the settings are refused."""
VECTOR_NAME_MAX_CHARS: Final = 200
"""Name of the function or attribute that yields vectors, and its version. Beyond: the settings are refused."""
EMBEDDED_TEXT_MAX_CHARS: Final = 8_000
"""Characters of a span that are embedded. Beyond: they are omitted."""
EMBEDDING_CALL_MAX_S: Final = 60.0
"""Duration of one embedding call. Beyond: the call counts as failed, and is no longer waited for."""
SEMANTIC_SEARCHES_AT_ONCE_MAX: Final = 8
"""Concurrent searches of a server that call the embedding function; each occupies a thread that others need.
Beyond: as many wait as for large traces, and others get 503."""
SEMANTIC_HITS_MAX: Final = 1_000
"""Nearest spans that a semantic search ranks, and text hits that it ranks them with. Beyond: they are not in the
result."""
VECTOR_PARAMETER_MAX_CHARS: Final = 32 * 1024
"""Vector in a request's URL, as text. Beyond: it is refused."""
SEMANTIC_FILTERED_MAX_ROWS: Final = 50_000
"""Spans matching the conditions that are listed before vectors are compared. Beyond: the nearest spans overall are
read, until enough of them meet the conditions."""
INHERITED_SPANS_MAX: Final = 100_000
"""Spans with a session or user that a search asks for, whose traces give it to their other spans. Beyond: the traces
of the newest ones do."""
ASSESSED_TRACES_MAX: Final = 100_000
"""Traces with an assessment that a search asks for. Beyond: the search is refused."""
SEARCH_ROWS_MAX: Final = 500_000
"""Spans that meet a condition on cost or tokens that a search reads from the table. Beyond: the search is refused."""
QUERY_MAX_CHARS: Final = 4_096
"""One search query. Beyond: it is refused."""
QUERY_NESTING_MAX: Final = 50
"""Parentheses and NOTs around one word of a query. Beyond: it is refused."""
QUERY_OPEN_WORDS_MAX: Final = 32
"""Words of a query with * or ~, each of which may match all words of the index. Beyond: it is refused."""
QUERY_OPEN_COST_MAX: Final = 64
"""Total cost of such words in a query. Beyond: it is refused at the word that exceeds it."""
QUERY_SLOP_MAX: Final = 100
"""Words allowed between the words of a phrase. Beyond: it is refused."""
COMPLETIONS_MAX: Final = 20
"""Completions of a partial query. Beyond: the less frequent are omitted."""
HIGHLIGHT_MAX_CHARS: Final = 200
"""One excerpt of a hit, with its highlights. Beyond: it is truncated."""
