"""Search."""

from typing import Final

from tracelake.limits.units import MIB

SEARCH_HITS_DEFAULT: Final = 20
"""Default hits of one search. Beyond: they are omitted."""
SEARCH_HITS_MAX: Final = 1_000
"""Hits of one search. Beyond: it is refused."""
QUERIES_KEPT: Final = 256
"""Parsed queries that a process caches. Beyond: the least recently used one is parsed again."""
SEARCH_RANKED_BEYOND_HITS: Final = 6
"""Hits of a ranked list beyond the page taken from it. Beyond: if all of these tie with the page's last hit, a list
of `SEARCH_RANKED_FIRST_HITS`."""
SEARCH_RANKED_FIRST_HITS: Final = 100
"""Hits of the list from which the first pages are taken then. Beyond: a list of `SEARCH_RANKED_STEP_HITS`."""
SEARCH_RANKED_STEP_HITS: Final = 1_000
"""Growth of the ranked list from which pages are taken. Beyond: a list of the next length."""
SIEVE_TEXTS_MAX: Final = 16
"""Strings that a search's prefilter looks for in input left to a pipeline. Beyond: only so many of the required words
are used; without required words any span may match, and the input is not searched."""
SEARCH_NEWEST_SHARE: Final = 0.125
"""Share of all spans, in the newest parts, that a newest-first search reads first. Beyond: if these do not fill the
page, it reads all parts."""
SEARCH_OFFSET_MAX_HITS: Final = 100_000
"""Offset of a page of a search. Beyond: it is refused."""
FACETS_MAX: Final = 20
"""Facets of one request. Beyond: it is refused."""
FACET_VALUES_MAX: Final = 20
"""Returned values of a facet, the most frequent, or the last days. Beyond: they are counted together."""
FACET_VALUES_COUNTED_MAX: Final = 60_000
"""Distinct values that a facet counts in one index part. Beyond: the rarest count as others, and the facet is not
exact."""
HIGHLIGHT_TERMS_MAX: Final = 32
"""Distinct query words and phrases that excerpts highlight, and their spellings in a text. Beyond: only the first are
highlighted."""
HIGHLIGHT_SPELLINGS_MAX_CHARS: Final = 20_000
"""Characters of a text that are scanned for other spellings of a word. Beyond: they are not highlighted."""
LIKE_WORDS_MAX: Final = 25
"""Words for a more-like-this search, the most distinctive. Beyond: they are ignored."""
LIKE_WORDS_READ_MAX: Final = 500
"""Distinct words of a span that more-like-this considers, the first of its text. Beyond: they are ignored."""
LIKE_TEXT_MAX_CHARS: Final = 20_000
"""Characters of a span that more-like-this considers. Beyond: they are ignored."""
LIKE_WEIGHT_SHARE: Final = 0.25
"""Minimum weight of a word, as a share of the most distinctive word's. Beyond: a word below it is ignored."""
LIKE_SHARE: Final = 0.3
"""Share of these words that a similar span must contain. Beyond: it matches, and ranks higher with more words."""
LIKE_SPANS_KEPT: Final = 8
"""Spans whose texts a searcher caches for more-like-this. Beyond: they are read again."""
INDEX_HEAP_BYTES: Final = 512 * MIB
"""Memory of one index part while it is built. Beyond: it becomes several segments."""
INDEX_BATCH_ROWS: Final = 8_192
"""Spans converted to documents at a time. Beyond: the next batch."""
INDEX_BATCH_MAX_BYTES: Final = 4 * MIB
"""Span columns converted to documents at a time; as words they take several times as much. Beyond: half as many spans
at a time; a single larger span is split into words in pieces."""
INDEX_CHUNKS_KEPT: Final = 65_536
"""Distinct words that a process caches for each kind of text. Beyond: the cache is cleared."""
INDEX_CHUNK_KEPT_MAX_CHARS: Final = 32
"""One cached word. Beyond: it is processed again in each batch."""
INDEX_WORDED_AT_ONCE_BYTES: Final = 256 * 1024
"""Text that is split into words at a time; each word is a Python object. Beyond: the next batch."""
INDEX_WORD_MAX_BYTES: Final = 100
"""One indexed word: a SHA-256 in hex fits, a SHA-512 does not. Beyond: it is not indexed."""
INDEX_ARRAY_MAX_BYTES: Final = 8192
"""Attribute array whose elements are indexed as whole values. Beyond: only its words are indexed."""
INDEX_ARRAY_MAX_ELEMENTS: Final = 64
"""Elements of an array indexed as whole values. Beyond: only the words of the others are indexed."""
INDEX_CONTENTS_MAX_VALUES: Final = 32
"""Services, and workspaces, listed for an index part. Beyond: it may contain any, and every search reads it."""
INDEX_PRUNED_KEPT: Final = 8
"""Subsets of parts that a searcher keeps open, besides the full set. Beyond: the oldest is reopened when needed."""
INDEX_VALUE_MAX_CHARS: Final = 128
"""Attribute value that is indexed as a whole. Beyond: only its words and its presence are indexed."""
IDENTIFIER_MAX_BYTES: Final = 64
"""One identifier with inner capitals, such as `refundPolicy`. Beyond: it is indexed only as a whole."""
INDEX_IDENTIFIERS_KEPT: Final = 16_384
"""Identifiers whose parts a process caches. Beyond: the least recently used one is evicted."""
INDEX_PATHS_KEPT: Final = 4_096
"""Attribute paths whose terms a process caches. Beyond: the least recently used one is evicted."""
INDEX_NEWEST_PARTS_MAX: Final = 8
"""Parts that an index manifest lists itself. Beyond: older ones are in lists that manifests share."""
INDEX_REBUILT_PART_ROWS: Final = 200_000
"""Rows of one part in an index rebuild. Beyond: more parts, at most one a bucket."""
INDEX_REBUILT_BATCH_ROWS: Final = 2_048
"""Rows read at a time in an index rebuild; with a 1 MiB prompt in each, more would not fit into one Arrow column.
Beyond: the next batch."""
INDEX_MERGED_MAX_BYTES: Final = 512 * MIB
"""Index parts, together, that a task merges without reading their rows; it takes twice as much memory. Beyond: fewer
are merged; a larger part is rebuilt from the rows as several parts, if it must be rewritten."""
INDEX_FAN_OUT: Final = 8
"""Adjacent index parts of one size class, by the logarithm of their documents. Beyond: they are merged into one."""
INDEX_REST_AFTER_S: Final = 60.0
"""Idle time after which a pipeline merges index parts further; the actual time is one to two times as long. Beyond:
the merge starts."""
INDEX_REST_SHARE: Final = 4
"""Size of the largest part in such a merge, as a multiple of all the others together. Beyond: it is not merged."""
INDEX_REWRITTEN_SHARE: Final = 0.2
"""Share of documents whose rows were replaced. Beyond: index parts are rewritten without them."""
INDEX_REPLACED_MIN: Final = 1_000
"""Documents with replaced rows that may stay until their parts are merged. Beyond: the share decides."""
INDEX_REPLACED_SHARE_MAX: Final = 0.3
"""Share of documents whose rows were replaced. Beyond: `doctor` warns that scores suffer."""
INDEX_MARKS_KEPT: Final = 4
"""Live-docs files of an open part, one per distinct set of omitted documents. Beyond: the least recently used one is
deleted, and rebuilt when needed."""
INDEX_MAPS_KEPT_FREE: Final = 2_000
"""Memory maps reserved for uses other than index parts: libraries, threads, table files. Beyond: the search fails and
explains how to allow more."""
INDEX_COMMITS_BACK_MAX: Final = 100
"""Ancestors of a commit with a damaged index that are searched for its vector settings. Beyond: the index is built
without vectors."""
VECTOR_DIMENSIONS_MAX: Final = 8_192
"""Dimensions of a vector. Beyond: the settings are refused."""
VECTOR_NAME_MAX_CHARS: Final = 200
"""Name of the function or attribute that yields vectors, and its version. Beyond: the settings are refused."""
VECTOR_PART_MAX_BYTES: Final = 128 * MIB
"""Vectors of one part in an index rebuild. Beyond: more parts, at most one a bucket."""
EMBEDDED_TEXT_MAX_CHARS: Final = 8_000
"""Characters of a span that are embedded. Beyond: they are omitted."""
EMBEDDING_BATCH_TEXTS: Final = 128
"""Texts in one call of the user's embedding function. Beyond: the next batch."""
EMBEDDING_CALL_MAX_S: Final = 60.0
"""Duration of one embedding call. Beyond: the call counts as failed, and is no longer waited for."""
SEMANTIC_SEARCHES_AT_ONCE_MAX: Final = 8
"""Concurrent searches of a server that call the embedding function; each occupies a thread that others need. Beyond:
as many wait as for large traces, and others get 503."""
EMBEDDING_FAILURES_MAX: Final = 20
"""Failed embedding calls while one part is built. Beyond: no further calls, and the other spans have no vector."""
EMBEDDING_FAILED_MAX_S: Final = 60.0
"""Total time of failed embedding calls while one part is built. Beyond: no further calls, and the other spans have no
vector."""
SEMANTIC_HITS_MAX: Final = 1_000
"""Nearest spans that a semantic search ranks, and text hits that it ranks them with. Beyond: they are not in the
result."""
VECTORS_AT_ONCE: Final = 1_024
"""Vectors compared or copied at a time; they fit into the processor's cache. Beyond: the next block."""
SEMANTIC_FARTHER: Final = 4
"""Growth factor of the number of nearest spans, if too few meet the conditions. Beyond: it grows again."""
VECTOR_PARAMETER_MAX_CHARS: Final = 32 * 1024
"""Vector in a request's URL, as text. Beyond: it is refused."""
SEMANTIC_RESULTS_KEPT: Final = 8
"""Results of semantic searches that a searcher caches for further pages. Beyond: they are ranked again."""
SEMANTIC_FILTERED_MAX_ROWS: Final = 50_000
"""Spans matching the conditions that are listed before vectors are compared. Beyond: the nearest spans overall are
read, until enough of them meet the conditions."""
INDEX_SCRATCH_AGE_MAX_S: Final = 3600.0
"""Age of an index assembled for one search; no search takes so long. Beyond: the next process deletes it."""
INDEX_COPIES_SWEPT_EACH_S: Final = 60.0
"""Interval at which a process looks for unused unpacked index parts. Beyond: the next time an index is opened."""
QUERY_MAX_CHARS: Final = 4_096
"""One search query. Beyond: it is refused."""
QUERY_NESTING_MAX: Final = 50
"""Parentheses and NOTs around one word of a query. Beyond: it is refused."""
QUERY_OPEN_WORDS_MAX: Final = 32
"""Words of a query with * or ~, each of which may match all words of the index. Beyond: it is refused."""
QUERY_FUZZY_COST: Final = 4
"""Cost of a word with ~2 in each searched field; a word with * or ~1 costs 1. Beyond: a longer distance is refused."""
QUERY_OPEN_COST_MAX: Final = 64
"""Total cost of such words in a query. Beyond: it is refused at the word that exceeds it."""
QUERY_SLOP_MAX: Final = 100
"""Words allowed between the words of a phrase. Beyond: it is refused."""
COMPLETIONS_MAX: Final = 20
"""Completions of a partial query. Beyond: the less frequent are omitted."""
COMPLETIONS_LOOKED_AT_MAX: Final = 500
"""Most frequent values considered for the completions of one workspace. Beyond: the less frequent are omitted."""
HIGHLIGHT_MAX_CHARS: Final = 200
"""One excerpt of a hit, with its highlights. Beyond: it is truncated."""
HIGHLIGHT_CONTEXT_CHARS: Final = 40
"""Text of an excerpt before its first match. Beyond: it is omitted."""
HIGHLIGHT_MATCHES_MAX: Final = 200
"""Matches in one text that are considered for its excerpt. Beyond: they are ignored; the best excerpt is nearly
always among the first."""
