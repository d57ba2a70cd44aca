"""Search."""

from typing import Final

from tracelake.limits.units import MIB

SEARCH_HITS_DEFAULT: Final = 20
"""Hits of one search, unless it says otherwise. Beyond: they are left out."""
SEARCH_HITS_MAX: Final = 1_000
"""Hits of one search. Beyond: it is refused."""
QUERIES_KEPT: Final = 256
"""Queries that a process keeps as they were read. Beyond: the one that was asked longest ago is read again."""
SEARCH_RANKED_BEYOND_HITS: Final = 6
"""Hits of a ranked list beyond the page that is cut from it. Beyond: where all of these are as good as the page's last,
a list of `SEARCH_RANKED_FIRST_HITS`."""
SEARCH_RANKED_FIRST_HITS: Final = 100
"""Hits of the list that the first pages are cut from then. Beyond: a list of `SEARCH_RANKED_STEP_HITS`."""
SEARCH_RANKED_STEP_HITS: Final = 1_000
"""Hits by which the ranked list grows that pages are cut from. Beyond: a list of the next length."""
SIEVE_TEXTS_MAX: Final = 16
"""Texts that a search looks for in what is left to a pipeline. Beyond: of words that all are needed so many are looked
for; of others any span may be found, and what waits is left."""
SEARCH_NEWEST_SHARE: Final = 0.125
"""Share of all spans, in the newest parts, that a search for the newest asks first. Beyond: where these do not fill the
page, all are asked."""
SEARCH_OFFSET_MAX_HITS: Final = 100_000
"""Hits before a page of a search. Beyond: it is refused."""
FACETS_MAX: Final = 20
"""Facets of one request. Beyond: it is refused."""
FACET_VALUES_MAX: Final = 20
"""Values of a facet that are told, the most frequent, or of days the last. Beyond: they are counted together."""
FACET_VALUES_COUNTED_MAX: Final = 60_000
"""Different values that a facet counts in one part of the index. Beyond: the rarest are others, and it is not exact."""
HIGHLIGHT_TERMS_MAX: Final = 32
"""Different words and phrases of a query that are marked in excerpts, and spellings of these in a text. Beyond: the
first of them are."""
HIGHLIGHT_SPELLINGS_MAX_CHARS: Final = 20_000
"""Characters of a text that are looked through for words written otherwise. Beyond: they are not marked."""
LIKE_WORDS_MAX: Final = 25
"""Words by which spans are found that are like another one, those that tell most. Beyond: they count for nothing."""
LIKE_WORDS_READ_MAX: Final = 500
"""Different words of a span that are looked at for that, the first of its text. Beyond: they count for nothing."""
LIKE_TEXT_MAX_CHARS: Final = 20_000
"""Characters of a span that are looked at for that. Beyond: they count for nothing."""
LIKE_WEIGHT_SHARE: Final = 0.25
"""What a word tells at least, as a share of the one that tells most. Beyond: it counts for nothing."""
LIKE_SHARE: Final = 0.3
"""Share of these words that a span must have to be like another. Beyond: it is, the more the better."""
LIKE_SPANS_KEPT: Final = 8
"""Spans whose texts a searcher keeps for that. Beyond: they are read again."""
INDEX_HEAP_BYTES: Final = 512 * MIB
"""What one index part may take in memory while it is built. Beyond: it becomes several segments."""
INDEX_BATCH_ROWS: Final = 8_192
"""Spans that are made documents at a time. Beyond: the next so many."""
INDEX_BATCH_MAX_BYTES: Final = 4 * MIB
"""Columns of spans that are made documents at a time; cut into words they take several times as much. Beyond: half as
many spans at a time; one alone is made words in pieces."""
INDEX_CHUNKS_KEPT: Final = 65_536
"""Different words that a process remembers for each kind of text. Beyond: all are forgotten, and made anew."""
INDEX_CHUNK_KEPT_MAX_CHARS: Final = 32
"""One word that is remembered. Beyond: it is made anew in each batch."""
INDEX_WORDED_AT_ONCE_BYTES: Final = 256 * 1024
"""Text that is cut into words at a time, each of which is an object of Python. Beyond: the next so many."""
INDEX_WORD_MAX_BYTES: Final = 100
"""One word of a text: a SHA-256 in hex is one, a SHA-512 is not. Beyond: it is not indexed."""
INDEX_ARRAY_MAX_BYTES: Final = 8192
"""An array of an attribute whose elements are found as whole values. Beyond: it is found by its words."""
INDEX_ARRAY_MAX_ELEMENTS: Final = 64
"""Such elements of an array. Beyond: the others are found by their words."""
INDEX_CONTENTS_MAX_VALUES: Final = 32
"""Services that a part of the index is said to have, and workspaces. Beyond: it may have any, and is asked for all."""
INDEX_PRUNED_KEPT: Final = 8
"""Sets of some parts that a searcher keeps open, beside all of them. Beyond: the oldest is opened again when it is
asked."""
INDEX_VALUE_MAX_CHARS: Final = 128
"""The value of one attribute that is found as a whole. Beyond: it is found by its words, and that it is there."""
IDENTIFIER_MAX_BYTES: Final = 64
"""One identifier with capitals inside, such as `refundPolicy`. Beyond: it is found as a whole only."""
INDEX_IDENTIFIERS_KEPT: Final = 16_384
"""Identifiers whose parts a process remembers. Beyond: the longest unused is forgotten."""
INDEX_PATHS_KEPT: Final = 4_096
"""Paths of attributes whose terms a process remembers. Beyond: the longest unused is forgotten."""
INDEX_NEWEST_PARTS_MAX: Final = 8
"""Parts that a manifest of the index names itself. Beyond: older ones are in lists that manifests share."""
INDEX_REBUILT_PART_ROWS: Final = 200_000
"""Rows of one part when the index is built anew. Beyond: there are more parts, at most one a bucket."""
INDEX_REBUILT_BATCH_ROWS: Final = 2_048
"""Rows that are read at a time for it: with prompts of a MiB in each, more would not fit into one column of Arrow.
Beyond: the next so many."""
INDEX_MERGED_MAX_BYTES: Final = 512 * MIB
"""Parts of the index together that a task merges without their rows; it takes twice as much. Beyond: fewer of them are
merged; what is larger by itself is built of the rows, in several parts, where it is to be written again."""
INDEX_FAN_OUT: Final = 8
"""Adjacent parts of the index that count as equally large, by the logarithm of their documents. Beyond: they become
one."""
INDEX_REST_AFTER_S: Final = 60.0
"""How long nothing has come when a pipeline merges parts of the index further, one to two times that. Beyond: they
wait for what comes."""
INDEX_REST_SHARE: Final = 4
"""How many times larger than all that are merged with it the largest part is that is merged then. Beyond: it stays."""
INDEX_REWRITTEN_SHARE: Final = 0.2
"""The share of documents whose rows were replaced. Beyond: parts of the index are written again without them."""
INDEX_REPLACED_MIN: Final = 1_000
"""Documents whose rows were replaced that stay until their parts are merged. Beyond: the share decides."""
INDEX_REPLACED_SHARE_MAX: Final = 0.3
"""The share of documents whose rows were replaced. Beyond: `doctor` says that scores suffer."""
INDEX_MARKS_KEPT: Final = 4
"""Files that say which documents of a part are left out, for commits that differ in that, while a process has the part
open. Beyond: the longest unused goes, and is made again where it is asked for."""
INDEX_MAPS_KEPT_FREE: Final = 2_000
"""Memory maps that a process needs for other things than parts of an index: libraries, threads, files of tables.
Beyond: the search fails, and says how to allow more."""
INDEX_COMMITS_BACK_MAX: Final = 100
"""Commits before one whose index is damaged that are asked which vectors it had. Beyond: it is built without."""
VECTOR_DIMENSIONS_MAX: Final = 8_192
"""Numbers of one vector. Beyond: the settings are refused."""
VECTOR_NAME_MAX_CHARS: Final = 200
"""The name of the function or attribute that vectors come from, and its version. Beyond: the settings are refused."""
VECTOR_PART_MAX_BYTES: Final = 128 * MIB
"""Vectors of one part when the index is built anew. Beyond: there are more parts, at most one a bucket."""
EMBEDDED_TEXT_MAX_CHARS: Final = 8_000
"""Characters of a span that its vector is made of. Beyond: they are left out."""
EMBEDDING_BATCH_TEXTS: Final = 128
"""Texts that the function of the user is given at a time. Beyond: the next so many."""
EMBEDDING_CALL_MAX_S: Final = 60.0
"""How long one call of it may take. Beyond: it failed, and nobody waits for it any more."""
SEMANTIC_SEARCHES_AT_ONCE_MAX: Final = 8
"""Searches of one server that ask it: each has a thread that others need, for as long as it takes. Beyond: as many
wait as for large traces, and others are answered 503."""
EMBEDDING_FAILURES_MAX: Final = 20
"""Failed calls of it while one part is built. Beyond: it is not called, and the other spans have no vector."""
EMBEDDING_FAILED_MAX_S: Final = 60.0
"""What its failed calls may take together while one part is built. Beyond: the same."""
SEMANTIC_HITS_MAX: Final = 1_000
"""Spans nearest in meaning that a search ranks, and hits of words that it ranks them with. Beyond: they are not in the
result."""
VECTORS_AT_ONCE: Final = 1_024
"""Vectors that are compared or copied at a time: their numbers stay in the cache of a processor. Beyond: the next."""
SEMANTIC_FARTHER: Final = 4
"""How many times more of the nearest are looked at, where too few meet the conditions. Beyond: again so many times."""
VECTOR_PARAMETER_MAX_CHARS: Final = 32 * 1024
"""A vector in the address of a request, as text. Beyond: it is refused."""
SEMANTIC_RESULTS_KEPT: Final = 8
"""Results of searches by meaning that a searcher keeps for their further pages. Beyond: they are ranked again."""
SEMANTIC_FILTERED_MAX_ROWS: Final = 50_000
"""Spans that conditions leave which are listed before any vector is looked at. Beyond: the nearest of all are looked
at, until enough of them meet the conditions."""
INDEX_SCRATCH_AGE_MAX_S: Final = 3600.0
"""Age of an index that was put together for a search: no search takes so long. Beyond: the next process deletes it."""
INDEX_COPIES_SWEPT_EACH_S: Final = 60.0
"""How often a process looks for unpacked parts of an index that nobody uses. Beyond: the next opening does."""
QUERY_MAX_CHARS: Final = 4_096
"""One search query. Beyond: it is refused."""
QUERY_NESTING_MAX: Final = 50
"""Parentheses and NOTs around one word of a query. Beyond: it is refused."""
QUERY_OPEN_WORDS_MAX: Final = 32
"""Words of a query with * or ~, each of which may stand for all words of the index. Beyond: it is refused."""
QUERY_FUZZY_COST: Final = 4
"""What a word with ~2 costs in each field that it is looked for in; one with * or ~1 costs 1. Beyond: a longer distance
is refused."""
QUERY_OPEN_COST_MAX: Final = 64
"""What these words of a query cost together. Beyond: it is refused, at the word that is too much."""
QUERY_SLOP_MAX: Final = 100
"""Words that may stand between those of a phrase. Beyond: it is refused."""
COMPLETIONS_MAX: Final = 20
"""Completions of a query that is being typed. Beyond: the less frequent are left out."""
COMPLETIONS_LOOKED_AT_MAX: Final = 500
"""The most frequent values that are looked at for those of one workspace. Beyond: the less frequent are left out."""
HIGHLIGHT_MAX_CHARS: Final = 200
"""One excerpt of a hit, with its marks. Beyond: it is cut."""
HIGHLIGHT_CONTEXT_CHARS: Final = 40
"""What an excerpt shows before its first match. Beyond: it is left out."""
HIGHLIGHT_MATCHES_MAX: Final = 200
"""Places of one text that are looked at. Beyond: they are not; the best excerpt is nearly always among the first."""
